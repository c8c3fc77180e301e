"""What could kill the process, and bad input, one function each.

`python -m tests.tf_interop.triggers NAME ...` runs the named ones in turn and writes what became of
each: a line `begin NAME`, and a line `end NAME` with `ok` or the error in JSON. Whoever reads that
knows from a missing end which one the process died of.
"""

from __future__ import annotations

import ctypes
import json
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pjrt_bridge
from pjrt_bridge import errors, tf_interop

TRIGGERS: dict[str, Callable[[], None]] = {}


def trigger(function: Callable[[], None]) -> Callable[[], None]:
    """Enter a function under its name."""
    TRIGGERS[function.__name__] = function
    return function


def misaligned(*shape: int, dtype: Any = np.float32, offset: int = 1) -> np.ndarray[Any, Any]:
    """An array that begins `offset` elements behind a multiple of 64 bytes."""
    count = int(np.prod(shape))
    store = np.zeros(count + 128, dtype)
    begin = (-store.ctypes.data % 64) // store.itemsize + offset
    found = store[begin : begin + count].reshape(shape)
    found[...] = np.arange(count).reshape(shape) % 7
    assert found.ctypes.data % 64 == offset * found.itemsize
    return found


def layer(x: tf.Tensor) -> tf.Tensor:
    """Something that needs alignment: vector instructions and a product."""
    return tf.exp(x * 0.1) @ tf.transpose(x) + 1


def expected_layer(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.exp(x * 0.1) @ x.T + 1)


def result_or_error(call: Callable[[], Any], says: str) -> Any:
    """The result, or None where there is an error that says what is the matter."""
    try:
        return call()
    except (errors.PjrtBridgeError, tf.errors.OpError) as error:
        if says not in str(error):
            raise
        return None


@trigger
def misaligned_tensor() -> None:
    """TensorFlow takes misaligned memory from DLPack, and aborts where it uses it."""
    fast = tf_interop.function(layer, fallback="error")
    for offset in (1, 4, 15):
        array = misaligned(17, 16, offset=offset)
        given = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        np.testing.assert_allclose(fast(given), expected_layer(array), rtol=1e-5)


@trigger
def misaligned_array() -> None:
    """The same memory as an array of NumPy."""
    fast = tf_interop.function(layer, fallback="error")
    array = misaligned(17, 16)
    np.testing.assert_allclose(fast(array), expected_layer(array), rtol=1e-5)


@trigger
def misaligned_buffer() -> None:
    """A buffer of the runtime that is a view of misaligned memory, and one that is not."""
    client = pjrt_bridge.client("cpu")
    fast = tf_interop.function(layer, fallback="error")
    array = misaligned(17, 16)
    given = tf.experimental.dlpack.from_dlpack(client.put(array).__dlpack__())
    np.testing.assert_allclose(fast(given), expected_layer(array), rtol=1e-5)


@trigger
def results_are_aligned() -> None:
    """TensorFlow's kernels use what device segments give, of any size and type."""
    cast = tf_interop.function(lambda x, t: (tf.cast(x, t), tf.cast(x + 1, t)))
    for dtype in (tf.float32, tf.bfloat16, tf.float64, tf.int8, tf.bool, tf.complex64):
        for size in (1, 17, 1000):
            for found in cast(tf.range(size, dtype=tf.float32), dtype):
                assert tf.concat([found, found], 0).shape == [2 * size]
                assert address(found) % 64 == 0


def address(tensor: tf.Tensor) -> int:
    """Where a tensor lies; NumPy's DLPack does not know all types."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # DLManagedTensor begins with DLTensor, and that with its data pointer.
    held = tf.experimental.dlpack.to_dlpack(tensor)
    return ctypes.c_void_p.from_address(pointer(held, b"dltensor")).value or 0


@trigger
def string_at_a_border() -> None:
    """Strings come out of what looks like a device's operator, and go into one."""

    def run(text: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        best = tf.argmax(layer(x), axis=-1)
        chosen = tf.gather(tf.reshape(tf.concat([text, text], 0), [-1]), best)
        return chosen, tf.where(best > 2, chosen, tf.constant("?")), tf.shape(chosen) * 2

    x = tf.random.stateless_normal([4, 4], [1, 2])
    text = tf.constant(["a", "b", "c"])
    for found, wanted in zip(tf_interop.function(run)(text, x), run(text, x), strict=True):
        np.testing.assert_array_equal(found, wanted)


@trigger
def variant_at_a_border() -> None:
    """A TensorList that the device could make, and a loop on the host that fills it."""
    heard: list[int] = []

    def run(x: tf.Tensor) -> tf.Tensor:
        rows = tf.TensorArray(tf.float32, size=3)
        y = layer(x)
        for i in tf.range(3):
            tf.py_function(lambda n: heard.append(int(n)), [i], [])
            rows = rows.write(i, y[i] * 2)
        return rows.stack() @ y

    x = tf.random.stateless_normal([3, 3], [1, 2])
    found = tf_interop.function(run)(x)
    np.testing.assert_allclose(found, 2 * layer(x) @ layer(x), rtol=1e-4)
    assert heard == [0, 1, 2]


@trigger
def variant_argument() -> None:
    """A TensorList as an argument and as a result."""
    handle = tf.raw_ops.TensorListFromTensor(tensor=tf.ones([3, 4]), element_shape=tf.constant([4]))

    def run(handle: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        held = tf.raw_ops.TensorListStack(
            input_handle=handle, element_shape=tf.constant([4]), element_dtype=tf.float32
        )
        longer = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=x[0])
        return longer, tf.tanh(held + x)

    longer, found = tf_interop.function(run)(handle, tf.ones([3, 4]))
    np.testing.assert_allclose(found, np.tanh(np.full([3, 4], 2.0)), rtol=1e-5)
    assert int(tf.raw_ops.TensorListLength(input_handle=longer)) == 4


@trigger
def resource_argument() -> None:
    """A variable and the handle of a table as arguments."""
    state = tf.Variable(tf.ones([4]))

    def run(held: tf.Variable, x: tf.Tensor) -> tf.Tensor:
        held.assign_add(x)
        return tf.tanh(held * 2)

    fast = tf_interop.function(run)
    for step in range(3):
        found = fast(state, tf.ones([4]))
        np.testing.assert_allclose(found, np.tanh([2.0 * (step + 2)] * 4), rtol=1e-5)
        np.testing.assert_array_equal(state, [step + 2.0] * 4)


@trigger
def eager_update_of_an_aliased_variable() -> None:
    """The caller writes to a variable whose memory results, buffers and torch may share."""
    state = tf.Variable(tf.ones([64]))
    fast = tf_interop.function(lambda x: (state * x, tf.identity(state), state.read_value()))
    held = []
    for step in range(4):
        product, *same = fast(tf.constant(2.0))
        for one in (product / 2, *same):
            np.testing.assert_array_equal(one, np.full(64, step + 1.0))
        held.append((step, product, same))
        state.assign_add(tf.ones([64]))
    for step, product, same in held:
        for one in (product / 2, *same):
            np.testing.assert_array_equal(one, np.full(64, step + 1.0))


@trigger
def results_of_an_updated_variable_stay() -> None:
    """New values of a variable that a call gave are not those that the next one writes."""
    state = tf.Variable(tf.zeros([1000]))

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        before = state * 1
        return before, state.assign_add(x, read_value=True) + 0

    fast = tf_interop.function(run, fallback="error")
    alias = state.value()
    given = [fast(tf.ones([1000])) for _ in range(5)]
    for step, (before, after) in enumerate(given):
        np.testing.assert_array_equal(before, np.full(1000, float(step)))
        np.testing.assert_array_equal(after, np.full(1000, step + 1.0))
    np.testing.assert_array_equal(alias, np.zeros(1000))
    np.testing.assert_array_equal(state, np.full(1000, 5.0))


@trigger
def variable_that_changes_its_shape() -> None:
    """An alias that is kept must not be used for a variable that got other memory."""
    state = tf.Variable(tf.ones([2, 2]), shape=tf.TensorShape(None))
    fast = tf_interop.function(lambda x: tf.reduce_sum(state * x))
    assert float(fast(tf.constant(2.0))) == 8
    state.assign(tf.ones([5]))
    assert float(fast(tf.constant(2.0))) == 10
    state.assign(tf.ones([2, 2]) * 3)
    assert float(fast(tf.constant(2.0))) == 24


@trigger
def variable_that_is_gone() -> None:
    """The function keeps no variable alive that its trace does not, and says what is missing."""
    state = tf.Variable(tf.ones([4]))

    def run(x: tf.Tensor) -> tf.Tensor:
        return state * x

    fast = tf_interop.function(run)
    np.testing.assert_array_equal(fast(tf.constant(2.0)), [2.0] * 4)
    state = tf.Variable(tf.ones([4]) * 5)
    # As with tf.function: the trace knows the first one, which is gone, or still holds it.
    found = result_or_error(lambda: fast(tf.constant(2.0)), "ariable")
    assert found is None or found.numpy()[0] in (2.0, 10.0)


@trigger
def uninitialized_variable() -> None:
    """A handle without a value: TensorFlow's own error, and the function still works after it."""
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4], shared_name="never")

    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) * x

    fast = tf_interop.function(run)
    with pytest.raises((errors.PjrtBridgeError, tf.errors.OpError)):
        fast(tf.constant(2.0))
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.ones([4]))
    np.testing.assert_array_equal(fast(tf.constant(2.0)), [2.0] * 4)


@trigger
def operator_that_runs_nowhere() -> None:
    """Kernels that neither this TensorFlow nor XLA has."""

    def run(x: tf.Tensor) -> tf.Tensor:
        y = tf.raw_ops.CudnnRNNParamsSize(
            num_layers=1, num_units=4, input_size=4, T=tf.float32, S=tf.int32, name="lonely"
        )
        return layer(x) + tf.cast(y[0], tf.float32)

    fast = tf_interop.function(run)
    with pytest.raises((errors.PjrtBridgeError, tf.errors.OpError), match="CudnnRNNParamsSize"):
        fast(tf.ones([3, 3]))


@trigger
def shape_that_nobody_knows() -> None:
    """Not even the rank is known before the call; and not at all when it is exported."""

    def run(x: tf.Tensor) -> tf.Tensor:
        y = tf.numpy_function(lambda a: a[: int(a[0, 0]) + 1], [layer(x)], tf.float32)
        return tf.tanh(y) * 2

    fast = tf_interop.function(run)
    for value in (0.0, 1.0):
        x = tf.fill([4, 4], value)
        np.testing.assert_allclose(fast(x), run(x), rtol=1e-5)
    with pytest.raises(errors.PjrtBridgeError, match="shape"):
        tf_interop.export(layer, tf.TensorSpec([None, 4], tf.float32))
    with pytest.raises(errors.PjrtBridgeError, match="shape"):
        tf_interop.export(layer, tf.TensorSpec(None, tf.float32))


@trigger
def variable_on_another_device() -> None:
    """Two CPUs as far as TensorFlow knows, and a variable on the second."""
    with tf.device("CPU:1"):
        state = tf.Variable(tf.ones([4]))
    fast = tf_interop.function(lambda x: state * x, fallback="error")
    with pytest.raises(errors.PjrtBridgeError, match=r"ReadVariableOp.*CPU:1"):
        fast(tf.constant(2.0))
    with tf.device("CPU:1"):
        x = tf.constant([1.0, 2.0])
    np.testing.assert_allclose(tf_interop.function(lambda x: x * 2)(x), [2.0, 4.0])


@trigger
def quantized_types() -> None:
    """qint8 has no counterpart in a program; the host computes with it."""

    def run(x: tf.Tensor) -> tf.Tensor:
        q = tf.quantization.quantize(tf.tanh(x), -1.0, 1.0, tf.qint8)
        return tf.quantization.dequantize(*q) * 2

    x = tf.constant([[0.5, -0.25], [0.0, 1.0]])
    np.testing.assert_allclose(tf_interop.function(run)(x), run(x), atol=1e-6)
    with pytest.raises(errors.FallbackForbidden, match="Quantize"):
        tf_interop.function(run, fallback="error")(x)


@trigger
def quantized_argument() -> None:
    """An argument of a type that cannot cross."""
    q, _, _ = tf.quantization.quantize(tf.constant([0.5, -0.5]), -1.0, 1.0, tf.qint8)

    def run(q: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.bitcast(q, tf.int8), tf.float32) * 2

    np.testing.assert_array_equal(tf_interop.function(run)(q), run(q))


@trigger
def strings_that_must_not_stay() -> None:
    """Nothing but strings, and the host is forbidden."""
    fast = tf_interop.function(tf.strings.upper, fallback="error")
    with pytest.raises(errors.FallbackForbidden, match="StringUpper"):
        fast(tf.constant("a"))
    assert tf_interop.function(tf.strings.upper)(tf.constant("a")) == tf.constant("A")


@trigger
def strings_cannot_be_exported() -> None:
    """A program of StableHLO has no strings; the error names operator and node."""
    with pytest.raises(errors.PjrtBridgeError, match=r"AsString.*said|said.*AsString"):
        tf_interop.export(
            lambda x: tf.strings.as_string(x * 2, name="said"), tf.TensorSpec([2], tf.float32)
        )
    with pytest.raises(errors.PjrtBridgeError, match="string"):
        tf_interop.export(tf.identity, tf.TensorSpec([2], tf.string))


@trigger
def wrong_arguments() -> None:
    """Too many, too few, of another type than the signature says: errors, and no harm done."""
    spec = tf.TensorSpec([None, 4], tf.float32)
    fast = tf_interop.function(layer, fallback="error", input_signature=[spec])
    for positional in ((), (tf.ones([4, 4]), 1), (tf.ones([4]),), (tf.ones([4, 4], tf.int32),)):
        with pytest.raises((TypeError, ValueError, errors.PjrtBridgeError)):
            fast(*positional)
    with pytest.raises((TypeError, ValueError, errors.PjrtBridgeError)):
        fast(y=tf.ones([4, 4]))
    np.testing.assert_allclose(fast(tf.ones([4, 4])), layer(tf.ones([4, 4])), rtol=1e-5)


@trigger
def wrong_options() -> None:
    """Options that do not exist, plugins that do not exist, and what is no function."""
    with pytest.raises(errors.OptionError, match="fallback"):
        tf_interop.function(layer, fallback="perhaps")  # type: ignore[call-overload]
    with pytest.raises(errors.PluginNotFound, match="nosuch"):
        tf_interop.function(layer, plugin="nosuch")(tf.ones([2, 2]))
    with pytest.raises((TypeError, errors.PjrtBridgeError), match="int"):
        tf_interop.function(3)  # type: ignore[call-overload]


@trigger
def error_of_an_operator() -> None:
    """What raises on the host raises as it does in TensorFlow, and the next call works."""

    def run(text: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return layer(x) * tf.strings.to_number(text)

    fast, x = tf_interop.function(run), tf.ones([3, 3])
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="two"):
            fast(tf.constant("two"), x)
        np.testing.assert_allclose(fast(tf.constant("2"), x), 2 * layer(x), rtol=1e-5)


@trigger
def error_of_python() -> None:
    """An exception of a py_function, and an assertion that does not hold."""

    def fail(x: tf.Tensor) -> tf.Tensor:
        if float(x) > 1:
            raise RuntimeError("too large for Python")
        return x

    def run(x: tf.Tensor) -> tf.Tensor:
        y = tf.py_function(fail, [tf.reduce_max(layer(x))], tf.float32)
        tf.debugging.assert_less(tf.reduce_max(x), 5.0, message="too large for TensorFlow")
        return tf.ensure_shape(y, []) * 2

    fast = tf_interop.function(run)
    with pytest.raises(tf.errors.OpError, match="too large"):
        fast(tf.fill([2, 2], 2.0))
    with pytest.raises(tf.errors.OpError, match="too large"):
        fast(tf.fill([2, 2], 9.0))


@trigger
def assertion_beside_the_device() -> None:
    """An assertion that nothing depends on is not lost."""
    state = tf.Variable(0.0)

    def run(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_positive(x, message="must be positive")
        state.assign_add(1.0)
        return layer(x)

    fast = tf_interop.function(run)
    fast(tf.ones([3, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be positive"):
        fast(-tf.ones([3, 3]))
    # TensorFlow does not order them: the update may have been made.
    assert float(state) in (1, 2)


@trigger
def numbers_that_must_be_finite() -> None:
    """check_numerics raises, also on what the device computed."""

    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(tf.math.log(layer(x) - 1), "logarithm") * 2

    fast = tf_interop.function(run)
    np.testing.assert_allclose(fast(tf.ones([2, 2])), run(tf.ones([2, 2])), rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="logarithm"):
        fast(tf.zeros([2, 2]))


@trigger
def types_that_few_have() -> None:
    """float8, int4 and their like, where TensorFlow knows them."""
    rare = tf.dtypes.experimental
    for dtype, source in ((rare.float8_e4m3fn, tf.float32), (rare.int4, tf.int8)):
        x = tf.cast(tf.constant([1, 2, 3], source), dtype)
        for run in (partial(tf.cast, dtype=source), tf.identity):
            found = tf_interop.function(run)(x)
            np.testing.assert_array_equal(tf.cast(found, source), tf.cast(run(x), source))


@trigger
def functions_inside_a_trace() -> None:
    """Called while TensorFlow traces another function: part of that one, or a clear error."""
    fast = tf_interop.function(layer)
    outer = tf.function(lambda x: fast(x) * 2)
    x = tf.ones([3, 3])
    found = result_or_error(lambda: outer(x), "trac")
    if found is not None:
        np.testing.assert_allclose(found, 2 * layer(x), rtol=1e-5)
    np.testing.assert_allclose(fast(x), layer(x), rtol=1e-5)


@trigger
def gradients_from_outside() -> None:
    """A tape around the call: gradients, or an error; never gradients of zero."""
    x = tf.Variable(tf.ones([3, 3]))

    def gradient(function: Callable[[Any], Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(tf.identity(x)))
        return tape.gradient(loss, x)

    found = result_or_error(lambda: (gradient(tf_interop.function(layer)),), "radient")
    if found is not None:
        np.testing.assert_allclose(found[0], gradient(layer), rtol=1e-4)


@trigger
def several_threads() -> None:
    """One function, several threads, several sizes."""
    from concurrent.futures import ThreadPoolExecutor

    fast = tf_interop.function(layer, fallback="error")

    def call(size: int) -> None:
        array = np.random.default_rng(size).standard_normal((size % 3 + 1, 4)).astype("f4")
        np.testing.assert_allclose(fast(tf.constant(array)), expected_layer(array), rtol=1e-4)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(40)))


@trigger
def closed_client() -> None:
    """The last one: a call after the client was closed."""
    fast = tf_interop.function(layer)
    fast(tf.ones([3, 3]))
    pjrt_bridge.client("cpu").close()
    found = result_or_error(lambda: fast(tf.ones([3, 3])), "closed")
    if found is not None:
        np.testing.assert_allclose(found, layer(tf.ones([3, 3])), rtol=1e-5)


def main() -> None:
    """Run the named triggers in turn."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", errors.HostFallbackWarning)
    for name in sys.argv[1:]:
        print("begin", name, flush=True)
        try:
            TRIGGERS[name]()
        except (Exception, pytest.fail.Exception):
            print("end", name, json.dumps(traceback.format_exc()), flush=True)
        else:
            print("end", name, "ok", flush=True)


if __name__ == "__main__":
    main()

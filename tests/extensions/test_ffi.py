"""Custom calls: functions of Python and C that programs of the CPU plugin call."""

import ctypes
import gc
import importlib.metadata
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes, errors
from pjrt_bridge.extensions import FFI, call_frame
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge.stablehlo import Builder, Program
from pjrt_bridge.stablehlo.types import TensorType
from tests.conftest import Census
from tests.extensions.offering import offering

BASE = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def ffi(client: Client) -> FFI:
    return client.extension(FFI)


def program(
    target: str,
    operands: list[TensorType],
    results: list[TensorType],
    config: Mapping[str, Any] | None = None,
) -> Program:
    """Pass the parameters to a custom call and return what it gives."""
    builder = Builder(operands)
    values = builder.custom_call(
        target,
        builder.parameters,
        results,
        backend_config=config or {},
        has_side_effect=True,
        operand_layouts=[range(type.rank)[::-1] for type in operands],
        result_layouts=[range(type.rank)[::-1] for type in results],
    )
    return builder.finish(values)


def type_of(array: np.ndarray[Any, Any]) -> TensorType:
    return TensorType(array.shape, dtypes.from_numpy(array.dtype))


def unary(target: str, **config: Any) -> Program:
    return program(target, [type_of(BASE)], [type_of(BASE)], config)


names = iter(f"test.{number}" for number in range(10**6))


def register(ffi: FFI, function: Callable[..., None]) -> str:
    """Register under a new name."""
    name = next(names)
    ffi.register(name, function)
    return name


def test_a_python_function(no_leaks: Census, ffi: FFI, client: Client) -> None:
    def scale(x: Any, out: Any, *, factor: float) -> None:
        np.multiply(x, factor, out=out)

    executable = client.compile(unary(register(ffi, scale), factor=2.5))
    del scale
    gc.collect()
    for _ in range(3):
        (result,) = executable(BASE)
        np.testing.assert_array_equal(result.to_numpy(), BASE * np.float32(2.5))


def test_several_operands_and_results(ffi: FFI, client: Client) -> None:
    def divide(a: Any, b: Any, quotient: Any, rest: Any) -> None:
        np.divmod(a, b, out=(quotient, rest))

    a, b = np.array([7, -7, 9]), np.array([2, 2, 4])
    kinds = [type_of(a), type_of(b)]
    quotient, rest = client.compile(program(register(ffi, divide), kinds, kinds))(a, b)
    np.testing.assert_array_equal(quotient.to_numpy(), [3, -4, 2])
    np.testing.assert_array_equal(rest.to_numpy(), [1, 1, 1])


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
@pytest.mark.parametrize(
    "dtype", [dtype for dtype in dtypes.ALL if dtype.bits == 8 * dtype.itemsize]
)
def test_every_element_type(
    ffi: FFI, client: Client, dtype: dtypes.DType, shape: tuple[int, ...]
) -> None:
    seen = []

    def copy(x: Any, out: Any) -> None:
        seen.append((x.dtype, x.shape))
        out[...] = x

    data = np.ones(shape).astype(dtype.numpy)
    try:
        client.check_dtype(dtype)
    except errors.UnsupportedDtype:
        pytest.skip(f"the plugin has no {dtype}")
    kind = TensorType(shape, dtype)
    (result,) = client.compile(program(register(ffi, copy), [kind], [kind]))(data)
    np.testing.assert_array_equal(result.to_numpy(), data)
    assert seen == [(dtype.numpy, shape)]


def test_packed_elements_are_refused(ffi: FFI, client: Client) -> None:
    kind = TensorType((3,), dtypes.of("int4"))
    name = register(ffi, lambda x, out: None)
    with pytest.raises(errors.PjrtError, match=r"UnsupportedDtype: int4: .* packed elements"):
        client.compile(program(name, [kind], [kind]))(np.ones(3, kind.dtype.numpy))[0].to_numpy()


numbers = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    # The plugin's threads flush subnormal numbers, also where Python widens one.
    st.builds(np.float32, st.floats(width=32, allow_subnormal=False)),
    st.builds(np.int32, st.integers(-(2**31), 2**31 - 1)),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    st.lists(st.integers(-9, 9), min_size=1, max_size=4).map(np.array),
    st.lists(st.floats(-9, 9), min_size=1, max_size=4).map(np.array),
)
keys = st.from_regex(r"[a-z]{1,6}", fullmatch=True).filter(lambda key: key not in ("x", "out"))
configs = st.dictionaries(
    keys, st.one_of(numbers, st.dictionaries(keys, numbers, max_size=3)), max_size=4
)

received: dict[str, Any] = {}


def _receive(x: Any, out: Any, **attributes: Any) -> None:
    received.clear()
    received.update(attributes)
    out[...] = x


@settings(max_examples=40)
@given(config=configs)
def test_attributes_arrive_as_they_were_given(
    ffi: FFI, client: Client, config: dict[str, Any]
) -> None:
    ffi.register("test.receive", _receive)
    client.compile(unary("test.receive", **config))(BASE)[0].to_numpy()
    np.testing.assert_equal(received, config)


def test_operands_come_in_the_stated_order(ffi: FFI, client: Client) -> None:
    """Between transpositions the compiler would pass the array by columns."""

    def twice(x: Any, out: Any) -> None:
        out[...] = 2 * x

    name = register(ffi, twice)
    builder = Builder([type_of(BASE)])
    turned = builder.transpose(builder.parameters[0], (1, 0))
    (value,) = builder.custom_call(
        name,
        [turned],
        [turned.type],
        backend_config={},
        operand_layouts=[(1, 0)],
        result_layouts=[(1, 0)],
    )
    (result,) = client.compile(builder.finish([builder.transpose(value, (1, 0))]))(BASE)
    np.testing.assert_array_equal(result.to_numpy(), 2 * BASE)


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("bad\0 value"), errors.InvalidArgument),
        (TypeError("bad type"), errors.InvalidArgument),
        (NotImplementedError("later"), errors.Unimplemented),
        (MemoryError("no room"), errors.ResourceExhausted),
        (ZeroDivisionError("nought"), errors.Internal),
        (KeyboardInterrupt("stop"), errors.Cancelled),
        (
            errors.PjrtError.from_code(11, "too far", plugin="p", function="f"),
            errors.OutOfRange,
        ),
    ],
)
def test_an_exception_reaches_the_caller(
    ffi: FFI, client: Client, raised: BaseException, expected: type[errors.PjrtError]
) -> None:
    def fail(x: Any, out: Any) -> None:
        raise raised

    executable = client.compile(unary(register(ffi, fail)))
    for _ in range(2):
        with pytest.raises(expected) as caught:
            executable(BASE)[0].to_numpy()
        text = str(caught.value)
        assert f"{type(raised).__name__}: {raised}".replace("\0", " ") in text
        assert "(in fail, " in text
        assert Path(__file__).name in text


def test_operands_are_not_written_to(ffi: FFI, client: Client) -> None:
    def write(x: Any, out: Any) -> None:
        x[...] = 0

    with pytest.raises(errors.InvalidArgument, match="read-only"):
        client.compile(unary(register(ffi, write)))(BASE)[0].to_numpy()


def test_attributes_that_the_function_does_not_take(ffi: FFI, client: Client) -> None:
    name = register(ffi, lambda x, out: None)
    with pytest.raises(errors.InvalidArgument, match="unexpected keyword argument 'factor'"):
        client.compile(unary(name, factor=1))(BASE)[0].to_numpy()


def test_a_function_must_not_call_the_plugin(no_leaks: Census, ffi: FFI, client: Client) -> None:
    kept = [client.put(BASE)]

    def reenter(x: Any, out: Any) -> None:
        kept[0].to_numpy()

    with pytest.raises(errors.Internal, match="must not use buffers"):
        client.compile(unary(register(ffi, reenter)))(BASE)[0].to_numpy()
    np.testing.assert_array_equal(kept.pop().to_numpy(), BASE)


def test_finalizers_in_a_function_wait(no_leaks: Census, ffi: FFI, client: Client) -> None:
    kept = [client.put(BASE), client.put(BASE)]

    def drop(x: Any, out: Any) -> None:
        kept.clear()
        gc.collect()
        out[...] = x

    (result,) = client.compile(unary(register(ffi, drop)))(BASE)
    np.testing.assert_array_equal(result.to_numpy(), BASE)


def test_threads(ffi: FFI, client: Client) -> None:
    def twice(x: Any, out: Any) -> None:
        out[...] = 2 * x

    executable = client.compile(unary(register(ffi, twice)))
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            (result,) = executable(BASE + number)
            if not np.array_equal(result.to_numpy(), 2 * (BASE + number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


# -- registration ----------------------------------------------------------------------------------


def test_the_version_of_the_plugin(ffi: FFI) -> None:
    assert ffi.version == (0, 2)
    assert ffi.platform == "HOST"


def test_a_name_is_taken_once(ffi: FFI, pair: Client) -> None:
    def first(x: Any, out: Any) -> None:
        out[...] = 1

    name = register(ffi, first)
    ffi.register(name, first)
    # All clients of a plugin have one registry.
    pair.extension(FFI).register(name, first)
    with pytest.raises(errors.RegistrationError, match=rf"'{name}' .* is taken by <function"):
        pair.extension(FFI).register(name, print)
    (result,) = pair.compile(unary(name))(BASE)
    assert (result.to_numpy() == 1).all()


@pytest.mark.parametrize("stated", [(0, 0), (0, 3), (1, 0)])
def test_a_version_that_the_plugin_does_not_find(
    ffi: FFI, client: Client, stated: tuple[int, int]
) -> None:
    """Register_Handler says OK to these."""

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def handler(frame: int) -> None:
        asked = call_frame.metadata(frame)
        asked.api_version.major_version, asked.api_version.minor_version = stated

    name = next(names)
    text = rf"speaks FFI 0\.2, the handler states {stated[0]}\.{stated[1]}"
    for _ in range(2):
        with pytest.raises(errors.RegistrationError, match=text):
            ffi.register(name, handler)
    ffi.register(name, _receive)
    (result,) = client.compile(unary(name))(BASE)
    np.testing.assert_array_equal(result.to_numpy(), BASE)


def test_a_plugin_that_does_not_talk_about_versions(plugin: Plugin) -> None:
    with offering(plugin, FFI.TABLE, {"register_handler": lambda args: None}) as client:
        forgetful = client.extension(FFI)
        with pytest.raises(errors.RegistrationError, match="does not tell its own"):
            _ = forgetful.version
        with pytest.raises(errors.RegistrationError, match="does not find it: No FFI handler"):
            forgetful.register(next(names), _receive)


def test_python_functions_need_host_memory(plugin: Plugin) -> None:
    with offering(plugin, FFI.TABLE, {}) as client:
        client.shares_host_memory = False
        with pytest.raises(errors.RegistrationError, match="need arrays in host memory"):
            client.extension(FFI).register(next(names), _receive)


def test_what_is_no_function(ffi: FFI) -> None:
    with pytest.raises(errors.RegistrationError, match="found 'print', expected a function"):
        ffi.register(next(names), "print")  # type: ignore[arg-type]


def test_an_unknown_name(client: Client) -> None:
    with pytest.raises(errors.NotFound, match=r"No FFI handler registered for test\.nobody"):
        client.compile(unary("test.nobody"))


C_SOURCE = r"""
#include "xla/ffi/api/c_api.h"

static XLA_FFI_Error* fail(XLA_FFI_CallFrame* frame, const char* message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, 0, message,
                                    XLA_FFI_Error_Code_FAILED_PRECONDITION};
  return frame->api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error* negate(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata* asked = ((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
    asked->api_version.major_version = 0;
    asked->api_version.minor_version = 1;
    return 0;
  }
  XLA_FFI_Buffer* in = (XLA_FFI_Buffer*)frame->args.args[0];
  XLA_FFI_Buffer* out = (XLA_FFI_Buffer*)frame->rets.rets[0];
  if (in->dtype != XLA_FFI_DataType_F32) return fail(frame, "negate takes f32");
  int64_t size = 1;
  for (int64_t i = 0; i < in->rank; ++i) size *= in->dims[i];
  for (int64_t i = 0; i < size; ++i) ((float*)out->data)[i] = -((float*)in->data)[i];
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    files = importlib.metadata.files("jaxlib") or []
    (header,) = [file for file in files if str(file).endswith("xla/ffi/api/c_api.h")]
    folder = tmp_path_factory.mktemp("ffi")
    source, made = folder / "negate.c", folder / "negate.so"
    source.write_text(C_SOURCE)
    include = Path(str(header.locate())).parents[3]
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", "-o", made, source], check=True)
    return ctypes.CDLL(str(made))


def test_a_c_function(ffi: FFI, client: Client, library: ctypes.CDLL) -> None:
    address = ctypes.cast(library.negate, ctypes.c_void_p).value
    assert address is not None
    for function in (library.negate, address):
        name = next(names)
        ffi.register(name, function)
        (result,) = client.compile(unary(name))(BASE)
        np.testing.assert_array_equal(result.to_numpy(), -BASE)
    kind = TensorType((2,), dtypes.of("float64"))
    with pytest.raises(errors.FailedPrecondition, match="negate takes f32"):
        client.compile(program(name, [kind], [kind]))(np.ones(2))[0].to_numpy()

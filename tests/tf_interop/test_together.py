"""TensorFlow, PyTorch and the runtime's buffers in one program, on the same memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import torch

import pjrt_bridge
from pjrt_bridge import tf_interop
from pjrt_bridge.torch_interop import compiled_graphs

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")

WORDS = ["ant", "bee", "cat"]


def address(tensor: Any) -> int:
    """Where a tensor of either framework lies."""
    if isinstance(tensor, torch.Tensor):
        return tensor.data_ptr()
    return int(np.from_dlpack(tensor).ctypes.data)


def lookup() -> Any:
    """Preprocessing: words to embedded rows."""
    entries = tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(3))
    table = tf.lookup.StaticHashTable(entries, default_value=3)
    rows = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    embedding = tf.Variable(rows)

    def run(words: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.gather(embedding, table.lookup(words)) * 2)

    return run


def test_preprocessing_by_tensorflow_and_a_model_of_torch() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    run = lookup()
    fast = tf_interop.function(run)
    compiled = torch.compile(model, backend="pjrt", options={"fallback": "error"})
    with torch.no_grad():
        for words in (["ant", "gnu"], ["cat", "bee"], ["bee", "ant"]):
            text = tf.constant(words)
            features = fast(text)
            rows = torch.from_dlpack(features)
            assert address(rows) == address(features)
            expected = model(torch.tensor(run(text).numpy()))
            torch.testing.assert_close(compiled(rows), expected, rtol=1e-4, atol=1e-5)
    (graph,) = compiled_graphs()
    assert [segment.bytes_copied for segment in graph.segments] == [0]
    assert sum(segment.bytes_shared for segment in graph.segments) > 0


def test_a_model_of_torch_and_postprocessing_by_tensorflow() -> None:
    torch.compiler.reset()
    model = torch.nn.Linear(16, 8)
    compiled = torch.compile(model, backend="pjrt", options={"fallback": "error"})

    @tf_interop.function
    def best(scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.nn.softmax(scores)
        return found, tf.strings.as_string(tf.argmax(found, axis=-1))

    with torch.no_grad():
        scores = compiled(torch.randn(4, 16))
        given = tf.experimental.dlpack.from_dlpack(scores.__dlpack__())
        assert address(given) == address(scores)
        found, names = best(given)
    np.testing.assert_allclose(found, torch.softmax(scores, -1), rtol=1e-5)
    assert [int(name) for name in names.numpy()] == scores.argmax(-1).tolist()
    report = tf_interop.explain(best, given)
    assert report.bytes_copied == 0
    assert report.bytes_shared > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64", "complex64"])
def test_a_result_becomes_a_buffer_in_place(dtype: str) -> None:
    client = pjrt_bridge.client("cpu")
    wanted = tf.as_dtype(dtype)
    fast = tf_interop.function(lambda x: tf.cast(x * 2, wanted), fallback="error")
    found = fast(tf.range(64, dtype=tf.float32))
    buffer = client.put(found)
    assert (str(buffer.dtype), buffer.shape) == (dtype, (64,))
    expected = np.asarray(np.arange(64) * 2).astype(
        ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    )
    np.testing.assert_array_equal(np.asarray(buffer), expected)
    np.testing.assert_array_equal(found.numpy(), expected)
    if dtype not in ("bool", "bfloat16"):
        assert buffer.address == address(found)


def test_a_buffer_is_an_argument() -> None:
    client = pjrt_bridge.client("cpu")
    values = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    buffer = client.put(values)
    given = tf.experimental.dlpack.from_dlpack(buffer.__dlpack__())
    assert address(given) == buffer.address

    @tf_interop.function
    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.exp(x), tf.strings.as_string(tf.shape(x))

    found, shape = run(given)
    np.testing.assert_allclose(found, np.exp(values), rtol=1e-5)
    assert [int(size) for size in shape.numpy()] == [8, 16]
    del buffer
    again, _ = run(given)
    np.testing.assert_array_equal(again, found)


def test_a_result_outlives_what_made_it() -> None:
    fast = tf_interop.function(lambda x: tf.sin(x) @ tf.transpose(x), fallback="error")
    x = tf.random.stateless_normal([32, 32], [1, 2])
    found = fast(x)
    rows = torch.from_dlpack(found)
    expected = (tf.sin(x) @ tf.transpose(x)).numpy()
    del found, fast
    np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-4, atol=1e-5)

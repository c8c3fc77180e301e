"""Indices out of range: found by the program itself, and PyTorch's own error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import pjrt_bridge
from pjrt_bridge.errors import HostFallbackWarning, InvalidArgument, OutOfRange
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge_cpu.positions import TARGET
from tests.cpu.helpers import emitted
from tests.torch_interop.helpers import assert_same

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.linspace(-1, 1, 12).reshape(4, 3)

READING: dict[str, Callable[[torch.Tensor], Any]] = {
    "advanced": lambda i: X[i] * 2,
    "bags": lambda i: functional.embedding_bag(i.reshape(1, 2), X),
    "embedding": lambda i: functional.embedding(i, X) + 1,
    "filled": lambda i: X.index_fill(0, i, 3.0),
    "gather": lambda i: X.gather(0, i.reshape(2, 1)),
    "put": lambda i: X.index_put((i,), X[:2]),
    "scatter": lambda i: X.scatter(0, i.reshape(2, 1), 5.0),
    "selected": lambda i: X.index_select(0, i + 0),
}


def _raises_like_eager(
    function: Callable[..., Any], compiled: Callable[..., Any], *args: torch.Tensor
) -> None:
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(*args)
    with pytest.raises(type(eager.value)) as found:
        compiled(*args)
    assert str(found.value) == str(eager.value)


@pytest.mark.parametrize("name", READING)
def test_a_compiled_call_raises_what_eager_raises_and_goes_on(name: str) -> None:
    function = READING[name]
    compiled = torch.compile(function, backend="pjrt")
    inside = torch.tensor([1, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostFallbackWarning)
        # The fast path has been taken before, and is taken after.
        for _ in range(4):
            assert_same(compiled(inside), function(inside))
        for wrong in ([0, 4], [-5, 1]):
            _raises_like_eager(function, compiled, torch.tensor(wrong))
            assert_same(compiled(inside), function(inside))
    (graph,) = compiled_graphs()
    (segment,) = graph.segments
    assert segment.placement == "device"
    assert not segment.fallback_reasons


ONE = torch.tensor([[2.0, 3.0]])
"""One row, so that results do not depend on the position that is right."""

OF_ONE_PLACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "advanced": lambda i: ONE[i],
    "embedding": lambda i: functional.embedding(i, ONE),
    "gather": lambda i: ONE.gather(0, i.reshape(1, 2)),
    "gather of a number": lambda i: ONE[0, 0].gather(0, i[0]),
    "put": lambda i: ONE.index_put((i,), ONE.expand(2, 2)),
    "scatter": lambda i: ONE.scatter(0, i.reshape(1, 2), 5.0),
    "selected": lambda i: ONE.index_select(0, i),
    "taken": lambda i: torch.take(ONE[0, 0], i),
}


@pytest.mark.parametrize("name", OF_ONE_PLACE)
def test_a_position_that_no_result_depends_on_is_checked(name: str) -> None:
    function = OF_ONE_PLACE[name]
    compiled = torch.compile(function, backend="pjrt")
    inside = torch.tensor([0, 0])
    for _ in range(3):
        assert_same(compiled(inside), function(inside))
    for wrong in (1000, -1000):
        _raises_like_eager(function, compiled, torch.tensor([wrong, wrong]))
    assert_same(compiled(inside), function(inside))


def test_rows_are_copied_to_no_negative_position() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.index_copy(0, index, x[:1])

    compiled = torch.compile(function, backend="pjrt")
    for index in ([0], [3]):
        assert_same(compiled(X, torch.tensor(index)), function(X, torch.tensor(index)))
    _raises_like_eager(function, compiled, X, torch.tensor([-1]))


def test_a_class_that_is_none_is_no_loss() -> None:
    model = torch.nn.Linear(3, 5)
    step = torch.compile(
        lambda x, y: functional.cross_entropy(model(x), y), backend="pjrt", fullgraph=True
    )
    ignored = torch.tensor([0, -100, 4, 1])
    assert_same(step(X, ignored), functional.cross_entropy(model(X), ignored))
    with pytest.raises(IndexError, match=r"Target 5 is out of bounds\."):
        step(X, torch.tensor([0, 5, 4, 1]))
    step(X, ignored).backward()
    assert model.weight.grad is not None


def test_arguments_that_were_written_before_say_so() -> None:
    def function(cache: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, index, rows)
        return cache.sum()

    cache, rows = torch.zeros(256, 256), torch.ones(2, 256)
    compiled = torch.compile(function, backend="pjrt")
    compiled(cache, torch.tensor([0, 1]), rows)
    with pytest.raises(IndexError) as raised:
        compiled(cache, torch.tensor([0, 256]), rows)
    assert "found indices from 0 to 256, expected 0 to 255" in str(raised.value)
    assert "may hold old, new or partial values" in raised.value.__notes__[0]
    assert compiled(cache, torch.tensor([2, 255]), rows).item() == 4 * 256


def test_the_user_can_have_no_checks() -> None:
    function = READING["embedding"]
    compiled = torch.compile(function, backend="pjrt", options={"check_indices": False})
    assert_same(compiled(torch.tensor([1, 9])), function(torch.tensor([1, 3])))


def test_sizes_that_are_padded_are_not_refused() -> None:
    table = torch.randn(50, 8)

    def function(ids: torch.Tensor) -> torch.Tensor:
        # Behind the end the first position is -1.
        places = (ids > 0).long().cumsum(0) - 1
        return functional.embedding(places, table).sum(0)

    compiled = torch.compile(function, backend="pjrt", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostFallbackWarning)
        for size in range(3, 40):
            ids = torch.arange(1, size + 1)
            assert_same(compiled(ids), function(ids))


def test_positions_that_a_graph_finds_itself_cost_nothing() -> None:
    found = emitted(lambda x: x.gather(1, x.argmax(1, keepdim=True)), X)
    assert found
    assert TARGET not in found
    assert TARGET in emitted(READING["embedding"], torch.tensor([0, 1]))


@pytest.mark.parametrize("mode", ["async", "fused", "sync"])
def test_on_the_device_reading_the_result_raises(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    x = X.to("pjrt")
    wrong = torch.tensor([0, 9]).to("pjrt")
    # From the third call on the compiled module makes them.
    for _ in range(5):
        assert_same(x[torch.tensor([1, 3]).to("pjrt")].cpu(), X[[1, 3]])
        with pytest.raises(IndexError, match=r"index 9 is out of bounds|found indices from 0 to 9"):
            x[wrong].cpu()
    assert_same(x.cpu(), X)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 500)])
def test_positions_are_copied_and_compared(dtype: str, shape: tuple[int, ...]) -> None:
    client = pjrt_bridge.client("cpu")
    type = TensorType(shape, pjrt_bridge.dtypes.of(dtype))
    builder = Builder([type])
    low, high = -3, 1 << 20
    builder_result = kernels_of(client).checked_positions(
        builder, builder.parameters[0], low, high, "here"
    )
    executable = client.compile(builder.finish([builder_result]))
    drawn = np.random.default_rng(0).integers(low, high + 1, shape).astype(dtype)
    for at, value in ((0, low), (-1, high)):
        given = drawn.copy()
        given.flat[at] = value
        (result,) = executable(given)
        np.testing.assert_array_equal(np.asarray(result), given)
        for wrong in (low - 1, high + 1):
            given.flat[at] = wrong
            with pytest.raises(OutOfRange, match=rf"here: found indices from .*{wrong}"):
                np.asarray(executable(given)[0])


def test_an_error_says_what_is_refused() -> None:
    client = pjrt_bridge.client("cpu")
    builder = Builder([TensorType((2,), pjrt_bridge.dtypes.of("int64"))])
    checked = kernels_of(client).checked_positions(
        builder, builder.parameters[0], 0, 0, "here", "no ones"
    )
    executable = client.compile(builder.finish([checked]))
    np.testing.assert_array_equal(np.asarray(executable(np.zeros(2, np.int64))[0]), [0, 0])
    with pytest.raises(OutOfRange, match=r"here: no ones(?!: found)"):
        np.asarray(executable(np.array([0, 1]))[0])


def _refused(
    given: TensorType, ends: TensorType | None, result: TensorType, config: dict[str, Any]
) -> str:
    """Why a call is refused that the bridge does not write."""
    client = pjrt_bridge.client("cpu")
    kernels_of(client)
    types = [given] if ends is None else [given, ends]
    builder = Builder(types)
    call = builder.custom_call(TARGET, builder.parameters, [result], backend_config=config)
    executable = client.compile(builder.finish(call))
    with pytest.raises(InvalidArgument) as refused:
        np.asarray(executable(*(np.zeros(type.shape, type.dtype.numpy) for type in types))[0])
    return str(refused.value)


def _type(dtype: str, *shape: int) -> TensorType:
    return TensorType(shape, pjrt_bridge.dtypes.of(dtype))


ENDS = _type("int64", 2)
DONE = _type("bool", 1)
HERE = {"where": "here"}


@pytest.mark.parametrize(
    ("given", "ends", "result", "config", "reason"),
    [
        (_type("int64", 3), ENDS, DONE, {}, "not those that the bridge writes"),
        (_type("int64", 3), ENDS, DONE, {"where": 1}, "not those that the bridge"),
        (_type("int64", 3), None, DONE, HERE, "two operands and one result"),
        (_type("int64", 3), _type("int64", 1), DONE, HERE, "is not two int64"),
        (_type("int64", 3), _type("int32", 2), DONE, HERE, "is not two int64"),
        (_type("float32", 2), ENDS, DONE, HERE, "are not int32 or int64"),
        (_type("int64", 3), ENDS, _type("int64", 1), HERE, "is not one bool"),
        (_type("int64", 3), ENDS, _type("bool", 2), HERE, "is not one bool"),
    ],
)
def test_a_call_that_the_bridge_does_not_write_is_refused(
    given: TensorType,
    ends: TensorType | None,
    result: TensorType,
    config: dict[str, Any],
    reason: str,
) -> None:
    assert reason in _refused(given, ends, result, config)


OF_CHANGING_SIZES: dict[str, Callable[[torch.Tensor], Any]] = {
    **READING,
    "bags": lambda i: functional.embedding_bag(i[None], X),
    "gather": lambda i: X[:, 0].gather(0, i),
    "of the call": lambda i: torch.ones_like(i).gather(0, i),
    "put": lambda i: X.index_put((i,), X[0]),
    "scatter": lambda i: X[:, 0].scatter(0, i, 5.0),
    "shifted": lambda i: X[i * 2 - 3],
    "written": lambda i: torch.zeros(4).index_put_((i,), torch.tensor(1.0)),
}


@pytest.mark.parametrize("name", OF_CHANGING_SIZES)
def test_calls_of_other_sizes_raise_what_eager_raises(name: str) -> None:
    function = OF_CHANGING_SIZES[name]
    compiled = torch.compile(function, backend="pjrt", dynamic=True)
    for size in (4, 7, 5, 12):
        inside = torch.arange(size) % 2 + 1
        assert_same(compiled(inside), function(inside))
        for place in (0, size - 1):
            wrong = inside.clone()
            wrong[place] = 4 if name != "of the call" else size
            _raises_like_eager(function, compiled, wrong)
        assert_same(compiled(inside), function(inside))


@pytest.mark.parametrize("dynamic", [None, False, True])
def test_rows_are_counted_beyond_the_end_of_a_table(dynamic: bool | None) -> None:
    """A sequence may be longer than its table of positions."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.embedding(torch.arange(x.shape[0]), X)

    compiled = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for size in (3, 4, 5, 4, 20):
        x = torch.zeros(size)
        if size <= 4:
            assert_same(compiled(x), function(x))
        else:
            _raises_like_eager(function, compiled, x)


def test_classes_out_of_range_in_batches_of_other_sizes() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x, y)

    compiled = torch.compile(function, backend="pjrt", dynamic=True)
    for size in (4, 7, 5, 12):
        x, y = torch.randn(size, 3), torch.arange(size) % 3
        y[1] = -100
        assert_same(compiled(x, y), function(x, y))
        y[-1] = 3
        with pytest.raises(IndexError, match=r"Target 3 is out of bounds\."):
            compiled(x, y)

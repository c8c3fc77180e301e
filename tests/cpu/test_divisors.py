"""Integers divided by zero: found by the program itself, and PyTorch's own error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pjrt_bridge
from pjrt_bridge.errors import HostFallbackWarning, InvalidArgument, OutOfRange
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.positions import DIVISORS
from tests.cpu.helpers import emitted
from tests.torch_interop.helpers import assert_same

pytestmark = pytest.mark.usefixtures("fresh")

Function = Callable[[torch.Tensor, torch.Tensor], Any]

DIVIDING: dict[str, Function] = {
    "down": lambda x, y: x // y,
    "towards zero": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "rest": lambda x, y: x % y,
    "rest of fmod": torch.fmod,
    "of a number": lambda x, y: 5 // y,
    "rest of a number": lambda x, y: 5 % y,
    "by one element": lambda x, y: x // y[-1],
    "in place": lambda x, y: x.clone().remainder_(y),
    "by a bool": lambda x, y: x // (y != 0),
}


def _raises_like_eager(function: Function, compiled: Function, *args: torch.Tensor) -> None:
    with pytest.raises(RuntimeError) as eager:
        function(*args)
    with pytest.raises(RuntimeError) as found:
        compiled(*args)
    assert str(found.value) == str(eager.value) == "ZeroDivisionError"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize("name", DIVIDING)
def test_a_compiled_call_raises_what_eager_raises_and_goes_on(
    name: str, dtype: torch.dtype
) -> None:
    function = DIVIDING[name]
    compiled = torch.compile(function, backend="pjrt")
    x, y = torch.tensor([7, 9, 3], dtype=dtype), torch.tensor([2, 5, 1], dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostFallbackWarning)
        # The fast path has been taken before, and is taken after.
        for _ in range(3):
            assert_same(compiled(x, y), function(x, y))
        _raises_like_eager(function, compiled, x, torch.tensor([2, 5, 0], dtype=dtype))
        assert_same(compiled(x, y), function(x, y))


@pytest.mark.parametrize("name", DIVIDING)
def test_calls_of_other_sizes_raise_what_eager_raises(name: str) -> None:
    function = DIVIDING[name]
    compiled = torch.compile(function, backend="pjrt", dynamic=True)
    for size in (4, 7, 5, 12):
        x, y = torch.arange(size), torch.arange(size) % 3 + 1
        assert_same(compiled(x, y), function(x, y))
        y[-1] = 0
        _raises_like_eager(function, compiled, x, y)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_number_that_changes_becomes_zero(dynamic: bool | None) -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return x // n + x % n

    compiled = torch.compile(function, backend="pjrt", dynamic=dynamic)
    x = torch.arange(7)
    for number in (2, 3, 5, 4):
        assert_same(compiled(x, number), function(x, number))
    with warnings.catch_warnings():
        # It says that PyTorch refuses the division.
        warnings.simplefilter("ignore", HostFallbackWarning)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(x, 0)
    assert_same(compiled(x, 6), function(x, 6))


def test_nothing_is_divided_where_the_result_is_empty() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[:0, None] // y

    x, y = torch.arange(3), torch.tensor([1, 0])
    assert_same(torch.compile(function, backend="pjrt")(x, y), function(x, y))


def test_floats_are_divided_by_zero() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x // y

    x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0])
    assert_same(torch.compile(function, backend="pjrt")(x, y), function(x, y))


def test_the_user_can_have_no_checks() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x // y

    compiled = torch.compile(function, backend="pjrt", options={"check_indices": False})
    found = compiled(torch.tensor([4, 6]), torch.tensor([2, 0]))
    assert found[0].item() == 2


PROVEN: dict[str, Function] = {
    "clamped": lambda x, y: x // y.clamp(min=1),
    "negative": lambda x, y: x % y.clamp(max=-3),
    "a constant": lambda x, y: x // torch.tensor([3, 4, 5]) + y,
    "counted": lambda x, y: x // torch.arange(1, 4) + y,
    "filled": lambda x, y: x % torch.full_like(y, 7) + y,
    "a number": lambda x, y: x // 7 + y,
}


@pytest.mark.parametrize("name", PROVEN)
def test_divisors_that_are_known_not_to_be_zero_cost_nothing(name: str) -> None:
    x, y = torch.arange(3), torch.tensor([2, 5, -7])
    function = PROVEN[name]
    found = emitted(function, x, y)
    assert found
    assert DIVISORS not in found
    assert_same(torch.compile(function, backend="pjrt")(x, y), function(x, y))
    assert DIVISORS in emitted(DIVIDING["down"], x, y)


def test_what_may_overflow_is_not_known() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x // (y.clamp(min=1) + 1)

    x, y = torch.arange(3), torch.tensor([2, 5, 7])
    assert DIVISORS in emitted(function, x, y)


@pytest.mark.parametrize("mode", ["async", "fused", "sync"])
def test_on_the_device_reading_the_result_raises(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    x, y = torch.arange(3).to("pjrt"), torch.tensor([2, 1, 0]).to("pjrt")
    for _ in range(5):
        assert_same((x // (y + 1)).cpu(), torch.tensor([0, 0, 2]))
        with pytest.raises(Exception, match=r"an integer is divided by zero|ZeroDivisionError"):
            (x // y).cpu()
    assert_same(x.cpu(), torch.arange(3))


@pytest.mark.parametrize(
    "dtype", ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
)
@pytest.mark.parametrize("shape", [(), (7,), (3, 500)])
def test_divisors_are_copied_and_looked_at(dtype: str, shape: tuple[int, ...]) -> None:
    client = pjrt_bridge.client("cpu")
    builder = Builder([TensorType(shape, pjrt_bridge.dtypes.of(dtype))])
    checked = kernels_of(client).checked_divisors(builder, builder.parameters[0], "here")
    executable = client.compile(builder.finish([checked]))
    given = np.random.default_rng(0).integers(1, 100, shape).astype(dtype)
    np.testing.assert_array_equal(np.asarray(executable(given)[0]), given)
    for at in (0, -1):
        wrong = given.copy()
        wrong.flat[at] = 0
        with pytest.raises(OutOfRange, match="here: an integer is divided by zero"):
            np.asarray(executable(wrong)[0])


@pytest.mark.parametrize(
    ("given", "result", "config", "reason"),
    [
        (["int64"], "int64", {}, "its attributes are not those that the bridge writes"),
        (["int64", "int64"], "int64", {"where": "here"}, "expected one operand and one result"),
        (["float32"], "float32", {"where": "here"}, "are not integers of one type and size"),
        (["int64"], "int32", {"where": "here"}, "are not integers of one type and size"),
    ],
)
def test_a_call_that_the_bridge_does_not_write_is_refused(
    given: list[str], result: str, config: dict[str, Any], reason: str
) -> None:
    client = pjrt_bridge.client("cpu")
    kernels_of(client)
    types = [TensorType((3,), pjrt_bridge.dtypes.of(dtype)) for dtype in (*given, result)]
    builder = Builder(types[:-1])
    call = builder.custom_call(DIVISORS, builder.parameters, types[-1:], backend_config=config)
    executable = client.compile(builder.finish(call))
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(*(np.ones(3, dtype) for dtype in given))[0])

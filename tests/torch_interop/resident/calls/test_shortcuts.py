"""Calls that the compiled module leads to their programs give what Python and the host give."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.torch_interop import device
from pjrt_bridge.torch_interop.device import buffer_of
from pjrt_bridge.torch_interop.device.operators.operators import call
from pjrt_bridge.torch_interop.resident.calls import shortcuts

pytestmark = pytest.mark.skipif(native.module is None, reason="the compiled module is missing")


def _taken(run: Callable[[], Any], times: int = 3) -> int:
    """How many calls of the last run went by a shortcut."""
    before = 0
    for _ in range(times):
        before = call.taken
        run()
    return int(call.taken - before)


def _written(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    part = x[1:, ::2]
    part.add_(part)
    x.t().mul_(2)
    x.zero_() if x.is_complex() else x[0].fill_(-0.0)
    return x


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "two views of one storage": lambda x: x[1:] - x[:-1],
    "the same tensor twice": lambda x: x * x,
    "strides": lambda x: x.t() + x.t().contiguous(),
    "a number": lambda x: x * 2.5 - 3,
    "several results": lambda x: torch.var_mean(x, 0),
    "a list of results": lambda x: torch.split_with_sizes_copy(x, [1, 2]),
    "lists of arguments": lambda x: torch._foreach_add([x, x + 1], [x, x]),
    "writes": _written,
    "an element type": lambda x: x.sum(dtype=torch.float64),
    "a factory": lambda x: (
        torch.full((3,), 7.0, device=x.device) + torch.arange(3, device=x.device)
    ),
    "an inexact result of integers": lambda x: x.int() / x.int().abs().add(1),
    "text": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "out": lambda x: torch.add(x, x, out=x.clone()),
    "what was not written": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "complex": lambda x: x.to(torch.complex64) * 1j,
    "bool": lambda x: (x > 0).logical_and(x < 1),
}


@pytest.mark.parametrize("name", CASES)
def test_as_on_the_host(name: str) -> None:
    run, x = CASES[name], torch.linspace(-2, 3, 12).reshape(3, 4)
    there = x.to("pjrt")
    assert _taken(lambda: run(there))
    found, expected = run(there), run(x)
    pairs = (
        [(found, expected)]
        if isinstance(found, torch.Tensor)
        else zip(found, expected, strict=True)
    )
    for one, other in pairs:
        assert one.stride() == other.stride()
        torch.testing.assert_close(one.cpu(), other)
    torch.testing.assert_close(there.cpu(), x)


def test_floats_of_a_call_are_told_from_each_other() -> None:
    x = torch.ones(2, device="pjrt")
    for value in (0.0, -0.0, float("nan"), 2.0) * 3:
        found = torch.clamp(x, min=value).mul(value)
        torch.testing.assert_close(
            found.cpu(), torch.clamp(torch.ones(2), min=value).mul(value), equal_nan=True
        )
        assert (
            torch.copysign(x, value).cpu().tolist() == torch.copysign(torch.ones(2), value).tolist()
        )


CHANGING: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "product": lambda x, v: x * v,
    "sum": lambda x, v: torch.add(x, x, alpha=v),
    "filled": lambda x, v: torch.full((3,), v, dtype=x.dtype, device=x.device),
    "in place": lambda x, v: x.clone().addcdiv_(x, x.abs() + 1, value=v),
    "list": lambda x, v: torch._foreach_mul([x, x[0]], v)[1],
    "comparison": lambda x, v: x >= v,
    "under conditions": lambda x, v: torch.nn.functional.smooth_l1_loss(
        x, x.flip(0), beta=v if 0 <= v < 9 else 2.5
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CHANGING)
def test_floats_that_change(name: str, dtype: torch.dtype) -> None:
    run, x = CHANGING[name], torch.linspace(-2, 3, 12).reshape(3, 4).to(dtype)
    there = x.to("pjrt")
    for value in (0.1, 0.2, 0.3, 1.7):
        run(there, value)
    values = (0.7, 1.0, 0.0, -0.0, 1e30, float("inf"), float("nan"))
    for value in values:
        torch.testing.assert_close(
            run(there, value).cpu(), run(x, value), equal_nan=True, check_stride=True
        )
    taken = _taken(lambda: run(there, 0.45), times=1)
    assert taken == _taken(lambda: run(there, 0.55), times=1) > 0


INTEGERS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda x, n: x + n,
    "difference": lambda x, n: n - x,
    "product in place": lambda x, n: x.clone().mul_(n),
    "quotient": lambda x, n: x / n,
    "comparison": lambda x, n: x == n,
    "filled": lambda x, n: torch.full((3,), n, dtype=x.dtype, device=x.device),
    "filled, of its own type": lambda x, n: torch.full((3,), n, device=x.device),
    "masked": lambda x, n: x.masked_fill(x > 0, n),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_that_change(name: str, dtype: torch.dtype) -> None:
    run, x = INTEGERS[name], torch.arange(-2, 4).to(dtype)
    there = x.to("pjrt")
    for value in range(1, 9):
        run(there, value)
    for value in (0, -1, 100, 17):
        torch.testing.assert_close(run(there, value).cpu(), run(x, value), equal_nan=True)
    taken = _taken(lambda: run(there, 45), times=1)
    assert taken == _taken(lambda: run(there, 46), times=1) > 0


def test_integers_are_not_divided_by_zero() -> None:
    x = torch.arange(30, device="pjrt")
    for value in range(1, 9):
        assert (x // value).tolist() == [item // value for item in range(30)]
    with pytest.warns(HostFallbackWarning), pytest.raises(RuntimeError, match="ZeroDivision"):
        x // 0


def test_programs_do_not_become_more_with_the_values_of_an_integer() -> None:
    x = torch.arange(5, device="pjrt")
    before = len(device.eager_graphs())
    for value in range(40):
        assert (x * value).tolist() == [value * item for item in range(5)]
    assert len(device.eager_graphs()) - before <= 6


def test_exponents_stay_products() -> None:
    x = torch.tensor([3.0, -5.0], device="pjrt")
    for value in range(1, 8):
        assert x.pow(value).tolist() == [3.0**value, (-5.0) ** value]


def test_numbers_that_pytorch_takes_as_tensors_alone() -> None:
    x = torch.arange(7)
    for value in range(1, 25):
        assert (x.to("pjrt") % value).tolist() == (x % value).tolist()


def test_a_number_of_a_double_is_not_rounded() -> None:
    x = torch.ones(3, dtype=torch.float64, device="pjrt")
    for value in (0.1, 0.2, 0.3, 1 / 3):
        assert (x * value).tolist() == [value] * 3
    assert _taken(lambda: x * 0.7, times=1) == 1


DRAWN: dict[str, Callable[[], torch.Tensor]] = {
    "normal": lambda: torch.randn(4, device="pjrt"),
    "uniform": lambda: torch.rand(2, 3, device="pjrt"),
    "integers": lambda: torch.randint(0, 1000, (4,), device="pjrt"),
    "in place": lambda: torch.empty(5, device="pjrt").normal_(1.0, 2.0),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(32, device="pjrt"), 0.5),
    "several": lambda: torch.bernoulli(torch.rand(8, device="pjrt")),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_for_a_seed_is_what_python_draws(name: str) -> None:
    draw = DRAWN[name]
    assert _taken(draw)
    torch.manual_seed(3)
    found = [draw().tolist() for _ in range(3)]
    shortcuts.held_off.append("this test")
    try:
        torch.manual_seed(3)
        expected = [draw().tolist() for _ in range(3)]
    finally:
        shortcuts.held_off.clear()
    assert found == expected
    assert found[0] != found[1] != found[2]


def test_a_call_that_goes_another_way_draws_once() -> None:
    def draw(tensor: torch.Tensor, kept: list[Any]) -> list[float]:
        torch.manual_seed(5)
        for _ in range(3):
            kept.append(buffer_of(tensor))
            tensor.normal_()
        return tensor.tolist()

    x = torch.zeros(4, device="pjrt")
    assert _taken(lambda: x.normal_())
    kept: list[Any] = []
    torch.manual_seed(5)
    for _ in range(3):
        x.normal_()
    assert draw(x, kept) == draw(torch.zeros(4, device="pjrt"), []) == x.tolist()
    assert len({tuple(item.to_numpy().tolist()) for item in kept}) == 3


def test_integers_and_booleans_are_told_from_each_other() -> None:
    x = torch.ones(2, 2, device="pjrt")
    for _ in range(3):
        assert torch.add(x, True).dtype == torch.add(x, 1).dtype == torch.float32
        assert torch.full_like(x, 1, dtype=torch.int64).sum(0, True).shape == (1, 2)
        assert torch.full_like(x, 1, dtype=torch.int64).sum(0, False).shape == (2,)


def test_calls_under_other_default_element_types_are_other_calls() -> None:
    counts = torch.arange(1, 4, device="pjrt")
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64) * 4:
            torch.set_default_dtype(dtype)
            assert (counts / 2).dtype == torch.sqrt(counts).dtype == dtype
            assert (counts * 0.5).tolist() == [0.5, 1.0, 1.5]
        assert _taken(lambda: counts / 2, times=1) == 1
    finally:
        torch.set_default_dtype(before)


def test_a_number_of_the_host_changes() -> None:
    x = torch.ones(2, device="pjrt")
    for value in (1.0, 2.0, 3.0, 4.0):
        assert (x * torch.tensor(value)).tolist() == [value, value]
    assert _taken(lambda: x * torch.tensor(9.0)) == 1


def test_other_strides_and_offsets_are_other_calls() -> None:
    x = torch.arange(24.0).reshape(4, 6)
    there = x.to("pjrt")
    for at in (0, 1, 2, 1, 0):
        for step in (1, 2, 1):
            assert (there[at::step] + 1).tolist() == (x[at::step] + 1).tolist()


def test_a_storage_that_holds_other_elements() -> None:
    x = torch.ones(4, device="pjrt")
    y = x.view(2, 2)
    for value in range(1, 6):
        x.add_(1)
        assert y.sum().item() == 4 * (value + 1)
    y.set_(torch.zeros(6, device="pjrt"))
    assert (y + 1).tolist() == [1] * 6


def test_everything_is_given_back() -> None:
    x = torch.ones(8, 8, device="pjrt")

    def step() -> None:
        y = x.clone()
        y += x @ x
        (y * 2).sum().item()

    for _ in range(4):
        step()
    torch.pjrt.synchronize()  # type: ignore[attr-defined]
    gc.collect()
    before = live()
    for _ in range(200):
        step()
    torch.pjrt.synchronize()  # type: ignore[attr-defined]
    assert live() == before


def test_python_takes_all_calls_when_asked() -> None:
    x = torch.ones(3, device="pjrt")
    assert _taken(lambda: x + 1) == 1
    shortcuts.held_off.append("this test")
    try:
        assert _taken(lambda: x + 1) == 0
    finally:
        shortcuts.held_off.clear()


def test_tensors_on_two_devices_are_refused_after_a_shortcut() -> None:
    x = torch.ones(3, device="pjrt")
    assert _taken(lambda: x + x) == 1
    with pytest.raises(Exception, match=r"device"):
        x + torch.ones(3)


def test_a_deleted_buffer_is_refused() -> None:
    x = torch.ones(3).to("pjrt")
    assert _taken(lambda: x + x) == 1
    buffer_of(x).delete()
    with pytest.raises(Exception, match="deleted"):
        x + x


def test_several_threads() -> None:
    x = torch.ones(16, 16, device="pjrt")
    wrong: list[Any] = []

    def work(number: int) -> None:
        y = torch.full((16, 16), float(number), device="pjrt")
        for _ in range(100):
            z = x * number
            z.add_(y)
            z -= y
        if z.cpu().ne(number).any():
            wrong.append(z)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_compiled_graph_takes_changed_and_rearranged_tensors() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ y, x.sum()

    run = torch.compile(f, backend="pjrt")
    x, y = torch.randn(3, 4), torch.randn(4, 4)
    there, other = x.to("pjrt"), y.to("pjrt")
    for _ in range(3):
        # A view of the same sizes, and other elements in the same storage.
        for right, expected in ((other, y), (other.t(), y.t()), (other, y)):
            found = run(there, right)
            torch.testing.assert_close(found[0].cpu(), x @ expected)
        there.add_(1)
        x.add_(1)
        whole = torch.cat([y, y]).to("pjrt")
        torch.testing.assert_close(run(there, whole[4:])[0].cpu(), x @ y)

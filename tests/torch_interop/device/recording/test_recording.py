"""Fused eager: operators that are recorded give what each by itself gives, in fewer programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from pjrt_bridge.errors import PjrtError, ResourceExhausted
from pjrt_bridge.runtime import native
from pjrt_bridge.torch_interop.device import eager_graphs
from pjrt_bridge.torch_interop.device.operators import operators
from pjrt_bridge.torch_interop.device.recording import merging, recording
from pjrt_bridge.torch_interop.ledger import EAGER
from pjrt_bridge.torch_interop.resident.calls import shortcuts
from pjrt_bridge.torch_interop.resident.storages import storage
from tests.extent import examples
from tests.plugins import run_python


@pytest.fixture(autouse=True)
def fused(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", "fused")
    EAGER.forget()


@torch.library.custom_op("pjrt_bridge_tests::positive", mutates_args=(), device_types="cpu")
def positive(x: torch.Tensor) -> torch.Tensor:
    """The square root of numbers of which none may be negative."""
    if (x < 0).any():
        raise ValueError("found a negative number")
    return x.sqrt()


@positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_become_one_program_when_a_value_is_read() -> None:
    x = torch.arange(6.0).reshape(2, 3).to("pjrt")
    y = ((x + 1) * 2).t().exp().log().sum(0)
    assert not EAGER.graphs
    assert y.tolist() == pytest.approx([12.0, 30.0])
    (record,) = EAGER.graphs
    assert record.name.startswith("fused_")
    # The same again is the same program.
    y = ((x + 1) * 2).t().exp().log().sum(0)
    assert y.tolist() == pytest.approx([12.0, 30.0])
    assert len(EAGER.graphs) == 1


def test_what_nobody_refers_to_is_not_computed() -> None:
    x = torch.ones(3, device="pjrt")
    x * 2
    kept = x * 3
    assert kept.tolist() == [3, 3, 3]
    (record,) = EAGER.graphs
    assert record.segments[0].operators["aten.mul.Tensor"] == 1


def test_writes_after_reads() -> None:
    x = torch.zeros(4, device="pjrt")
    before = x + 1
    view = x[1:3]
    view.add_(5)
    after = x + 1
    x.copy_(torch.full((4,), 7.0).to("pjrt"))
    assert before.tolist() == [1, 1, 1, 1]
    assert after.tolist() == [1, 6, 6, 1]
    assert view.tolist() == [7, 7]


def test_host_tensors_may_change_after_they_are_given() -> None:
    x = torch.arange(4.0).to("pjrt")
    at, factor = torch.tensor([0, 1]), torch.tensor(2.0)
    taken, scaled = x[at], x * factor
    at.fill_(3)
    factor.fill_(9.0)
    assert taken.tolist() == [0, 1]
    assert scaled.tolist() == [0, 2, 4, 6]


def test_seeds_hold_where_the_operator_is_called() -> None:
    def drawn() -> torch.Tensor:
        torch.manual_seed(3)
        return torch.rand(8, device="pjrt")

    first, second, third = drawn(), drawn(), torch.rand(8, device="pjrt")
    assert first.tolist() == second.tolist() != third.tolist()


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_an_operator_that_pytorch_runs_raises_in_its_call() -> None:
    x = torch.ones(2, 2, device="pjrt")
    good = x + 1
    with pytest.raises(ValueError, match="found a negative number"):
        positive(x - 2)
    assert positive(good - 1).tolist() == [[1, 1], [1, 1]]
    # Refused for its element type.
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.arange(3, device="pjrt").softmax(0)
    assert (good * 3).tolist() == [[6, 6], [6, 6]]
    assert (x + good).tolist() == [[3, 3], [3, 3]]


def test_an_operator_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = merging.compiled

    def failing(recorded: Any, *rest: Any) -> Any:
        if any("exp" in part.name for part, _ in recorded.operators):
            raise RuntimeError("no room for exp")
        return compiled(recorded, *rest)

    monkeypatch.setattr(merging, "compiled", failing)
    x = torch.ones(2, 2, device="pjrt")
    good = x + 1
    lost = x.exp()
    follows = lost * 2
    other = good * 3
    assert other.tolist() == [[6, 6], [6, 6]]
    for value in (lost, follows):
        with pytest.raises(RuntimeError, match="no room for exp"):
            value.tolist()
    assert (x + good).tolist() == [[3, 3], [3, 3]]


def test_an_error_of_the_plugin_names_operator_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = merging.compiled

    def failing(recorded: Any, *rest: Any) -> Any:
        if any("exp" in part.name for part, _ in recorded.operators):
            raise PjrtError.from_code(8, "no room", plugin="cpu", function="Execute")
        return compiled(recorded, *rest)

    monkeypatch.setattr(merging, "compiled", failing)
    x = torch.ones(2, 3, device="pjrt")
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    lost = x.exp()
    place = rf"aten\.exp\.default\(f32\[2,3\]\) on device 'pjrt:0', called at .*{__file__}:{line}"
    with pytest.raises(ResourceExhausted, match=f"no room.*: {place}"):
        lost.tolist()


def test_long_graphs_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LONGEST", 10)
    x = torch.zeros((), device="pjrt")
    for _ in range(35):
        x = x + 1
    assert x.item() == 35
    # The first makes the number, too; two of ten operators are one program; then there is a rest.
    assert len(EAGER.graphs) == 3


def test_training_compiles_once_and_then_no_more() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 1)).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    x = torch.randn(32, 4).to("pjrt")
    wanted = x[:, :1] * 2
    losses, graphs = [], []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        graphs.append(len(EAGER.graphs))
    assert losses[-1] < losses[0] / 2
    # The first two steps find out which numbers change.
    assert graphs[3] == graphs[-1] < 12


def test_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(number: int) -> list[float]:
        x = torch.full((4,), float(number)).to("pjrt")
        for _ in range(10):
            x = (x * 2 - number).t()
        found: list[float] = x.tolist()
        return found

    with ThreadPoolExecutor(4) as pool:
        for number, found in enumerate(pool.map(work, range(12))):
            assert found == [float(number)] * 4


STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose": lambda x: x.transpose(0, -1),
    "add": lambda x: x + 1,
    "multiply": lambda x: x * x.flip(0),
    "slice": lambda x: x[..., : max(1, x.shape[-1] - 1)],
    "write": lambda x: x.mul_(2),
    "write row": lambda x: x[0].add_(3).unsqueeze(0),
    "expand": lambda x: x[:1].expand(3, *x.shape[1:]) + 0,
    "reshape": lambda x: x.reshape(-1, 1),
    "clone": lambda x: x.t().clone(),
    "sum": lambda x: x.sum(0, keepdim=True),
    "product": lambda x: x @ x.t(),
}


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8))
def test_any_chain_is_as_on_the_host(names: list[str]) -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        made = [x]
        for name in names:
            x = STEPS[name](x)
            # Numbers stay small.
            x = x if name.startswith("write") else x.remainder(17)
            made.append(x)
        return made

    start = torch.arange(9, dtype=torch.int64).reshape(3, 3)
    for found, expected in zip(run(start.clone().to("pjrt")), run(start.clone()), strict=True):
        assert torch.equal(found.cpu(), expected)
        # Strides of dimensions of size 1 say nothing.
        strides = zip(found.shape, found.stride(), expected.stride(), strict=True)
        assert all(size == 1 or one == other for size, one, other in strides)


def test_programs_say_why_they_were_compiled() -> None:
    x = torch.arange(4.0).to("pjrt")
    (x.exp() + 1).tolist()
    (x.exp() + 1).tolist()
    (x.exp() * 2).tolist()
    kept = x.exp()
    (kept * 2).tolist()
    (x[:2].exp() * 2).tolist()
    triggers = [report.trigger for report in eager_graphs()]
    assert triggers == [
        None,
        "operator 2 is aten.mul.Tensor, where it was aten.add.Tensor",
        "other results are referred to",
        "operator 1 is aten.exp.default of other arguments, where it was aten.exp.default",
    ]


def _taken(call: Callable[[], object]) -> int:
    """How many operators went by what the compiled module learned."""
    for _ in range(4):
        call()
    before = operators.call.taken
    call()
    return int(operators.call.taken) - before


@pytest.mark.skipif(native.module is None, reason="without the compiled module")
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + x,
        lambda x: x.add_(1),
        lambda x: torch.add(x, x, out=torch.empty(4, 4, device="pjrt")),
        lambda x: x[1].mul_(2),
        lambda x: torch.max(x, 1),
        lambda x: torch._foreach_mul([x, x], 3.0),
        lambda x: nn.functional.dropout(x, 0.5),
    ],
    ids=["plain", "in place", "out", "a view", "several", "lists", "random"],
)
def test_the_compiled_module_leads_to_the_record(call: Callable[[torch.Tensor], Any]) -> None:
    x = torch.ones(4, 4, device="pjrt")
    assert _taken(lambda: call(x))
    torch.manual_seed(3)
    found = [torch.utils._pytree.tree_leaves(call(x)) for _ in range(2)]
    kept = x.tolist()
    shortcuts.held_off.append("this test")
    try:
        y = torch.ones(4, 4, device="pjrt")
        for _ in range(5):
            call(y)
        torch.manual_seed(3)
        expected = [torch.utils._pytree.tree_leaves(call(y)) for _ in range(2)]
    finally:
        shortcuts.held_off.clear()
    assert kept == y.tolist()
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert torch.equal(one, other)


def test_numbers_that_change_are_told_from_each_other_when_they_are_recorded() -> None:
    x = torch.arange(4.0).to("pjrt")
    found = [(x * factor).clamp(max=factor) for factor in (1.5, 2.0, -0.0, 3.0, 2.0, float("inf"))]
    for factor, value in zip((1.5, 2.0, -0.0, 3.0, 2.0, float("inf")), found, strict=True):
        home = torch.arange(4.0) * factor
        torch.testing.assert_close(value.cpu(), home.clamp(max=factor), equal_nan=True)


def test_a_setting_of_precision_counts_from_the_next_operator_on() -> None:
    x = torch.randn(4, 4, device="pjrt")
    for _ in range(4):
        (x @ x).sum().item()
    count = len(EAGER.graphs)
    torch.set_float32_matmul_precision("medium")
    try:
        (x @ x).sum().item()
        assert len(EAGER.graphs) == count + 1
    finally:
        torch.set_float32_matmul_precision("highest")
    (x @ x).sum().item()
    assert len(EAGER.graphs) == count + 1


def test_what_is_only_written_gets_no_zeros_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "zeros", lambda *_: pytest.fail("it was read"))
    x = torch.arange(6.0).to("pjrt")
    target = torch.empty(6, device="pjrt")
    torch.mul(x, 2, out=target)
    assert torch.equal(target.cpu(), torch.arange(6.0) * 2)


def test_an_error_of_an_operator_with_an_argument_that_is_only_written() -> None:
    x, target = torch.arange(3.0).to("pjrt"), torch.ones(2, device="pjrt")
    torch.gather(x, 0, torch.tensor([0, 7]).to("pjrt"), out=target)
    with pytest.raises(Exception, match="out of bounds") as raised:
        target.tolist()
    assert "aten.gather" in "".join(raised.value.__notes__)


def test_attention_is_recorded() -> None:
    x = torch.randn(1, 2, 4, 8, device="pjrt")
    y = nn.functional.scaled_dot_product_attention(x, x, x) + 1
    assert not EAGER.graphs
    y.sum().item()
    assert len(EAGER.graphs) == 1


def test_what_was_learned_on_one_device_is_not_done_on_another() -> None:
    for _ in range(4):
        (torch.ones(3, device="pjrt:0") + 1).tolist()
    found = torch.ones(3, device="pjrt:1") + 1
    assert str(found.device) == "pjrt:1"
    assert found.tolist() == [2, 2, 2]


def test_calls_are_recorded_without_the_compiled_module() -> None:
    run_python(
        """
import os
os.environ.update(PJRT_BRIDGE_DISPATCH="python", PJRT_BRIDGE_EAGER="fused")
import torch
import pjrt_bridge
x = torch.arange(3.0, device="pjrt")
for number in range(4):
    assert (x.flip(0) + number).tolist() == [2.0 + number, 1.0 + number, number]
""",
        prelude="",
    )


def test_modes_see_what_the_user_calls_alone() -> None:
    """A step of an optimizer computes what was recorded, within the modes of its caller."""

    class Seen(TorchFunctionMode):
        def __init__(self) -> None:
            self.names: list[str] = []

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(resolve_name(function) or function.__name__)
            return function(*args, **(kwargs or {}))

    def step(device: str) -> list[str]:
        layer = torch.nn.Linear(2, 2).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), foreach=False)
        with Seen() as seen:
            layer(torch.ones(1, 2, device=device)).sum().backward()
            optimizer.step()
        return seen.names

    assert step("pjrt") == step("cpu")

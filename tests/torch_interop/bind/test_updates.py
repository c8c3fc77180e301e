"""Compiled functions that write into their arguments, past AOTAutograd: as on the usual path."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import HostFallbackWarning, PjrtError
from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.bind.entrance import Entrance
from tests.plugins import require_dispatcher
from tests.runtime.dispatch.launching import FailingFunction, too_small
from tests.torch_interop.bind.test_entrance import no_gradients
from tests.torch_interop.helpers import assert_same, compiled

__all__ = ["no_gradients"]

pytestmark = pytest.mark.usefixtures("fresh")

LARGE = 1 << 15
"""Elements of an argument whose memory the program takes over, as it does of half as many."""

SIZES = pytest.mark.parametrize("size", [64, LARGE // 2, LARGE], ids=["small", "medium", "large"])
"""The medium one would be pinned if it were not taken over."""


Long = Callable[[int], None]
"""Asserts that so many calls did not take a fast path, where there are any."""


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> Long:
    calls, before = [0], Entrance.before

    def counting(self: Entrance, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*values: Any) -> Any:
            calls[0] += 1
            return otherwise(*values)

        return before(self, counted)

    def check(expected: int) -> None:
        assert native.module is None or calls == [expected]

    monkeypatch.setattr(Entrance, "before", counting)
    return check


def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state.mul_(0.5).add_(x)
    return state * 2


@SIZES
def test_all_calls_but_the_first_take_the_fast_path(long: Long, size: int) -> None:
    run = compiled(step)
    ours, theirs = torch.ones(size), torch.ones(size)
    address = ours.data_ptr()
    for _ in range(6):
        x, version = torch.randn(size), ours._version
        assert_same([run(ours, x), ours], [step(theirs, x), theirs])
        assert ours._version > version
    assert ours.data_ptr() == address
    long(1)


def test_results_keep_their_values_when_arguments_get_others(long: Long) -> None:
    run = compiled(step)
    state, x = torch.ones(LARGE), torch.ones(LARGE)
    results = [run(state, x) for _ in range(5)]
    twin = torch.ones(LARGE)
    assert_same(results, [step(twin, x) for _ in range(5)])
    long(1)


def test_arguments_that_are_not_read(long: Long) -> None:
    def overwrites(place: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        place.copy_(x * 3)
        return x + 1

    run = compiled(overwrites)
    for _ in range(4):
        place, x = torch.zeros(8, 4), torch.randn(8, 4)
        version = place._version
        assert_same([run(place, x), place], [x + 1, x * 3])
        assert place._version > version
    long(1)
    negated = torch._neg_view(torch.zeros(8, 4))
    for _ in range(3):
        assert_same([run(negated, x), negated.resolve_neg()], [x + 1, x * 3])


def test_functions_that_give_nothing(long: Long) -> None:
    def decays(*states: torch.Tensor) -> None:
        for state in states:
            state.mul_(0.5)

    run = compiled(decays)
    states = [torch.full((3,), float(at)) for at in range(5)]
    for _ in range(4):
        assert run(*states) is None
    assert_same(states, [torch.full((3,), at / 16) for at in range(5)])
    long(1)


def test_buffers_of_a_module(long: Long) -> None:
    """As a cache of keys: weights stay, and what is written into."""

    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(8, 8)
            self.register_buffer("kept", torch.zeros(16, 8))
            self.register_buffer("length", torch.zeros((), dtype=torch.long))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept.index_copy_(0, self.length[None], self.project(x))
            self.length.add_(1)
            return self.kept.sum(0)

    torch.manual_seed(0)
    ours, theirs = Cache(), Cache()
    theirs.load_state_dict(ours.state_dict())
    run = compiled(ours)
    for _ in range(8):
        x = torch.randn(1, 8)
        torch.testing.assert_close(run(x), theirs(x))
    torch.testing.assert_close(ours.kept, theirs.kept)
    assert ours.length.item() == 8
    long(1)


def test_autograd_notices(long: Long) -> None:
    run = compiled(step)
    state, x = torch.ones(64), torch.ones(64)
    for _ in range(4):
        run(state, x)
    with torch.enable_grad():
        weight = torch.ones(64, requires_grad=True)
        loss = (weight * state).sum()
    run(state, x)
    long(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_are_written_without_gradients(long: Long) -> None:
    """As by an optimizer, whose parameters are leaves that require gradients."""

    def descends(weight: torch.Tensor, gradient: torch.Tensor) -> None:
        weight.sub_(gradient)

    run = compiled(descends)
    weight = torch.ones(64, requires_grad=True)
    for left in (0.75, 0.5, 0.25):
        run(weight, torch.full((64,), 0.25))
        assert_same(weight.detach(), torch.full((64,), left))
    assert weight.requires_grad
    assert weight.is_leaf
    long(1)


@SIZES
def test_in_inference_mode(long: Long, size: int) -> None:
    run = compiled(step)
    with torch.inference_mode():
        ours, theirs = torch.ones(size), torch.ones(size)
        for _ in range(4):
            x = torch.randn(size)
            assert_same([run(ours, x), ours], [step(theirs, x), theirs])
    long(1)


# -- arguments that are not as they were -----------------------------------------------------------


@SIZES
def test_other_tensors_other_memory_other_strides(long: Long, size: int) -> None:
    run = compiled(step)
    x = torch.randn(size)
    ours, theirs = torch.ones(size), torch.ones(size)

    def both(times: int = 3) -> None:
        for _ in range(times):
            assert_same([run(ours, x), ours], [step(theirs, x), theirs])

    both()
    before = ours.detach()
    ours.data = ours.clone()
    snapshot = before.clone()
    both()
    # Nothing is written into memory that the argument had before.
    assert_same(before, snapshot)
    ours.set_(torch.full((size,), 3.0))  # type: ignore[call-overload]
    theirs.fill_(3.0)
    both()
    ours, theirs = torch.zeros(size + 1)[1:], torch.zeros(size)
    both()
    ours, theirs = torch.zeros(2 * size)[::2], torch.zeros(2 * size)[::2]
    both()
    ours, theirs = torch.zeros(size), torch.zeros(size)
    both()


def test_another_element_type(long: Long) -> None:
    run = compiled(step)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        ours, theirs = torch.ones(16, dtype=dtype), torch.ones(16, dtype=dtype)
        for _ in range(4):
            x = torch.ones(16, dtype=dtype)
            assert_same([run(ours, x), ours], [step(theirs, x), theirs])


@SIZES
@pytest.mark.parametrize(
    ("overlap", "after_others"), [(False, False), (False, True), (True, False)]
)
def test_parts_of_one_tensor(long: Long, size: int, overlap: bool, after_others: bool) -> None:
    """Of those that overlap AOTAutograd makes one argument, which it divides itself."""

    def reads_after(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(0.5).add_(x.abs())
        return state * 2

    run = compiled(reads_after)
    for _ in range(4 if after_others else 0):
        run(torch.ones(size), torch.ones(size))
    begin = size // 2 if overlap else size
    ours, theirs = torch.ones(2 * size), torch.ones(2 * size)
    for _ in range(4):
        found = run(ours[:size], ours[begin : begin + size])
        expected = reads_after(theirs[:size], theirs[begin : begin + size])
        assert_same([found, ours], [expected, theirs])


def test_a_tensor_of_the_size_of_the_memory_that_others_share(long: Long) -> None:
    """AOTAutograd's one argument for those comes before it, and could be taken for it."""

    def adds(x: torch.Tensor, whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        before = x * 2 * whole.sum()
        part.add_(1)
        return before - whole.sum()

    run = compiled(adds)
    ours, theirs = torch.ones(128), torch.ones(128)
    for _ in range(4):
        x = torch.randn(128)
        found, expected = run(x, ours, ours[:64]), adds(x, theirs, theirs[:64])
        assert_same([found, ours], [expected, theirs])


def test_one_tensor_as_two_arguments(long: Long) -> None:
    run = compiled(step)
    ours, theirs = torch.ones(64), torch.ones(64)
    for _ in range(4):
        assert_same([run(ours, ours), ours], [step(theirs, theirs), theirs])
    for _ in range(4):
        x = torch.randn(64)
        assert_same([run(ours, x), ours], [step(theirs, x), theirs])


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "same": lambda tensor: tensor,
    "clone": torch.clone,
    "moved": lambda tensor: tensor.set_(tensor.clone()),  # type: ignore[call-overload]
    "data": lambda tensor: setattr(tensor, "data", tensor.clone()) or tensor,
    "unaligned": lambda tensor: torch.cat([tensor.new_zeros(1), tensor])[1:],
    "gaps": lambda tensor: torch.stack([tensor, tensor], 1)[:, 0],
    "negated": lambda tensor: torch._neg_view(-tensor),
    "alias": lambda tensor: tensor.view(-1),
    "written": lambda tensor: tensor.add_(1),
}


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([48, LARGE]),
    st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.sampled_from([0, 1])), max_size=12),
)
def test_whatever_happens_between_calls(size: int, changes: list[tuple[str, int]]) -> None:
    run = _SHARED
    ours = [torch.arange(float(size)), torch.ones(size)]
    theirs = [tensor.clone() for tensor in ours]
    with torch.no_grad():
        for name, at in [("same", 0), ("same", 1), *changes]:
            ours[at], theirs[at] = CHANGES[name](ours[at]), CHANGES[name](theirs[at])
            version = ours[0]._version
            found, expected = run(*ours), step(*theirs)
            assert_same([found, *ours], [expected, *theirs])
            assert ours[0]._version > version


_SHARED = torch.compile(step, backend="pjrt", options={"fallback": "error"})


# -- failures --------------------------------------------------------------------------------------


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[FailingFunction]:
    """Of the function that the test names, in what is compiled in the test."""
    require_dispatcher()
    entry, found = plans._entry, list[FailingFunction]()

    def faulty(api: Api, name: str) -> tuple[int, int]:
        if name != request.param:
            return entry(api, name)
        found.append(FailingFunction(api, name, once))
        return found[-1].entry

    def once(args: Any) -> None:
        found[0].active = False
        too_small(args)

    monkeypatch.setattr(plans, "_entry", faulty)
    return found


STAGES = ("Client_BufferFromHostBuffer", "LoadedExecutable_Execute", "Event_Await")


@pytest.mark.parametrize("fault", STAGES, indirect=True)
@pytest.mark.parametrize("calls", [2, 5], ids=["while it looks", "when it is open"])
def test_a_failure_before_anything_is_written(
    long: Long, fault: list[FailingFunction], calls: int
) -> None:
    run = compiled(step)
    ours, theirs = torch.ones(64), torch.ones(64)
    memories = []
    for turn in range(calls + 3):
        # It is in other memory in each call, so it is put there.
        ours, x = ours.clone(), torch.randn(64)
        memories += [ours, x]
        if turn:
            fault[0].active = turn == calls
        assert_same([run(ours, x), ours], [step(theirs, x), theirs])
        assert not fault[0].active
    long(2)


@pytest.mark.parametrize("fault", STAGES, indirect=True)
@pytest.mark.parametrize("calls", [2, 5], ids=["while it looks", "when it is open"])
def test_a_failure_of_a_program_that_writes_in_place(
    long: Long, fault: list[FailingFunction], calls: int, request: pytest.FixtureRequest
) -> None:
    """It may have begun: that it cannot be repeated is said, and counted."""
    run = compiled(step, fallback="host")
    ours, x = torch.ones(LARGE), torch.randn(LARGE)
    for _ in range(calls):
        run(ours, x)
    theirs = ours.clone()
    fault[0].active = True
    before = request.node.callspec.params["fault"] == "Client_BufferFromHostBuffer"
    if before:
        assert_same([run(ours, x), ours], [step(theirs, x), theirs])
    else:
        with (
            pytest.warns(HostFallbackWarning, match="struct_size|Unexpected|size"),
            pytest.raises(PjrtError) as caught,
        ):
            run(ours, x)
        assert "tensors that it updates may hold old, new" in caught.value.__notes__[0]
        ours.copy_(theirs)
    for _ in range(3):
        assert_same([run(ours, x), ours], [step(theirs, x), theirs])
    # After the failure one call goes the usual way.
    long(2)


# -- threads, and what is told ---------------------------------------------------------------------


def test_threads_with_states_of_their_own(long: Long) -> None:
    run = compiled(step)
    for _ in range(4):
        run(torch.zeros(64), torch.ones(64))

    def work(thread: int) -> None:
        with torch.no_grad():
            ours, theirs = torch.zeros(64), torch.zeros(64)
            for turn in range(100):
                x = torch.full((64,), 1000.0 * thread + turn)
                assert_same([run(ours, x), ours], [step(theirs, x), theirs])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_reports_count_what_crosses(long: Long) -> None:
    run = compiled(step)
    counted = []
    for _ in range(6):
        run(torch.ones(64), torch.ones(64))
        (graph,) = compiled_graphs()
        counted.append((graph.segments[0].bytes_shared, graph.segments[0].bytes_copied))
    assert counted == counted[:1] * 6
    long(1)


@pytest.mark.usefixtures("way")
def test_in_c_and_in_python() -> None:
    run = compiled(step)
    ours, theirs = torch.ones(64), torch.ones(64)
    for _ in range(5):
        x, version = torch.randn(64), ours._version
        assert_same([run(ours, x), ours], [step(theirs, x), theirs])
        assert ours._version > version

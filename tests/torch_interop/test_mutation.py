"""What a compiled function writes into, and what is written into its parameters meanwhile."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pjrt_bridge.errors import HostFallbackWarning, PjrtError
from pjrt_bridge.mixed.segment import DeviceSegment
from pjrt_bridge.runtime import ClientCore
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.runtime.transfers import putting
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.bind.adapter import TorchAdapter
from tests.faults.segments import Faults
from tests.torch_interop.helpers import (
    TRAINING,
    assert_compiled,
    assert_same,
    assert_same_gradients,
    compiled,
    twins,
)

pytestmark = pytest.mark.usefixtures("fresh")


# -- buffers that the model updates ----------------------------------------------------------------


def test_batch_norm_statistics_follow_several_steps() -> None:
    eager, device = twins(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    for _ in range(4):
        x = torch.randn(5, 3, 6, 6) * 3 + 1
        for model in (eager, device):
            model.zero_grad()
            model(x).square().mean().backward()
        assert_same_gradients(device, eager)
    assert_same(list(device.buffers()), list(eager.buffers()))
    assert int(list(device.buffers())[-1]) == 4
    assert_compiled(*TRAINING)
    device.eval()
    eager.eval()
    with torch.no_grad():
        assert_same(device(x), eager(x))
    assert_compiled(*TRAINING, "inference")


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("permuted", torch.zeros(4, 3).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.mean.lerp_(x.mean(0), 0.5)
        self.permuted[1:].add_(x[1:])
        return x - self.mean


def test_buffers_that_inference_updates() -> None:
    eager, device = twins(Counter())
    buffer, address = device.mean, device.mean.data_ptr()
    for _ in range(3):
        x = torch.randn(3, 4)
        assert_same(device(x), eager(x))
    assert_same(list(device.buffers()), list(eager.buffers()))
    assert device.mean is buffer
    assert buffer.data_ptr() == address
    assert_compiled("inference")


# -- inputs that the function writes into ----------------------------------------------------------


def write_all(x: torch.Tensor) -> Any:
    x.add_(1)
    return x * 2


def write_and_return(x: torch.Tensor) -> Any:
    x.mul_(2)
    return x


def write_and_return_twice(x: torch.Tensor) -> Any:
    x.mul_(2)
    return x, x.sum(), x.t(), x


def write_into_rows(x: torch.Tensor) -> Any:
    x[1:].mul_(3)
    x[0] = 7
    return x.sum()


def write_into_columns(x: torch.Tensor) -> Any:
    x.t()[::2].sub_(1)


def write_twice_and_read_between(x: torch.Tensor) -> Any:
    before = x.clone()
    x.add_(1)
    between = x * 10
    x.copy_(between - x)
    return before, between


def read_old_and_new(x: torch.Tensor) -> Any:
    old = x.sum()
    x.fill_(3)
    return old, x.sum()


MUTATIONS = [
    write_all,
    write_and_return,
    write_and_return_twice,
    write_into_rows,
    write_into_columns,
    write_twice_and_read_between,
    read_old_and_new,
]

MEMORY: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "gaps": lambda: torch.randn(6, 8)[::2, 1:5],
    "unaligned": lambda: torch.randn(13)[1:].view(3, 4),
    "inference tensor": lambda: made_in_inference_mode(3, 4),
}


def made_in_inference_mode(*shape: int) -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(*shape)


@pytest.mark.parametrize(
    ("function", "memory"),
    [
        *((function, "contiguous") for function in MUTATIONS),
        *((write_into_rows, memory) for memory in MEMORY if memory != "contiguous"),
        *((write_and_return, memory) for memory in MEMORY if memory != "contiguous"),
    ],
)
def test_inputs_that_are_written_into(function: Callable[..., Any], memory: str) -> None:
    found = MEMORY[memory]()
    expected = torch.empty_strided(found.size(), found.stride()).copy_(found)
    device = compiled(function)
    address = found.data_ptr()
    with torch.inference_mode(found.is_inference()):
        for _ in range(2):
            assert_same([device(found), found], [function(expected), expected])
    assert found.data_ptr() == address
    assert_compiled("inference")


def test_an_input_that_is_returned_is_itself() -> None:
    x = torch.zeros(3, 4)
    first, total, view, second = compiled(write_and_return_twice)(x)
    assert first is second is x
    assert view.data_ptr() == x.data_ptr()
    assert float(total) == 0


def test_what_lies_around_a_written_view_stays() -> None:
    whole = torch.zeros(6, 8)
    compiled(write_all)(whole[::2, 1:5])
    expected = torch.zeros(6, 8)
    expected[::2, 1:5] = 1
    assert torch.equal(whole, expected)


@pytest.mark.parametrize("rows", [slice(0, 4), slice(2, 6), slice(4, 8)], ids=str)
def test_inputs_of_one_storage_of_which_one_is_written_into(rows: slice) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    found, expected = torch.zeros(8), torch.zeros(8)
    device = compiled(function)
    for _ in range(2):
        assert_same(device(found[:4], found[rows]), function(expected[:4], expected[rows]))
    assert_same(found, expected)


def test_written_input_in_training() -> None:
    weight = torch.randn(4, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(weight)
        return (x * x).sum()

    gradients = []
    for candidate in (function, compiled(function)):
        x = torch.arange(4.0)
        candidate(x).backward()
        gradients += [weight.grad, x.detach()]
        weight.grad = None
    assert_same(gradients[2:], gradients[:2])
    assert_compiled(*TRAINING)


# -- parameters that others write into -----------------------------------------------------------


def test_parameters_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), torch.randn(16, 16)
    put: list[int] = []
    original = putting.put_host

    def spy(client: ClientCore, host: Any, **how: Any) -> Any:
        buffer = original(client, host, **how)
        put.append(host.address)
        assert buffer.address == host.address
        return buffer

    monkeypatch.setattr(putting, "put_host", spy)
    device = compiled(model)
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    with torch.no_grad():
        device(x)
        assert parameters <= set(put) <= {*parameters, x.data_ptr()}
        put.clear()
        device(x)
        assert set(put) <= {x.data_ptr()}
    device(x).sum().backward()
    assert parameters <= set(put)
    put.clear()
    device(x).sum().backward()
    assert not parameters & set(put)
    assert all(
        segment.bytes_copied == 0 < segment.bytes_shared
        for graph in compiled_graphs()
        for segment in graph.segments
    )


def test_parameters_are_not_saved_for_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transposed weight among the saved activations would be a copy of it in each step."""
    saved: list[int] = []
    run = DeviceSegment.run

    def spy(self: DeviceSegment, *arguments: Any) -> Any:
        saved.extend(result.type.nbytes for result in self.bindings.results)
        return run(self, *arguments)

    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    monkeypatch.setattr(DeviceSegment, "run", spy)
    compiled(model)(torch.randn(2, 64))
    assert saved
    assert max(saved) == 2 * 64 * 4


def optimizer_step(model: nn.Linear) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(model.parameters(), lr=0.1).step()


def write_into_data(model: nn.Linear) -> None:
    model.weight.data.mul_(-2)


def assign_data(model: nn.Linear) -> None:
    model.weight.data = torch.full((3, 4), 2.0)
    model.bias.data = torch.arange(7.0)[1:4]


def assign_parameter(model: nn.Linear) -> None:
    model.weight = nn.Parameter(torch.full((3, 4), 5.0))


def load_state(model: nn.Linear) -> None:
    model.load_state_dict({"weight": torch.ones(3, 4), "bias": torch.zeros(3)})


def load_state_by_assignment(model: nn.Linear) -> None:
    model.load_state_dict({"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, assign=True)


def resize_storage(model: nn.Linear) -> None:
    storage = model.weight.untyped_storage()
    values, size = model.weight.detach().clone(), storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    with torch.no_grad():
        model.weight.copy_(values + 1)


def grow(model: nn.Linear) -> None:
    model.weight = nn.Parameter(torch.randn(5, 4))
    model.bias = nn.Parameter(torch.randn(5))


def transpose(model: nn.Linear) -> None:
    model.weight = nn.Parameter(torch.randn(4, 3).t())


def freeze(model: nn.Linear) -> None:
    model.weight.requires_grad_(False)


CHANGES = [
    optimizer_step,
    write_into_data,
    assign_data,
    assign_parameter,
    load_state,
    load_state_by_assignment,
    resize_storage,
    grow,
    transpose,
    freeze,
]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parameters_are_seen(change: Callable[[nn.Linear], None]) -> None:
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    device = compiled(model)
    for changing in (lambda _: None, change, optimizer_step):
        changing(model)
        seen = []
        for candidate in (model, device):
            model.zero_grad()
            result = candidate(x)
            result.sum().backward()
            seen.append([result.detach(), *(p.grad for p in model.parameters())])
        assert_same(seen[1], seen[0])


def test_frozen_and_thawed() -> None:
    eager, device = twins(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    x = torch.randn(2, 4)
    for frozen in (True, False, True):
        for model in (eager, device):
            next(model.parameters()).requires_grad_(not frozen)
            model.zero_grad()
            model(x).sum().backward()
        assert (next(device.parameters()).grad is None) == frozen
        assert_same_gradients(device, eager)


def test_reset_gives_back_the_memory_of_a_dropped_model() -> None:
    def run() -> None:
        model = nn.Linear(32, 32)
        with torch.no_grad():
            compiled(model)(torch.randn(2, 32))
        assert live().get("Buffer", 0) >= before + 2

    gc.collect()
    before = live().get("Buffer", 0)
    run()
    torch.compiler.reset()
    gc.collect()
    assert live().get("Buffer", 0) == before


# -- updates in place ------------------------------------------------------------------------------

LARGE = 1 << 15


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each argument that was updated, whether its new value had to be copied."""
    found: list[bool] = []

    def assign(self: TorchAdapter, target: torch.Tensor, value: torch.Tensor) -> None:
        found.append(target.data_ptr() != value.data_ptr())
        original(self, target, value)

    original = TorchAdapter.assign
    monkeypatch.setattr(TorchAdapter, "assign", assign)
    return found


def decay(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    x.mul_(0.5).add_(y)
    return total


@pytest.mark.usefixtures("way")
def test_large_arguments_are_updated_where_they_lie(copies: list[bool]) -> None:
    run = compiled(decay)
    ours, theirs = (torch.arange(LARGE, dtype=torch.float32) for _ in range(2))
    for step in range(3):
        y = torch.full((LARGE,), float(step))
        version = ours._version
        assert_same([run(ours, y), ours], [decay(theirs, y), theirs])
        assert ours._version > version
    assert copies == [False] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(LARGE + 1, dtype=torch.float32)[1:],
        lambda: torch.arange(2 * LARGE, dtype=torch.float32)[::2],
        lambda: torch.arange(1024.0),
    ],
    ids=["unaligned", "with gaps", "small"],
)
def test_what_cannot_be_updated_in_place_is_copied(
    make: Callable[[], torch.Tensor], copies: list[bool]
) -> None:
    run, ours, theirs = compiled(decay), make(), make()
    for _ in range(2):
        y = torch.ones_like(ours)
        assert_same([run(ours, y), ours], [decay(theirs, y), theirs])
    assert copies == [True] * 2


def test_a_permuted_argument_is_updated_where_it_lies(copies: list[bool]) -> None:
    run, ours, theirs = compiled(decay), *(torch.ones(256, 128).t() for _ in range(2))
    y = torch.randn(128, 256)
    assert_same([run(ours, y), ours], [decay(theirs, y), theirs])
    assert copies == [False]


def test_backward_notices_that_what_it_saved_was_updated() -> None:
    x = torch.ones(LARGE)
    w = torch.ones(LARGE, requires_grad=True)
    result = (w * x).sum()
    compiled(decay)(x, torch.ones(LARGE))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_updates_in_inference_mode(copies: list[bool]) -> None:
    with torch.inference_mode():
        ours, theirs = torch.ones(LARGE), torch.ones(LARGE)
        assert_same(
            [compiled(decay)(ours, ours.exp()), ours], [decay(theirs, theirs.exp()), theirs]
        )
    assert copies == [False]


def test_a_failure_on_the_way_of_an_update_reaches_the_user(faults: Faults) -> None:
    run, x = compiled(decay, fallback="host"), torch.ones(LARGE)
    y = x.exp()
    for when in ("start", "end"):
        faults.failing = ("inference", when)
        with pytest.warns(HostFallbackWarning), pytest.raises(PjrtError) as caught:
            run(x, y)
        assert "tensors that it updates may hold old, new" in caught.value.__notes__[0]
    faults.failing = ("inference", "put")
    theirs = x.clone()
    with pytest.warns(HostFallbackWarning):
        found = run(x, y)
    assert_same([found, x], [decay(theirs, y), theirs])

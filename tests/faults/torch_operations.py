"""Operations of the `pjrt` backend of torch.compile, on a client of a faulty table.

`warm` operations run what was compiled before; `cold` ones compile under the fault. `host` lets
PyTorch take over, `error` forbids it. Each is run in C and in Python. The numbers are such that
PyTorch and the device compute the same ones to the last bit, or are rounded.

The first calls of a function are unlike later ones: one compiles, and the two after it find out
which arguments stay where they are and keep buffers of these (`torch_interop/bind/entrance.py`).
`warm` operations are past that, `moving` has arguments that do not stay, `learning` is the call
that begins to keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any
from unittest import mock

import torch
from torch._dynamo.exc import BackendCompilerFailed

from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.torch_interop import backend
from tests.faults.operations import OPERATIONS, Act, Operation
from tests.faults.world import World

Workload = Callable[[dict[str, Any]], Callable[[], Any]]
"""Takes the options of torch.compile; gives what runs, with plain values as its result."""


@contextmanager
def _here(world: World, way: str) -> Iterator[None]:
    """Graphs are compiled for the world's client."""
    with (
        mock.patch.object(backend, "select_client", return_value=world.client),
        mock.patch.object(plans, "enabled", way == "c"),
    ):
        yield


def _compiled(function: Any, options: dict[str, Any]) -> Any:
    return torch.compile(function, backend="pjrt", options=options)


def compiled_here(world: World, way: str, function: Any, options: dict[str, Any]) -> Any:
    """A compiled function; its first call compiles it for the world's client."""
    run = _compiled(function, options)

    def call(*arguments: Any) -> Any:
        with _here(world, way):
            return run(*arguments)

    return call


def whole(options: dict[str, Any]) -> Callable[[], Any]:
    """One program, with an argument in another order than row-major."""
    run = _compiled(lambda x, y: (x * x + y, x.sum()), options)
    x, y = torch.arange(12.0).reshape(3, 4), torch.ones(4, 3).T
    return lambda: [out.tolist() for out in run(x, y)]


def moving(options: dict[str, Any]) -> Callable[[], Any]:
    """One program, with arguments that are elsewhere in each call."""
    run = _compiled(lambda x, y: (x * x + y, x.sum()), options)
    pairs = cycle([(torch.arange(4.0), torch.ones(4)) for _ in range(2)])
    return lambda: [out.tolist() for out in run(*next(pairs))]


def parts(options: dict[str, Any]) -> Callable[[], Any]:
    """Two programs, and PyTorch between them."""
    run = _compiled(lambda x: torch.relu(-(x @ x)) * 2 + x, {**options, "host_ops": ["aten.neg"]})
    x = torch.arange(-8.0, 8.0).reshape(4, 4)
    return lambda: run(x).tolist()


def parameters(options: dict[str, Any]) -> Callable[[], Any]:
    """Parameters that keep their buffers, and a constant of the graph."""
    layer = torch.nn.Linear(4, 3)
    constant = torch.arange(3.0)
    with torch.no_grad():
        layer.weight.fill_(0.5)
        layer.bias.fill_(0.25)
    run = _compiled(lambda x: layer(x) + constant, options)
    x = torch.ones(2, 4)

    def act() -> Any:
        with torch.no_grad():
            return run(x).tolist()

    return act


def update(options: dict[str, Any]) -> Callable[[], Any]:
    """An argument that gets a new value, small enough that it is not donated."""

    def step(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total * 2

    run, x = _compiled(step, options), torch.arange(4.0)

    def act() -> Any:
        total = torch.ones(4)
        return run(total, x).tolist(), total.tolist()

    return act


def update_in_place(options: dict[str, Any]) -> Callable[[], Any]:
    """An argument that is donated: the program writes where it lies."""

    def step(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total.sum()

    run, x = _compiled(step, options), torch.ones(1 << 15)

    def act() -> Any:
        total = torch.ones(1 << 15)
        return run(total, x).item(), total.sum().item()

    return act


def training(options: dict[str, Any]) -> Callable[[], Any]:
    """A step: forward, backward, and the optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    run, x = _compiled(model, options), torch.arange(8.0).reshape(2, 4)

    def act() -> Any:
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return round(loss.item(), 4), [
            [round(number, 4) for number in value.detach().flatten().tolist()]
            for value in model.parameters()
        ]

    return act


def symbolic(options: dict[str, Any]) -> Callable[[], Any]:
    """Sizes that differ from call to call."""
    run = torch.compile(lambda x: x * x + 1, backend="pjrt", dynamic=True, options=options)
    sizes = [torch.zeros(3), torch.zeros(5)]
    return lambda: [run(x).tolist() for x in sizes]


_FIRST_CALLS = 3
"""One compiles, two find out which arguments stay."""


def _warm(workload: Workload, fallback: str, way: str) -> Operation:
    def prepare(world: World) -> Act:
        torch.compiler.reset()
        with _here(world, way):
            act = workload({"fallback": fallback})
            for _ in range(_FIRST_CALLS):
                act()
        return act

    return prepare


def _learning(workload: Workload, fallback: str) -> Operation:
    """The last of the first calls, and one more."""

    def prepare(world: World) -> Act:
        def act() -> Any:
            with world.table.spared(), _here(world, "c"):
                torch.compiler.reset()
                run = workload({"fallback": fallback})
                for _ in range(_FIRST_CALLS - 1):
                    run()
            try:
                return run(), run()
            finally:
                torch.compiler.reset()

        return act

    return prepare


def _cold(workload: Workload, fallback: str, way: str) -> Operation:
    def prepare(world: World) -> Act:
        world.client

        def act() -> Any:
            torch.compiler.reset()
            try:
                with _here(world, way):
                    return workload({"fallback": fallback})()
            except BackendCompilerFailed as error:
                # Dynamo's wrapping of what a backend raises.
                raise error.inner_exception from error
            finally:
                torch.compiler.reset()

        return act

    return prepare


def register() -> None:
    """Add them all to `OPERATIONS`."""
    for workload in (whole, moving, parts, parameters, update, update_in_place, training, symbolic):
        for way in ("c", "python"):
            name = f"torch/warm {workload.__name__} {way}"
            OPERATIONS[f"{name} host"] = "sharing", _warm(workload, "host", way)
            # Where the host is forbidden there are no parts.
            if workload is not parts:
                OPERATIONS[f"{name} error"] = "sharing", _warm(workload, "error", way)
    for workload in (whole, parameters):
        for fallback in ("host", "error"):
            name = f"torch/warm learning {workload.__name__} c {fallback}"
            OPERATIONS[name] = "sharing", _learning(workload, fallback)
    for workload in (whole, parameters, update):
        name = f"torch/warm {workload.__name__} copied host"
        OPERATIONS[name] = "copying", _warm(workload, "host", "python")
    for workload in (whole, parameters, training):
        OPERATIONS[f"torch/cold {workload.__name__} host"] = "sharing", _cold(workload, "host", "c")
    OPERATIONS["torch/cold whole error"] = "sharing", _cold(whole, "error", "c")

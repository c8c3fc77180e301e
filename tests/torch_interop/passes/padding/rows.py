"""Graphs with one symbolic size, padded, and run in PyTorch with garbage in the padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit.substitute_sizes import substitute_sizes
from pjrt_bridge.torch_interop.passes.padding.buckets import GraphPadding
from tests.torch_interop.helpers import leaves

SIZE = 5
"""Dimensions of this size are symbolic, and only these."""
BUCKET = 11


def symbolic(function: Callable[..., Any], *args: Any) -> fx.GraphModule:
    """The ATen graph of a function, in which `SIZE` is a symbol."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fake = [_fake(mode, item) for item in args]
    with mode, enable_python_dispatcher():
        return make_fx(
            lambda *values: tuple(compat.tree_leaves(function(*values))),
            decomposition_table=compat.decompositions(),
        )(*fake)


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    # Torch takes sizes of one kind that are equal now for equal in all calls.
    sizes = [DimDynamic.DUCK if size == SIZE else DimDynamic.STATIC for size in tensor.shape]
    return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(sizes))


def refusals(graph: fx.GraphModule, args: Sequence[Any]) -> list[str]:
    """Why the graph is not padded."""
    return GraphPadding(graph, [BUCKET]).refusals(args)


def padded(
    graph: fx.GraphModule, args: Sequence[Any], *, checks_positions: bool = False
) -> list[Any]:
    """The graph's results from padded arguments; see `GraphPadding` for the checks."""
    padding = GraphPadding(graph, [BUCKET], checks_positions=checks_positions)
    call = CallRecord(1)
    ready = padding.pad(list(args))
    assert ready is not None, padding.refusals(args)
    specialized = substitute_sizes(padding.module, ready.arguments)
    padding.check(specialized, ready)
    return ready.restore(specialized(*ready.arguments), call)


def noisy(x: torch.Tensor) -> torch.Tensor:
    """The same tensor, with NaN in its padding."""
    return x + x.abs().log() * 0 if x.is_floating_point() else x


def assert_padding_changes_nothing(function: Callable[..., Any], *args: Any) -> None:
    """The function is padded, and computes what it does without padding, in the same memory.

    What it is given has zeros in the padding, or NaN. Positions are checked, or not.
    """
    for given, checks in ((function, True), (lambda *values: function(*map(noisy, values)), False)):
        graph = symbolic(given, *args)
        found = leaves(padded(graph, args, checks_positions=checks))
        expected = leaves(given(*args))
        assert len(found) == len(expected) > 0
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
            assert _steps(one) == _steps(other)


def _steps(tensor: torch.Tensor) -> list[int]:
    """The strides of dimensions in which there is a second element."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def with_gradients(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A function's results, and their gradients with all floating-point arguments."""

    def found(*args: torch.Tensor) -> list[Any]:
        with torch.enable_grad():
            own = [x.detach().requires_grad_() if x.is_floating_point() else x for x in args]
            made = leaves(function(*own))
            parts = [(x.sin() * x).sum() for x in made if x.is_floating_point()]
            loss = sum(parts, torch.zeros(()))
            grads = torch.autograd.grad(loss, [x for x in own if x.is_floating_point()])
        return [*(item.detach() for item in made), *grads]

    return found


STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "product": lambda y: y @ torch.full((4, 4), 0.3, dtype=y.dtype),
    "softmax": lambda y: y.softmax(-1),
    "cumsum": lambda y: y.cumsum(1),
    "sort": lambda y: y.sort(1, descending=True).values,
    "norm": lambda y: F.layer_norm(y, (4,)),
    "halves": lambda y: torch.cat([y[:, 2:], y[:, :2] + y.amax(1, keepdim=True)], 1),
    "square": lambda y: y.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4),
    "flat": lambda y: y.reshape(-1).tanh().view(-1, 4),
    "turned flat": lambda y: y.t().reshape(-1).tanh().view(4, -1).t(),
    "count": lambda y: y + torch.arange(y.shape[0])[:, None] * 0.1,
    "columns": lambda y: (y.t().contiguous() * 0.7).t(),
    "mean": lambda y: y - y.mean(0),
    "scan": lambda y: y.cumsum(0),
    "order": lambda y: y.sort(0).values,
    "mirror": lambda y: y + y.flip(0),
    "size": lambda y: y * y.shape[0],
    "merge": lambda y: y.reshape(-1).cumsum(0).view(-1, 4),
    "shift": lambda y: torch.cat([y[1:], y[:1]]),
    "gram": lambda y: y @ (y.t() @ y).tanh(),
    "norm of columns": lambda y: F.layer_norm(y.t(), (y.shape[0],)).t(),
    "most frequent": lambda y: y + torch.cat([y.sign(), y.new_zeros(1, 4)]).mode(0).values,
    "diagonal": lambda y: y * (y @ y.t()).diagonal()[:, None].sigmoid(),
    "equations": lambda y: torch.linalg.solve(
        y.tanh() @ y.tanh().t() + torch.eye(y.shape[0], dtype=y.dtype), y.tanh()
    ),
    "masked": lambda y: y.masked_scatter(y > 0.3, y.flip(0)),
    "marked": lambda y: torch.index_put(y, (y[:, 0] > 0.3,), torch.full((), 0.5, dtype=y.dtype)),
    "nearest": lambda y: F.embedding(y[:, 0].argsort() // 2, y),
}
"""What can be done with a tensor of any number of rows and 4 columns."""


def chain(steps: list[str]) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        values = [x]
        for step in steps:
            values.append(STEPS[step](values[-1]) + values[0])
        return values[1:]

    return function

"""Equal calls in joint graphs: which are merged, and which are not."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.merge_equal_calls import merge_equal_calls

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def merged(function: Callable[..., Any], *arguments: torch.Tensor) -> fx.GraphModule:
    module = make_fx(function, tracing_mode="fake")(*arguments)
    merge_equal_calls(module.graph)
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*arguments), function(*arguments), equal_nan=True)
    return module


def calls(module: fx.GraphModule) -> Counter[str]:
    names = (compat.operator_name(node.target) for node in module.graph.nodes)
    return Counter(name.split(".")[1] for name in names if name is not None)


def test_equal_calls_and_what_is_made_of_them_are_merged() -> None:
    found = calls(merged(lambda x: x.sigmoid().exp() * x.sigmoid().exp() + x.sigmoid(), X))
    assert found == {"sigmoid": 1, "exp": 1, "mul": 1, "add": 1}


def test_results_of_several() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        one, other = x.sort(1), x.sort(1)
        return one.values * other.values + one.indices * other.indices

    module = merged(function, X)
    assert calls(module)["sort"] == 1
    assert sum("getitem" in node.name for node in module.graph.nodes) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), (0.0, -0.0), (2, 3), (1.5, 2.5), (float("nan"), 1.0)],
    ids=str,
)
def test_other_numbers_are_other_arguments(one: Any, other: Any) -> None:
    assert calls(merged(lambda x: (x * one).exp() - (x * other).exp(), X))["mul"] == 2
    assert calls(merged(lambda x: (x * one).exp() - (x * one).exp(), X))["mul"] == 1


def test_other_types_axes_and_slices_are_other_arguments() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        halves = x.to(torch.float16).float() + x.to(torch.bfloat16).float()
        return halves + x.sum(0, keepdim=True).exp() + x.sum(1, keepdim=True).exp()

    assert calls(merged(function, X))["sum"] == 2


def test_results_of_their_own_stay_so() -> None:
    module = merged(lambda x: (x + 1, x + 1), X)
    assert calls(module) == {"add": 2}
    one, other = module(X)
    assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


def test_draws_are_not_merged() -> None:
    module = make_fx(lambda x: torch.rand_like(x).exp() - torch.rand_like(x).exp())(X)
    merge_equal_calls(module.graph)
    assert calls(module)["rand_like"] == 2


def test_uninitialized_memory_is_not_merged() -> None:
    module = make_fx(lambda x: torch.empty_like(x).fill_(1).exp() + torch.empty_like(x).zero_())(X)
    merge_equal_calls(module.graph)
    assert calls(module)["empty_like"] == 2


def test_a_call_after_a_write_is_another() -> None:
    # Tracing would replace what reads the argument after a write by what reads the written value.
    graph = fx.Graph()
    x = graph.placeholder("x")
    before = graph.call_function(torch.ops.aten.exp.default, (x,))
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (x, 2))
    graph.call_function(torch.ops.aten.copy_.default, (x, doubled))
    after = graph.call_function(torch.ops.aten.exp.default, (x,))
    graph.output(graph.call_function(torch.ops.aten.sub.Tensor, (before, after)))
    merge_equal_calls(graph)
    module = fx.GraphModule({}, graph)
    assert calls(module)["exp"] == 2
    torch.testing.assert_close(module(X.clone()), X.exp() - (2 * X).exp())


def test_what_checkpointing_recomputes_is_not_what_is_saved() -> None:
    module = make_fx(lambda x: x.exp() * x.exp(), tracing_mode="fake")(X)
    first = next(node for node in module.graph.nodes if node.name == "exp")
    first.meta["recompute"] = "never"
    merge_equal_calls(module.graph)
    assert calls(module)["exp"] == 2


def test_gradients_read_what_forward_computed() -> None:
    x = X.clone().requires_grad_()
    compiled = torch.compile(
        lambda x: (x.tanh() * x.tanh().exp()).sum(), backend="pjrt", options={"fallback": "error"}
    )
    compiled(x).backward()
    found, x.grad = x.grad, None
    (x.tanh() * x.tanh().exp()).sum().backward()
    torch.testing.assert_close(found, x.grad)


FIRST = """
import sys
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
torch.compile(model, backend="pjrt")(torch.randn(3, 4)).sum().backward()
print([name for name in ("torch._inductor.lowering", "pjrt_bridge.torch_interop.exporting.api")
       if name in sys.modules])
"""


def test_a_first_call_imports_neither_inductor_nor_the_exporter() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr

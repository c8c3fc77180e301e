"""Which nodes can go to the device, and what the user reads about those that cannot."""

import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pjrt_bridge.errors import HostFallbackWarning, ProgramError
from pjrt_bridge.torch_interop.emit.program import emit
from pjrt_bridge.torch_interop.lowering import registry
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from pjrt_bridge.torch_interop.nodes import source_line
from pjrt_bridge.torch_interop.placement.predicate import Placement
from tests.torch_interop.helpers import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")

aten = torch.ops.aten


def graph_of(*calls: Sequence[Any], **inputs: Any) -> fx.Graph:
    """A graph of named inputs and of calls `(target, promise, *arguments)`; names are inputs."""
    graph = fx.Graph()
    nodes = {}
    for name, promise in inputs.items():
        nodes[name] = graph.placeholder(name)
        nodes[name].meta["val"] = promise
    last: Any = None
    for target, promise, *arguments in calls:
        given = [nodes.get(a, a) if isinstance(a, str) else a for a in arguments]
        last = graph.call_function(target, tuple(last if a is ... else a for a in given))
        last.meta["val"] = promise
    graph.output((last,))
    return graph


def reasons(graph: fx.Graph, lookup: Any = registry.find_lowering) -> list[tuple[str, str]]:
    return [
        (found.operator, found.reason)
        for found in Placement(lookup).fallback_reasons(graph).values()
    ]


def symbolic_number() -> torch.SymFloat:
    number = ShapeEnv().create_unbacked_symfloat()
    assert isinstance(number, torch.SymFloat)
    return number


X = torch.ones(2, 3)
REFUSED: dict[str, tuple[Callable[[], fx.Graph], str, str]] = {
    "number that depends on data": (
        lambda: graph_of((aten.mul.Tensor, X, "x", "n"), x=X, n=symbolic_number()),
        "aten.mul.Tensor",
        "it computes with a number that depends on data",
    ),
    "sparse": (
        lambda: graph_of(x=X.to_sparse()),
        "x",
        "a tensor of layout torch.sparse_coo has no StableHLO type",
    ),
    "foreign element type": (
        lambda: graph_of(x=torch.empty(2, dtype=torch.uint4)),
        "x",
        "torch.uint4 has no PJRT element type",
    ),
    "device of an input": (
        lambda: graph_of(x=X.to("meta")),
        "x",
        "a tensor on device meta cannot be shared with the plugin",
    ),
    "device of a result": (
        lambda: graph_of((aten.exp.default, X.to("meta"), "x"), x=X),
        "aten.exp.default",
        "a tensor on device meta cannot be shared with the plugin",
    ),
    "operator without a lowering": (
        lambda: graph_of((aten.linalg_ldl_factor_ex.default, X, "x"), x=X),
        "aten.linalg_ldl_factor_ex.default",
        "no lowering to StableHLO exists for this operator",
    ),
    "result that depends on data": (
        lambda: graph_of((aten.bincount.default, X, "x"), x=X),
        "aten.bincount.default",
        "its result's shape, or its number, depends on data",
    ),
    "no operator": (
        lambda: graph_of((operator.add, X, "x", "x"), x=X),
        "add",
        "no lowering to StableHLO exists for this operator",
    ),
    "mutation of a result": (
        lambda: graph_of((aten.exp.default, X, "x"), (aten.copy_.default, X, ..., "x"), x=X),
        "aten.copy_.default",
        "it writes into something that is no input of the graph",
    ),
    "mutation that is read": (
        lambda: graph_of((aten.copy_.default, X, "x", "y"), (aten.exp.default, X, ...), x=X, y=X),
        "aten.copy_.default",
        "the result of writing into an input is used again",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_reasons(case: str) -> None:
    make, name, reason = REFUSED[case]
    found = reasons(make())
    assert (name, reason) in found
    assert {who for who, _ in found} <= {name, "arg0_1"}


def test_sizes_that_a_call_brings_stand_in_nobodys_way() -> None:
    graph = make_fx(lambda x: torch.exp(x).view(x.shape[0] * x.shape[1]), tracing_mode="symbolic")(
        X
    ).graph
    assert any("sym_size" in str(node.target) for node in graph.nodes)
    assert reasons(graph) == []


def test_a_captured_tensor_that_no_plugin_has() -> None:
    module = torch.nn.Module()
    module.sparse = X.to_sparse()
    graph = fx.Graph()
    graph.output((graph.get_attr("sparse"),))
    fx.GraphModule(module, graph)
    assert reasons(graph) == [
        ("sparse", "a tensor of layout torch.sparse_coo has no StableHLO type")
    ]


def test_what_lowers_is_not_refused() -> None:
    assert reasons(graph_of((aten.exp.default, X, "x"), x=X)) == []


def test_nodes_that_are_alike_are_tried_once() -> None:
    tried: list[str] = []

    def lookup(name: str) -> registry.Lowering | None:
        tried.append(name)
        return registry.find_lowering(name)

    graph = graph_of(
        (aten.exp.default, X, "x"),
        (aten.exp.default, X, ...),
        (aten.exp.default, X.double(), "y"),
        (aten.add.Tensor, X.double(), ..., "y"),
        (aten.mul.Tensor, X.double(), ..., 2.0),
        (aten.mul.Tensor, X.double(), ..., 3.0),
        (aten.mul.Tensor, X.double(), ..., 2.0),
        x=X,
        y=X.double(),
    )
    assert reasons(graph, lookup) == []
    assert tried == [
        "aten.exp.default",
        "aten.exp.default",
        "aten.add.Tensor",
        "aten.mul.Tensor",
        "aten.mul.Tensor",
    ]


# -- lowerings that are wrong ----------------------------------------------------------------------


def wrong_shape(c: Context, x: Any) -> Any:
    return c.b.slice(c.b.exp(x), (0, 0), (1, 3))


def wrong_type(c: Context, x: Any) -> Any:
    return c.b.convert(c.b.exp(x), "float64")


def nothing(c: Context, x: Any) -> Any:
    return None


def two_results(c: Context, x: Any) -> Any:
    return x, x


def refusing(c: Context, x: Any) -> Any:
    raise NotLowerable("the moon is full")


def invalid(c: Context, x: Any) -> Any:
    return c.b.add(x, c.b.full((7,), 0.0, x.dtype))


def broken(c: Context, x: Any) -> Any:
    raise RuntimeError("a bug")


WRONG: dict[Callable[..., Any], str] = {
    wrong_shape: r"gives f32[1,3] for output 0, torch promises f32[2,3]",
    wrong_type: r"gives f64[2,3] for output 0, torch promises f32[2,3]",
    nothing: r"gives None for output 0, torch promises f32[2,3]",
    two_results: r"for output 0, torch promises f32[2,3]",
    refusing: r"the moon is full",
    invalid: r"its lowering emits an invalid operation: ",
    broken: r"its lowering failed: RuntimeError: a bug (test_predicate.py, line ",
}


def with_wrong(lowering: Any) -> Callable[[str], Any]:
    find = registry.find_lowering
    return lambda name: lowering if name == "aten.exp.default" else find(name)


@pytest.mark.parametrize("lowering", WRONG)
def test_a_wrong_lowering_is_found_out(lowering: Callable[..., Any]) -> None:
    graph = graph_of((aten.exp.default, X, "x"), x=X)
    ((name, reason),) = reasons(graph, with_wrong(lowering))
    assert name == "aten.exp.default"
    assert WRONG[lowering] in reason


@pytest.mark.parametrize("lowering", WRONG)
def test_a_wrong_lowering_is_never_a_wrong_result(
    lowering: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_lowering", with_wrong(lowering))
    with pytest.warns(HostFallbackWarning, match=r"aten\.exp\.default"):
        found = compiled(lambda x: torch.exp(x) + 1, fallback="host")(X)
    assert_same(found, torch.exp(X) + 1)


def test_several_results_are_all_checked() -> None:
    graph = graph_of((aten.aminmax.default, (X[0, 0], X[0, 0]), "x"), x=X)

    def one_result(c: Context, x: Any) -> Any:
        return (c.full((), 0, x.dtype),)

    def second_wrong(c: Context, x: Any) -> Any:
        return c.full((), 0, x.dtype), x

    def look(lowering: Any) -> Any:
        return lambda name: lowering

    assert reasons(graph, look(one_result))[0][1] == "its lowering gives 1 outputs, not 2"
    assert "for output 1, torch promises f32[]" in reasons(graph, look(second_wrong))[0][1]


def test_emit_refuses_what_placement_refuses() -> None:
    graph = graph_of((aten.exp.default, X, "x"), x=X)
    with pytest.raises(NotLowerable, match="the moon is full"):
        emit(fx.GraphModule({}, graph), with_wrong(refusing), name="test")
    assert not issubclass(NotLowerable, ProgramError)


# -- the user's line -------------------------------------------------------------------------------


OWN = '  File "/home/me/model.py", line 12, in forward\n    return self.inner(x)\n'
INNER = '  File "/home/me/inner.py", line 7, in forward\n    y = f(x)  # File "a", line 3, in b\n'
TORCH = (
    f'  File "{os.path.dirname(torch.__file__)}/nn/modules/linear.py", line 134, in forward\n'
    "    return F.linear(input, self.weight, self.bias)\n"
)


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        (OWN, "/home/me/model.py:12: return self.inner(x)"),
        (OWN + INNER, '/home/me/inner.py:7: y = f(x)  # File "a", line 3, in b'),
        (OWN + TORCH, "/home/me/model.py:12: return self.inner(x)"),
        (OWN + "           ^^^^^^^^^^^\n" + TORCH, "/home/me/model.py:12: return self.inner(x)"),
        ("", None),
        ("nonsense", None),
    ],
    ids=["own", "innermost", "torch left out", "markers", "empty", "nonsense"],
)
def test_source_line(trace: str, line: str | None) -> None:
    node = fx.Graph().placeholder("x")
    node.meta["stack_trace"] = trace
    assert source_line(node) == line


def test_torch_is_named_where_nothing_else_is() -> None:
    node = fx.Graph().placeholder("x")
    node.meta["stack_trace"] = TORCH
    found = source_line(node)
    assert found is not None
    assert found.endswith("linear.py:134: return F.linear(input, self.weight, self.bias)")


def test_a_refused_backward_names_the_line_of_the_forward() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x).sum()

    with pytest.MonkeyPatch.context() as patch:
        find = registry.find_lowering
        patch.setattr(
            registry,
            "find_lowering",
            lambda name: None if name == "aten.mul.Tensor" else find(name),
        )
        x = torch.ones(3, requires_grad=True)
        with pytest.warns(HostFallbackWarning, match="the backward graph") as caught:
            compiled(function, fallback="host")(x).backward()
    line = function.__code__.co_firstlineno + 1
    assert f"({__file__}:{line}: return torch.exp(x).sum())" in str(caught[0].message)
    assert_same(x.grad, torch.exp(x).detach())

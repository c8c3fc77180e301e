"""What cannot run on the device: the host runs it, the user reads why, or it is forbidden."""

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from pjrt_bridge.errors import (
    FallbackForbidden,
    HostFallbackWarning,
    PluginNotFound,
    ProgramError,
    ResourceExhausted,
    UnsupportedDtype,
)
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.lowering import registry
from tests.torch_interop.helpers import assert_compiled, assert_same, compiled, custom_operators
from tests.torch_interop.mixed import operators

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # Dynamo makes an instance of every autograd.Function that it traces.
    pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not"),
]


@pytest.fixture(scope="module", autouse=True)
def foreign_operator() -> Iterator[None]:
    """`pjrt_test::half`, an operator that no lowering knows."""
    half = {"half(Tensor x) -> Tensor": (lambda x: x / 2, torch.empty_like)}
    with custom_operators("pjrt_test", half):
        yield


def half(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.pjrt_test.half(x + 1) * 3


def factors(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.ldl_factor(x @ x.t()).LD


def to_meta(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).to("meta")


REFUSED: dict[Callable[..., Any], tuple[str, str]] = {
    half: ("pjrt_test.half.default", "no lowering to StableHLO exists for this operator"),
    factors: ("aten.linalg_ldl_factor_ex.default", "no lowering to StableHLO"),
    to_meta: ("aten._to_copy.default", "a tensor on device meta cannot be shared"),
}


SEGMENTS = {half: 2, factors: 1, to_meta: 1}
"""What stays on the device: before the refused operator, and after it."""


def assert_explained(text: str, function: Callable[..., Any]) -> None:
    operator, reason = REFUSED[function]
    line = function.__code__.co_firstlineno + 1
    assert f"{operator}: {reason}" in text
    assert f"{__file__}:{line}: return " in text


@pytest.mark.parametrize("function", REFUSED)
def test_the_host_runs_it_and_says_why_once(function: Callable[..., Any]) -> None:
    device, x = compiled(function, fallback="host"), torch.randn(3, 3)
    with pytest.warns(HostFallbackWarning) as caught:
        found = device(x)
    assert len(caught) == 1
    device(x + 1)
    text = str(caught[0].message)
    assert text.startswith(
        "plugin 'cpu' does not run 1 operator of the inference graph, PyTorch does: "
    )
    assert_explained(text, function)
    expected = function(x)
    assert found.device == expected.device
    if expected.device.type == "cpu":
        assert_same(found, expected)
    (graph,) = compiled_graphs()
    assert graph.on_device == SEGMENTS[function]
    assert len(graph.fallback_reasons) == 1
    assert_explained(str(graph.fallback_reasons[0]), function)


@pytest.mark.parametrize("function", REFUSED)
def test_forbidden_fallback_raises_with_the_same_reason(function: Callable[..., Any]) -> None:
    device, x = compiled(function), torch.randn(3, 3)
    with pytest.raises(BackendCompilerFailed) as caught:
        device(x)
    error = caught.value.inner_exception
    assert isinstance(error, FallbackForbidden)
    assert_explained(str(error), function)
    assert "options={'fallback': 'host'}" in str(error)
    assert compiled_graphs() == ()


def test_the_next_graph_works_after_a_refusal() -> None:
    x = torch.randn(3, 3)
    with pytest.raises(BackendCompilerFailed):
        compiled(half)(x)
    assert_same(compiled(torch.exp)(x), torch.exp(x))
    assert_compiled("inference")


def test_each_reason_is_named_once_and_three_are_shown() -> None:
    def function(x: torch.Tensor) -> Any:
        y = torch.ops.pjrt_test.half(x)
        return y, torch.ops.pjrt_test.half(y)

    with pytest.warns(HostFallbackWarning) as caught:
        compiled(function, fallback="host")(torch.randn(3))
    assert len(caught) == 1
    assert str(caught[0].message).count("pjrt_test.half") == 4
    (graph,) = compiled_graphs()
    assert len(graph.fallback_reasons) == 2


@pytest.mark.filterwarnings("ignore:.*of the backward graph:pjrt_bridge.errors.HostFallbackWarning")
def test_a_split_graph_trains_right() -> None:
    eager = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def loss(x: torch.Tensor) -> torch.Tensor:
        return operators.squared(eager(x)).abs().sum()

    def gradients(function: Callable[..., Any]) -> list[torch.Tensor | None]:
        eager.zero_grad()
        function(x).backward()
        return [parameter.grad for parameter in eager.parameters()]

    x = torch.randn(3, 3)
    expected = gradients(loss)
    with pytest.warns(HostFallbackWarning, match="the forward graph"):
        found = gradients(compiled(loss, fallback="host"))
    assert_same(found, expected, rtol=1e-3, atol=1e-4)
    assert all(graph.on_device for graph in compiled_graphs())


class HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x / 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.ops.pjrt_test.half(gradient)


def test_a_backward_that_needs_the_host_leaves_the_forward_on_the_device() -> None:
    x = torch.randn(3, requires_grad=True)
    with pytest.warns(
        HostFallbackWarning, match=r"the backward graph, .* pjrt_test\.half\.default"
    ):
        compiled(lambda x: (HalfGradient.apply(x) * 3).sum(), fallback="host")(x).backward()
    assert_same(x.grad, torch.full((3,), 1.5))
    assert [(graph.kind, graph.on_device) for graph in compiled_graphs()] == [
        ("forward", 1),
        ("backward", 1),
    ]


def test_a_backward_that_needs_the_host_can_be_forbidden() -> None:
    x = torch.randn(3, requires_grad=True)
    loss = compiled(lambda x: (HalfGradient.apply(x) * 3).sum())(x)
    with pytest.raises(FallbackForbidden, match=r"the backward graph .* pjrt_test\.half\.default"):
        loss.backward()
    assert_compiled("forward")


def test_a_graph_break_makes_two_graphs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).sum()
        torch._dynamo.graph_break()
        return torch.sin(y) + x

    x = torch.randn(4)
    assert_same(compiled(function)(x), function(x))
    assert_compiled("inference", "inference")


def test_an_operator_whose_result_depends_on_data_breaks_the_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x * 2 > 0) + 1

    x = torch.tensor([1.0, -1.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(function)(x), function(x))
    assert {graph.on_device for graph in compiled_graphs()} == {1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"options": {"fallbak": "error"}},
            ["fallbak", "plugin, client, fallback, host_ops, "],
        ),
        ({"options": {"fallback": "never"}}, ["option fallback: found 'never'", "'host' or"]),
        ({"options": {"plugin": 3}}, ["option plugin: found 3", "a name or a path"]),
        ({"options": {"compiler_flags": ["a"]}}, ["option compiler_flags: found ['a']", "dict"]),
        ({"options": {"compiler_flags": {"xla_dump_to": None}}}, ["xla_dump_to"]),
        ({"options": {"host_ops": "aten.mm"}}, ["host_ops: found 'aten.mm'", "a list"]),
        ({"options": {"host_ops": ["aten.nm"]}}, ["no operator 'aten.nm'", "such as 'aten.mm'"]),
        ({"options": {"host_ops": ["mm"]}}, ["no operator 'mm'", "such as 'aten.mm'"]),
        ({"options": {"host_ops": ["aten::linear"]}}, ["decomposes 'aten.linear'"]),
        ({"options": {"min_segment": 0}}, ["min_segment: found 0", "1 or more"]),
        ({"options": {"min_segment": "all"}}, ["min_segment: found 'all'"]),
        ({"mode": "fastest"}, ["no mode 'fastest'", "default, reduce-overhead, max-autotune"]),
    ],
    ids=str,
)
def test_impossible_options(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BackendCompilerFailed, match="OptionError") as caught:
        torch.compile(torch.exp, backend="pjrt", **arguments)(torch.ones(2))
    for word in words:
        assert word in str(caught.value.inner_exception)


def test_unknown_plugin() -> None:
    with pytest.raises(BackendCompilerFailed) as caught:
        compiled(torch.exp, plugin="abacus")(torch.ones(2))
    error = caught.value.inner_exception
    assert isinstance(error, PluginNotFound)
    assert "plugin 'abacus' was not found" in str(error)
    assert "cpu" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        ResourceExhausted("no memory", code=8, plugin="cpu", function="Client_Compile"),
        ProgramError("not expressible for StableHLO 0.9.0"),
        UnsupportedDtype("float16 came with a later API"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_compilation_degrades_its_graph_only(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    x = torch.ones(2)
    with monkeypatch.context() as patch:
        patch.setattr(Client, "compile", fail)
        with pytest.warns(HostFallbackWarning, match=re.escape(f"be compiled: {error}")):
            found = compiled(torch.exp, fallback="host")(x)
    assert_same(found, torch.exp(x))
    assert [graph.on_device for graph in compiled_graphs()] == [0]
    assert_same(compiled(torch.sin)(x), torch.sin(x))


def test_a_lowering_that_fails_in_the_whole_graph_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    find = registry.find_lowering

    def once(name: str) -> Any:
        tried.append(name)
        return find(name) if tried.count(name) == 1 else None

    monkeypatch.setattr(registry, "find_lowering", once)
    with pytest.warns(HostFallbackWarning, match="be compiled: no lowering to StableHLO exists"):
        found = compiled(torch.exp, fallback="host")(torch.ones(2))
    assert_same(found, torch.exp(torch.ones(2)))


def test_a_flag_that_the_compiler_does_not_know_degrades_the_graph() -> None:
    x = torch.ones(2)
    flags = {"xla_no_such_flag": True}
    with pytest.warns(HostFallbackWarning, match="it could not be compiled: .*no_such_flag"):
        found = compiled(torch.exp, fallback="host", compiler_flags=flags)(x)
    assert_same(found, torch.exp(x))
    with pytest.raises(BackendCompilerFailed, match="FallbackForbidden"):
        compiled(torch.sin, compiler_flags=flags)(x)
    assert_same(compiled(torch.cos, compiler_flags={"xla_cpu_enable_fast_math": True})(x), x.cos())

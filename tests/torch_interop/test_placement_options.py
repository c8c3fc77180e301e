"""What users say about where operators run, and what crosses then."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from pjrt_bridge.errors import FallbackForbidden, HostFallbackWarning, OptionError
from pjrt_bridge.report.data import GraphReport
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.options import BackendOptions
from tests.torch_interop.helpers import assert_same, compiled
from tests.torch_interop.mixed import operators

pytestmark = pytest.mark.usefixtures("fresh")


def shape_of(graph: GraphReport) -> str:
    return "".join(segment.placement[0] for segment in graph.segments)


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1).tanh().sin() * 2


@pytest.mark.parametrize("name", ["aten.tanh", "aten.tanh.default", "aten::tanh"])
def test_an_operator_is_kept_on_the_host_without_a_word(name: str) -> None:
    x = torch.randn(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Also where falling back is forbidden: it was asked for.
        assert_same(compiled(chain, host_ops=[name])(x), chain(x))
    (graph,) = compiled_graphs()
    assert shape_of(graph) == "dhd"
    (reason,) = graph.fallback_reasons
    assert (reason.operator, reason.kind) == ("aten.tanh.default", "requested")


@pytest.mark.parametrize("name", ["aten.matmul", "aten.to", "aten.to.prim_dtype", "aten.size"])
def test_an_operator_that_no_backend_is_given_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"torch decomposes '{name}'"):
        BackendOptions(host_ops=[name])


def test_an_operator_that_torch_would_decompose_is_kept_whole() -> None:
    x = torch.randn(5, 4)
    run = compiled(lambda x: torch.nn.functional.hardswish(x) + 1, host_ops=["aten.hardswish"])
    assert_same(run(x), torch.nn.functional.hardswish(x) + 1)
    (graph,) = compiled_graphs()
    assert [dict(segment.operators) for segment in graph.segments] == [
        {"aten.hardswish.default": 1},
        {"aten.add.Tensor": 1},
    ]


def test_host_operators_in_training() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(3, 4)

    def gradients(run: Any) -> list[torch.Tensor | None]:
        model.zero_grad()
        run(x).square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    expected = gradients(model)
    run = compiled(model, host_ops=["aten.tanh", "aten.mm"])
    assert_same(gradients(run), expected)
    forward, backward = compiled_graphs()
    assert shape_of(forward) == "dhd"
    assert "h" in shape_of(backward)


def test_small_parts_stay_on_the_host() -> None:
    x = torch.randn(5)
    for least, expected in ((1, "dhd"), (2, "dhd"), (3, "h"), (4, "h")):
        torch.compiler.reset()
        run = compiled(chain, host_ops=["aten.tanh"], min_segment=least)
        assert_same(run(x), chain(x))
        (graph,) = compiled_graphs()
        assert shape_of(graph) == expected
    assert {reason.kind for reason in graph.fallback_reasons} == {"requested", "small"}
    assert any("fewer than min_segment=4" in found.reason for found in graph.fallback_reasons)


def test_a_whole_graph_that_is_small() -> None:
    x = torch.randn(5)
    assert_same(compiled(chain, min_segment=6)(x), chain(x))
    assert_same(compiled(chain, min_segment=5)(x), chain(x))
    assert [shape_of(graph) for graph in compiled_graphs()] == ["h", "d"]


def test_views_and_scalars_stay_with_who_made_them() -> None:
    def function(x: torch.Tensor, step: torch.Tensor) -> Any:
        y = torch.tanh(x.exp())
        return y.t()[1:].unsqueeze(0), step + 1

    x, step = torch.randn(3, 4), torch.tensor(1.0)
    assert_same(compiled(function, host_ops=["aten.tanh"])(x, step), function(x, step))
    (graph,) = compiled_graphs()
    # No launch for a view of what the host made; the scalar goes with a segment that is there.
    assert shape_of(graph) == "dh"


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_nothing_is_copied_at_borders(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> Any:
        y = torch.flip(x, (0,)).t()
        z = torch.neg(y) if dtype != torch.bool else torch.logical_not(y)
        w = torch.roll(z, 1, 0)
        return w, torch.flip(w, (1,)).permute(1, 0)

    x = torch.randn(16, 24).mul(3).to(dtype)
    names = ["aten.neg", "aten.logical_not"]
    assert_same(compiled(function, host_ops=names)(x), function(x))
    (graph,) = compiled_graphs()
    assert shape_of(graph) == "dhd"
    assert sum(segment.bytes_copied for segment in graph.segments) == 0
    size = x.nbytes
    # In: x; out: y. In: z; out: both results.
    assert [segment.bytes_shared for segment in graph.segments] == [2 * size, 0, 3 * size]


def test_what_lies_otherwise_is_copied_and_counted() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)[1:, 3:].exp()

    x = torch.randn(8, 16)
    for _ in range(2):
        assert_same(compiled(function, host_ops=["aten.tanh", "aten.slice"])(x), function(x))
    (graph,) = compiled_graphs()
    assert shape_of(graph) == "hd"
    assert graph.segments[1].bytes_copied == graph.segments[1].bytes_shared == 7 * 13 * 4


def test_forbidden_fallback_names_what_nobody_asked_for() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.ldl_factor(torch.tanh(x)).LD.abs()

    with pytest.raises(Exception, match="FallbackForbidden") as caught:
        compiled(function, host_ops=["aten.tanh"])(torch.eye(3))
    error = caught.value.inner_exception  # type: ignore[attr-defined]
    assert isinstance(error, FallbackForbidden)
    assert "aten.linalg_ldl_factor_ex.default" in str(error)
    assert "aten.tanh" not in str(error).split("(")[0]


def test_one_warning_for_each_distinct_fallback() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.ldl_factor(x).LD.abs()

    def second(x: torch.Tensor) -> torch.Tensor:
        return operators.squared(x)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in (2, 3, 4, 5):
            for function in (first, second):
                torch.compile(function, backend="pjrt", dynamic=False)(torch.eye(size))
    texts = [str(item.message) for item in caught if item.category is HostFallbackWarning]
    assert len(texts) == 2
    assert "aten.linalg_ldl_factor_ex.default" in texts[0]
    assert "pjrt_test.squared.default" in texts[1]

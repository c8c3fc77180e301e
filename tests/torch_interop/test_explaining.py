"""explain() tells what really ran where, and changes nothing."""

import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo_config

from pjrt_bridge.errors import ArgumentError, HostFallbackWarning, OptionError
from pjrt_bridge.report.report import Report
from pjrt_bridge.runtime.compile import compile_cache
from pjrt_bridge.torch_interop import compiled_graphs, explain, explain_with
from tests.torch_interop.helpers import compiled, custom_operators

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    twice = {"twice(Tensor x) -> Tensor": (lambda x: x * 2, torch.empty_like)}
    with custom_operators("pjrt_explain", twice):
        yield


def placements(report: Report) -> list[list[str]]:
    return [[segment.placement for segment in graph.segments] for graph in report.graphs]


def in_the_middle(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x) @ x.t()
    z = torch.ops.pjrt_explain.twice(y)
    return z.softmax(-1) + 1


def test_a_program_in_parts() -> None:
    x = torch.randn(16, 8)
    report = explain(in_the_middle, x)
    assert report.program == "in_the_middle"
    assert placements(report) == [["device", "host", "device"]]
    (graph,) = report.graphs
    assert (graph.kind, graph.plugin, graph.trigger, graph.within) == (
        "inference",
        "cpu",
        None,
        None,
    )
    first, host, last = graph.segments
    assert first.operators["aten.mm.default"] == 1
    assert dict(host.operators) == {"pjrt_explain.twice.default": 1}
    (reason,) = host.fallback_reasons
    assert reason.kind == "unsupported"
    assert reason.source is not None
    assert reason.source.startswith(f"{__file__}:{in_the_middle.__code__.co_firstlineno + 2}: ")
    assert (first.reads, host.reads, last.reads) == ((), (0,), (1,))
    assert first.takes_arguments
    assert not host.takes_arguments
    assert [s.gives_results for s in graph.segments] == [False, False, True]
    # x in, y out; z in, the result out: all of it in place.
    assert [s.bytes_shared for s in graph.segments] == [16 * 8 * 4 + 16 * 16 * 4, 0, 2048]
    assert report.bytes_copied == 0
    assert all(s.run_seconds is not None and s.run_seconds > 0 for s in graph.segments)
    assert min(first.compile_seconds, last.compile_seconds, graph.lowering_seconds) > 0
    assert host.compile_seconds == 0
    assert report.first_seconds is not None
    assert report.call_seconds is not None
    assert report.first_seconds > report.call_seconds > 0
    assert report.on_host == {"pjrt_explain.twice.default": 1}


def test_what_was_compiled_before_is_said_to_come_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(tmp_path))
    monkeypatch.setattr(compile_cache, "WORTH_STORING", 0)
    found = []
    for _ in range(2):
        torch.compiler.reset()
        report = explain(in_the_middle, torch.randn(16, 8))
        (graph,) = report.graphs
        found.append(([segment.cached for segment in graph.segments], str(report)))
        page = report.to_html(tmp_path / "report.html").read_text()
        assert ("from the cache" in page) == ("from the cache" in found[-1][1])
    assert [cached for cached, _ in found] == [[False] * 3, [True, False, True]]
    assert ["from the cache" in shown for _, shown in found] == [False, True]
    compile_cache._cache.cache_clear()


def test_a_report_shows_and_writes_itself(tmp_path: Path) -> None:
    report = explain(in_the_middle, torch.randn(4, 4))
    shown = " ".join(str(report).split())
    for words in ("pjrt_explain.twice.default", "z = torch.ops.pjrt_explain.twice(y)", "host"):
        assert words in shown
    content = json.loads(report.to_json())
    assert [s["placement"] for s in content["graphs"][0]["segments"]] == [
        "device",
        "host",
        "device",
    ]
    page = report.to_html(tmp_path / "report.html").read_text()
    assert "pjrt_explain.twice.default" in page
    assert "<svg" in page


def test_all_on_the_device() -> None:
    report = explain(torch.exp, torch.randn(8, 8))
    assert placements(report) == [["device"]]
    assert report.on_host == {}
    assert report.advice == ()
    assert (report.bytes_shared, report.bytes_copied) == (512, 0)


def test_forward_and_backward_of_a_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.inner(x), 0.5, self.training).sin()

    model = Model()
    report = explain(model, torch.randn(4, 8))
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"]
    assert placements(report) == [["device"], ["device"]]
    assert report.program == "Model"
    assert model.inner.weight.grad is None


def test_nothing_is_changed() -> None:
    norm = nn.BatchNorm1d(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return norm(x) * torch.rand(1)

    x = torch.randn(5, 3)
    before, mean = x.clone(), norm.running_mean.clone()  # type: ignore[union-attr]
    state = torch.random.get_rng_state()
    explain(nn.Sequential(norm), x)
    assert torch.equal(norm.running_mean, mean)  # type: ignore[arg-type]
    explain(step, x)
    assert torch.equal(x, before)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_what_is_compiled_is_explained_as_it_is() -> None:
    function = compiled(torch.tanh, fallback="host", host_ops=["aten.tanh"])
    x = torch.randn(4)
    function(x)
    report = explain(function, x)
    assert report.program == "tanh"
    assert placements(report) == [["host"]]
    assert report.graphs[0].segments[0].fallback_reasons[0].kind == "requested"
    # Nothing was compiled for the report.
    assert report.first_seconds is None
    assert len(compiled_graphs()) == 1
    with pytest.raises(OptionError, match="tanh is compiled already; give min_segment to torch"):
        explain_with({"min_segment": 3}, function, x)


def test_what_is_no_function_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"^explain: function: found 'x', expected a function$"):
        explain("x")
    with pytest.raises(ArgumentError, match="explain_with: function: found 7"):
        explain_with({}, 7)


def test_recompilations_and_what_triggered_them() -> None:
    function = compiled(torch.sin)
    for size in (3, 4, 500):
        function(torch.ones(size))
    report = explain(function, torch.ones(500))
    by_torch, for_sizes = report.recompilations
    assert by_torch.trigger is not None
    assert "size mismatch at index 0. expected 3, actual 4" in by_torch.trigger
    assert for_sizes.trigger is not None
    # Padded, for more sizes than this one.
    assert "(strides [1]), was [64]" in for_sizes.trigger
    assert [graph.ran for graph in report.graphs] == [False, False, True]


def test_a_graph_break_is_named() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    report = explain(function, torch.ones(3))
    assert [graph.name for graph in report.graphs] == ["inference", "inference 2"]
    assert len(report.breaks) == 1
    assert "graph_break()" in report.breaks[0]
    assert "\n" not in report.breaks[0]
    assert report.outside == {}
    assert "everything runs on" in str(report)


def test_a_function_that_breaks_in_a_loop_is_named() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x.sin()
            torch._dynamo.graph_break()
        return x

    def function(x: torch.Tensor) -> torch.Tensor:
        return inner(x * 2).cos()

    line = inner.__code__.co_firstlineno
    for called in (function, inner):
        torch.compiler.reset()
        report = explain(called, torch.ones(3))
        assert bool(report.graphs) == (called is function)
        reason = report.breaks[-1]
        start = f"{__file__}:{line}: nothing of inner is compiled, as it breaks in a loop: Call to"
        assert reason.startswith(start)
        assert report.outside == {"aten.sin": 2}


def test_an_error_is_raised_and_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record)

    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "handlers", [Handler()])

    def function(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(4, 4)

    with pytest.raises(RuntimeError, match="must have same reduction dim"):
        explain(function, torch.ones(3, 3))
    assert logged == []
    with pytest.raises(RuntimeError, match="must have same reduction dim"):
        compiled(function)(torch.ones(3, 3))
    assert len(logged) == 1


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_why_nothing_was_compiled() -> None:
    layer = torch.jit.script(torch.nn.Linear(3, 4))
    report = explain(lambda x: layer(x) + 1, torch.randn(2, 3))
    assert report.graphs == ()
    (reason,) = report.breaks
    assert "torch.jit.script" in reason
    text = " ".join(str(report).split())
    assert "The framework found nothing to compile: " in text
    assert "The framework itself ran aten." in text


def test_what_ran_between_graphs_is_counted_and_named() -> None:
    @torch._dynamo.disable
    def elsewhere(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 0).flip(0)

    def function(x: torch.Tensor) -> torch.Tensor:
        places = (torch.relu(x) * 2).nonzero()
        return places.sum() + elsewhere(x).sum().sin()

    line = function.__code__.co_firstlineno + 1
    for again in (False, True):
        # Whether it was compiled before or not.
        report = explain(compiled(function), torch.randn(8))
        assert report.outside == {"aten.nonzero": 1, "aten.cumsum": 1, "aten.flip": 1}
        assert report.on_host["aten.nonzero"] == 1
        first, second = report.breaks
        assert first.startswith(f"{__file__}:{line}: places = (torch.relu(x) * 2).nonzero(): Dynam")
        assert "`torch._dynamo.config.capture_dynamic_output_shape_ops = True`" in first
        assert second.startswith(f"{__file__}:{line + 1}: return places.sum() + elsewhere(x)")
        text = " ".join(str(report).split())
        assert "everything runs" not in text
        assert "outside of graphs 3 run by the framework on the host: aten.cumsum, aten." in text
        assert "Between these graphs the framework itself ran aten.cumsum" in text
        setting = "`torch._dynamo.config.capture_dynamic_output_shape_ops = True`"
        assert text.count(setting) == 2, again


def test_sizes_that_depend_on_data() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x.exp() > 1).float().sin()

    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
        report = explain(torch.compile(function, backend="pjrt", fullgraph=True), torch.randn(64))
    graph, inner = report.graphs
    assert [segment.placement for segment in graph.segments] == ["device", "host", "device"]
    assert graph.segments[1].fallback_reasons[0].kind == "data"
    assert (inner.within, inner.name) == (graph.name, "inference_2")
    # The bytes of the inner graph are those of the segment that it is.
    assert graph.segments[2].bytes_shared == inner.segments[0].bytes_shared > 0
    assert len(report.segments) == 3


def test_bytes_that_had_to_be_copied() -> None:
    unaligned = torch.randn(2**20 + 1)[1:]
    report = explain(torch.exp, unaligned)
    assert (report.bytes_shared, report.bytes_copied) == (2**22, 2**22)
    assert any("multiple of 64 bytes" in line for line in report.advice)


def test_the_report_takes_the_place_of_no_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explain(in_the_middle, torch.randn(4, 4))
    assert [item.category for item in caught].count(HostFallbackWarning) == 1


def test_an_exception_of_the_function_passes_through() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("mine")

    x = torch.ones(2)
    with pytest.raises(ZeroDivisionError, match="mine"):
        explain(fails, x)
    report: Any = explain(torch.exp, x)
    assert placements(report) == [["device"]]

"""Calls that PyTorch runs because their sizes are not compiled are told and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.mixed import variants
from pjrt_bridge.mixed.background import BACKGROUND
from pjrt_bridge.mixed.padded_sizes import OFTEN
from pjrt_bridge.report.data import GraphReport
from pjrt_bridge.torch_interop import compiled_graphs, explain
from pjrt_bridge.torch_interop.compiling.host_calls import MANY
from tests import configuration

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Compilations beside the calls, which wait until the test makes them."""
    works: list[Callable[[], None]] = []
    monkeypatch.delenv(configuration.BACKGROUND)
    monkeypatch.setattr(BACKGROUND, "begin", lambda work: works.append(work) or True)
    return works


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """The function, compiled for sizes that change."""
    return torch.compile(function, backend="pjrt", dynamic=True, options=options)


def of_the_host() -> list[GraphReport]:
    """The graphs that PyTorch runs."""
    return [graph for graph in compiled_graphs() if not graph.on_device]


def test_sizes_that_are_not_compiled_have_an_entry(
    monkeypatch: pytest.MonkeyPatch, beside: list[Callable[[], None]]
) -> None:
    monkeypatch.setattr(variants, "EAGER", 2)
    on_device = compiled(lambda x: x.cumprod(0), buckets=[])
    for size in (2, 3, 4, 5, 6):
        on_device(torch.ones(size))
    (graph,) = of_the_host()
    (reason,) = graph.fallback_reasons
    assert reason.kind == "sizes"
    assert str(reason) == (
        "PyTorch ran 3 calls: 3 of sizes that had not come often enough to be compiled"
    )
    explained = " ".join(str(explain(on_device, torch.ones(7))).split())
    assert "4 of sizes that had not come often enough" in explained
    assert "Sizes that keep changing" in explained
    on_device(torch.ones(7))
    told = of_the_host()[0].fallback_reasons
    assert "of sizes that were being compiled" in str(told[0])
    beside.pop()()
    on_device(torch.ones(7))
    assert of_the_host()[0].fallback_reasons == told
    last = compiled_graphs()[-1]
    assert last.on_device
    assert last.trigger is not None
    assert last.trigger.endswith("came again: compiled beside the calls that PyTorch ran meanwhile")


def test_the_warning_names_what_keeps_sizes_from_being_padded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variants, "LIMIT", 2)
    on_device = compiled(lambda x: torch.histc(x, 3).sum() + x)
    for size in (2, 3):
        on_device(torch.ones(size))
    with pytest.warns(HostFallbackWarning, match=r"not padded because of aten\.histc"):
        on_device(torch.ones(4))
    (graph,) = of_the_host()
    assert "because of aten.histc" in str(graph.fallback_reasons[0])


def test_the_warning_comes_after_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "EAGER", 2)
    on_device = compiled(lambda x: torch.histc(x, 3).sum() + x)
    for size in range(2, 3 + MANY):
        on_device(torch.ones(size))
    with pytest.warns(HostFallbackWarning, match=r"sizes keep changing: those that come often"):
        on_device(torch.ones(3 + MANY))
    on_device(torch.ones(4 + MANY))


def test_the_program_of_sizes_that_came_often_says_so(beside: list[Callable[[], None]]) -> None:
    on_device = compiled(lambda x: x @ x.t())
    for size in (*range(3, 9), 130, *[129] * (OFTEN + 2)):
        on_device(torch.ones(size, 64))
    beside.pop()()
    replaced = "a program of just these replaces the padded one"
    assert replaced in str(compiled_graphs()[-1].trigger)

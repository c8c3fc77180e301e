"""Programs in parts, of a framework that there is only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pjrt_bridge.errors import ProgramError, SavedModelError, SignatureMismatch
from pjrt_bridge.exported import (
    Argument,
    Check,
    ExportedModel,
    Interface,
    Part,
    Slot,
    Specialization,
    SplitProgram,
    TensorLeaf,
    Tree,
    Weight,
)
from pjrt_bridge.exported.parts import read_host_part
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.runtime import Buffer, Client
from pjrt_bridge.stablehlo import Builder, TensorType
from tests.exported.models import F32, LEAF

TYPE = TensorType((4,), F32)
X = np.array([1, 2, 2, 3], np.float32)
FALLBACK_REASON = FallbackReason(
    "unique", "its size depends on data", "data", "here.py:1: unique(x)"
)


class Unique:
    """Gives the distinct elements, how many there are, and four of them."""

    framework = "numpy"
    suffix = ".npy"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def content(self) -> bytes:
        return b"unique"

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        self.seen = list(values)
        found = np.unique(np.asarray(values[0]))
        if found[0] < 0:
            raise ValueError("negative")
        return found, len(found), np.resize(found, 4)


def program(name: str) -> Any:
    builder = Builder([TYPE, TYPE], name=name)
    return builder.finish([builder.add(*builder.parameters)])


def model(host: Unique) -> ExportedModel:
    """`unique(x + total)`, how many, and `resize(unique(...), 4) + total`, the new total."""
    parts = (
        Part(program("first"), (0, 1), (2,), {"add": 1}),
        Part(host, (2,), (3, 4, 5), {"unique": 1, "resize": 1}, (FALLBACK_REASON,)),
        Part(program("last"), (5, 1), (6,), {"add": 1}),
    )
    split = SplitProgram("model", (TYPE, TYPE), parts, (3, 4, 6))
    leaves = tuple(Tree("leaf", leaf=at) for at in range(3))
    return ExportedModel(
        name="model",
        interface=Interface(
            (Argument("x", LEAF),), (TensorLeaf("x", F32, (4,)),), Tree("tuple", items=leaves)
        ),
        weights={"total": Weight("buffer", F32, (4,), "total")},
        tensors={"total": np.zeros(4, np.float32)},
        specializations=(
            Specialization(
                split,
                (Slot("input", 0), Slot("weight", "total")),
                (None, None, Slot("weight", "total")),
                (Slot("result", 0), Slot("result", 1), Slot("result", 2)),
                {},
                (Check(Slot("result", 1), "nonzero", "no elements"),),
            ),
        ),
        exporter="test 1",
        symbols={},
    )


def test_values_cross_as_they_are_and_state_is_kept(client: Client) -> None:
    host = Unique()
    with model(host).load_on(client) as loaded:
        loaded.compile()
        values, count, total = loaded(X)
        assert isinstance(host.seen[0], Buffer)
        assert (np.asarray(values).tolist(), count) == ([1, 2, 3], 3)
        assert np.asarray(total).tolist() == [1, 2, 3, 1]
        values, _, total = loaded(X)
        assert np.asarray(values).tolist() == [2, 4, 5]
        assert np.asarray(total).tolist() == [3, 6, 8, 3]
        assert loaded.weights()["total"].tolist() == [3, 6, 8, 3]
        loaded.reset()
        assert loaded(X)[1] == 3


def test_what_the_host_raises_passes_through_and_nothing_is_changed(client: Client) -> None:
    with model(Unique()).load_on(client) as loaded:
        loaded(X)
        with pytest.raises(ValueError, match="negative"):
            loaded(-X)
        with pytest.raises(SignatureMismatch, match=r"'x': found shape \[3\], expected \[4\]"):
            loaded(X[:3])
        assert loaded.weights()["total"].tolist() == [1, 2, 3, 1]
        assert loaded(X)[1] == 3


def test_a_report_of_it() -> None:
    report = model(Unique()).report()
    (graph,) = report.graphs
    assert [segment.placement for segment in graph.segments] == ["device", "host", "device"]
    assert [segment.reads for segment in graph.segments] == [(), (0,), (1,)]
    assert [segment.gives_results for segment in graph.segments] == [False, True, True]
    assert graph.fallback_reasons == (FALLBACK_REASON,)
    text = str(report)
    assert "50 % of the operators run on the device" in text
    assert "its size depends on data" in text
    assert "per call" not in text


def test_it_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="model 'model': its program is in 3 parts"):
        model(Unique()).artifact()


def test_nobody_reads_the_parts_of_other_frameworks(tmp_path: Path) -> None:
    model(Unique()).save(tmp_path)
    assert (tmp_path / "program_0_1.npy").read_bytes() == b"unique"
    with pytest.raises(
        SavedModelError,
        match=r"program_0_1\.npy: this part of the model runs in 'numpy' on the host, and there is "
        r"no pjrt_bridge\.numpy_interop",
    ):
        ExportedModel.load(tmp_path, trusted=True)


@pytest.mark.parametrize("name", ["", "os.path", "Torch", "../torch"])
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(SavedModelError, match=r"framework: found '.*', needed a name"):
        read_host_part(name, b"", tmp_path)

"""Models of every family: exported, saved, loaded by a process without their code, like eager."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.torch_interop import compat, export
from tests.models import zoo
from tests.models.running import plain

ALWAYS = ("gpt2", "lstm", "gnn", "resnet")
"""One of each sort is exported always."""

TOLERANCE = 1e-4
"""Of the largest element of a result."""


REFUSED = {
    "llava": (NotExportable, "a number that depends on data"),
    # torch.export itself refuses it: a branch in the model depends on its labels.
    "wav2vec2": (NotExportable, "vocab_size"),
}
"""Models that ask for the value of a tensor while they run."""

IN_PARTS = ("llava",)
"""Of these, models of which PyTorch can run a part."""


def prepare(name: str, folder: Path, *, split: bool = False) -> list[torch.Tensor]:
    """Export and save a model with its inputs; what eager gives."""
    torch.manual_seed(0)
    model, inputs = zoo.build(name)
    model.eval()
    with torch.no_grad():
        expected = compat.tree_leaves(plain(model(**inputs)))
    exported = export(model, kwargs=inputs, split=split)
    exported.save(folder / "model")
    leaves = exported.interface.bind((), inputs)
    tensors = {str(i): x.numpy() for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)}
    np.savez(folder / "inputs.npz", **tensors)
    return [leaf for leaf in expected if leaf is not None]


def run_elsewhere(*arguments: Path | str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch_interop.export.elsewhere", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr


def check(expected: list[torch.Tensor], found: Any) -> None:
    assert len(found.files) == len(expected)
    for name, leaf in zip(found.files, expected, strict=True):
        array = found[name]
        theirs = np.asarray(leaf)
        assert array.dtype == theirs.dtype
        assert array.shape == theirs.shape
        if theirs.dtype.kind == "f" and theirs.size:
            assert np.abs(array - theirs).max() <= TOLERANCE * max(1, np.abs(theirs).max())
        else:
            assert np.array_equal(array, theirs)


def test_one_of_each_sort(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ALWAYS}
    for folder in folders.values():
        folder.mkdir()
    expected = {name: prepare(name, folder) for name, folder in folders.items()}
    run_elsewhere(*folders.values())
    for name, folder in folders.items():
        check(expected[name], np.load(folder / "outputs.npz"))


# Eager's own fast path of a transformer makes nested tensors.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in zoo.MODELS if name not in ALWAYS])
def test_every_model(name: str, tmp_path: Path) -> None:
    if name in REFUSED:
        error, text = REFUSED[name]
        with pytest.raises(error, match=text):
            prepare(name, tmp_path)
        if name not in IN_PARTS:
            return
    expected = prepare(name, tmp_path, split=name in IN_PARTS)
    # Loading parts that run in PyTorch runs code.
    run_elsewhere(*(["--trusted"] if name in IN_PARTS else []), tmp_path)
    check(expected, np.load(tmp_path / "outputs.npz"))

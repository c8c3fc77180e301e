"""Saved models in a process that knows neither PyTorch nor the models: `python -m ... FOLDER ...`.

Only a model with parts that run in PyTorch may bring that.

In each folder are `model` and `inputs.npz`, the leaves of the arguments by their index; what the
model gives is written to `outputs.npz`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pjrt_bridge.exported import ExportedModel, SplitProgram, TensorLeaf
from tests.plugins import cpu_plugin


def main(folders: list[str]) -> None:
    strangers = {"torch", "transformers"}
    client = cpu_plugin().client({"cpu_device_count": 1})
    for folder in map(Path, folders):
        model = ExportedModel.load(folder / "model")
        if any(isinstance(one.program, SplitProgram) for one in model.specializations):
            strangers.discard("torch")
        inputs = np.load(folder / "inputs.npz")
        leaves = [
            inputs[str(index)] if isinstance(leaf, TensorLeaf) else leaf.value
            for index, leaf in enumerate(model.interface.inputs)
        ]
        with model.load_on(client) as loaded:
            outputs = loaded.run(leaves)
            np.savez(folder / "outputs.npz", *[np.array(x) for x in outputs if x is not None])
    assert not strangers & set(sys.modules)


if __name__ == "__main__":
    main(sys.argv[1:])

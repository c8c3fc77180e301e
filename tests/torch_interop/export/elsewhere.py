"""Saved models in a process that does not know them: `python -m ... [--trusted] FOLDER ...`.

It does not know PyTorch either. Only trusted models may bring it, for parts that run there.

In each folder are `model` and `inputs.npz`, the leaves of the arguments by their index; what the
model gives is written to `outputs.npz`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pjrt_bridge.exported import ExportedModel, TensorLeaf
from tests.plugins import cpu_plugin


def main(arguments: list[str]) -> None:
    trusted = "--trusted" in arguments
    client = cpu_plugin().client({"cpu_device_count": 1})
    for folder in (Path(argument) for argument in arguments if argument != "--trusted"):
        model = ExportedModel.load(folder / "model", trusted=trusted)
        inputs = np.load(folder / "inputs.npz")
        leaves = [
            inputs[str(index)] if isinstance(leaf, TensorLeaf) else leaf.value
            for index, leaf in enumerate(model.interface.inputs)
        ]
        with model.load_on(client) as loaded:
            outputs = loaded.run(leaves)
            np.savez(folder / "outputs.npz", *[np.array(x) for x in outputs if x is not None])
    assert not {"transformers", *(["torch"] * (not trusted))} & set(sys.modules)


if __name__ == "__main__":
    main(sys.argv[1:])

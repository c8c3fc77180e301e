"""Models that PyTorch/XLA's own exporter lowers, where that is installed (PyTorch 2.9).

It writes a bundle, which `pjrt_bridge.exported.torch_xla_bundle` reads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace

from torch.export import ExportedProgram

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.exported.torch_xla_bundle import read_bundle
from pjrt_bridge.wrong_arguments import checked


@checked
def export(
    program: ExportedProgram, names: Sequence[str], *, name: str, target: str | None
) -> ExportedModel:
    """The model that PyTorch/XLA's exporter makes of an exported program.

    Args:
        program: with example inputs by position.
        names: of the arguments.
        name: of the model.
        target: StableHLO version of its artifacts.

    Raises:
        NotExportable: PyTorch/XLA is missing, or cannot lower the program.
    """
    # Without this PyTorch/XLA looks for other devices when it is imported.
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    try:
        import torch_xla
        from torch_xla.stablehlo import save_as_stablehlo
    except ImportError as error:
        raise NotExportable(
            f"exporter 'torch_xla': PyTorch/XLA cannot be imported ({error}); its last release is "
            "for PyTorch 2.9: pip install torch==2.9.0 torch_xla==2.9.0"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_as_stablehlo(program, folder)
        except Exception as error:
            raise NotExportable(f"exporter 'torch_xla': {error}") from error
        # The weights stay memory-mapped after the folder is deleted.
        model = read_bundle(folder, names=names)
    return replace(model, name=name, target=target, exporter=f"torch_xla {torch_xla.__version__}")

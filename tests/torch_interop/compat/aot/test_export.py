"""What the bridge changes of torch.export while it uses it."""

from __future__ import annotations

import pytest
import torch
from torch._export import utils

from pjrt_bridge.torch_interop.compat.aot import export


def test_torch_registers_its_operators_once_for_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    register = utils._materialize_cpp_cia_ops

    def counted() -> None:
        calls.append(1)
        register()

    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", counted)
    traced = export.trace(torch.nn.Linear(4, 3), (torch.randn(2, 4),), {}, None)
    calls.clear()
    targets = {str(node.target) for node in export.decomposed(traced).graph.nodes}
    assert "aten.addmm.default" in targets
    assert len(calls) == 1
    assert utils._materialize_cpp_cia_ops is counted

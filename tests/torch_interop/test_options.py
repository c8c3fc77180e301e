"""The modes of torch.compile, which stand for options."""

import re
from typing import Any

import pytest
import torch

from pjrt_bridge.errors import OptionError
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.options import MODES, BackendOptions

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize(
    "mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
)
def test_modes(mode: str) -> None:
    function = torch.compile(torch.exp, backend="pjrt", mode=mode)
    assert torch.allclose(function(torch.ones(2)), torch.ones(2).exp())
    assert [graph.on_device for graph in compiled_graphs()] == [1]


@pytest.mark.parametrize("mode", [3, ["default"], ""], ids=str)
def test_modes_of_a_wrong_kind(mode: Any) -> None:
    with pytest.raises(OptionError, match=re.escape(f"no mode {mode!r}")):
        BackendOptions.parse(None, mode)


def test_modes_are_options() -> None:
    for mode, options in MODES.items():
        assert BackendOptions.parse(None, mode) == BackendOptions(**options)
    given = BackendOptions.parse({"min_segment": 3}, "max-autotune")
    assert given.min_segment == 3

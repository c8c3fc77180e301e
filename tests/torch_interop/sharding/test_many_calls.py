"""Calls over a mesh, again and again: each result is right, and no call waits."""

from __future__ import annotations

import pytest
import torch

from pjrt_bridge.torch_interop.sharding import Mesh, mark_sharding
from tests.torch_interop.sharding.models import Mlp, divide_layers

CALLS = 2000


@pytest.mark.slow
def test_two_thousand_calls(mesh: Mesh) -> None:
    torch.manual_seed(0)
    model, expected = Mlp(), Mlp()
    expected.load_state_dict(model.state_dict())
    divide_layers(model, mesh)
    run = torch.compile(model, backend="pjrt", options={"mesh": mesh})
    inputs = [torch.randn(8, 8) for _ in range(7)]
    with torch.no_grad():
        wanted = [expected(x) for x in inputs]
        divided = [mark_sharding(x, mesh, ("dp",)) for x in inputs]
        for call in range(CALLS):
            found = run(divided[call % 7]).cpu()
            torch.testing.assert_close(found, wanted[call % 7], rtol=1e-5, atol=1e-6)

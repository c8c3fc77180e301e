"""Attention in half precision on a device apart from the host: one operator in the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

from pjrt_bridge.torch_interop import backend, compat
from pjrt_bridge.torch_interop.compat.operators import operator_name
from pjrt_bridge.torch_interop.compiler import Compiler

OPERATOR = "._scaled_dot_product_flash_attention_for_cpu.default"
MASK = torch.tensor([[True, False, True, True], [True, True, True, False]] * 2)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators of the graphs that are compiled, as for a plugin whose memory is apart."""
    found: list[str] = []
    usual = Compiler.compile

    def compile(self: Compiler, kind: str, graph: Any, inputs: Any) -> Any:
        found.extend(str(operator_name(node.target)) for node in graph.graph.nodes)
        return usual(self, kind, graph, inputs)

    monkeypatch.setattr(Compiler, "compile", compile)
    monkeypatch.setattr(backend, "attending", lambda _: (*compat.CHOOSING, "pjrt"))
    torch.compiler.reset()
    return found


@pytest.mark.parametrize("host", [False, True], ids=["device", "host"])
@pytest.mark.parametrize(
    "how",
    [{}, {"is_causal": True}, {"attn_mask": MASK}, {"attn_mask": MASK.float() * 0.5}],
    ids=["plain", "causal", "mask", "added"],
)
def test_results_and_gradients(how: dict[str, Any], host: bool, traced: list[str]) -> None:
    torch.manual_seed(0)
    sides = [torch.randn(2, 3, 4, 8, dtype=torch.bfloat16) for _ in range(3)]
    resident = [side.to("pjrt").requires_grad_() for side in sides]
    exact = [side.float().requires_grad_() for side in sides]
    options = {"host_ops": ["aten" + OPERATOR]} if host else {"fallback": "error"}

    def attended(query: Any, key: Any, value: Any) -> Any:
        mask = how.get("attn_mask")
        moved = {} if mask is None else {"attn_mask": mask.to(query.device)}
        return attend(query, key, value, **{**how, **moved})

    found = torch.compile(attended, backend="pjrt", options=options)(*resident)
    wanted = attended(*exact)
    torch.testing.assert_close(found.cpu().float(), wanted, rtol=2e-2, atol=2e-2)
    assert any(name.endswith(OPERATOR) for name in traced)
    gradients = torch.autograd.grad(found.sum(), resident)
    for mine, right in zip(gradients, torch.autograd.grad(wanted.sum(), exact), strict=True):
        torch.testing.assert_close(mine.cpu().float(), right, rtol=3e-2, atol=3e-2)


def test_autocast(traced: list[str]) -> None:
    sides = [torch.randn(2, 3, 4, 8) for _ in range(3)]
    compiled = torch.compile(attend, backend="pjrt", options={"fallback": "error"})
    with torch.autocast("pjrt", torch.bfloat16):
        found = compiled(*(side.to("pjrt") for side in sides))
    assert found.dtype == torch.bfloat16
    assert any(name.endswith(OPERATOR) for name in traced)
    torch.testing.assert_close(found.cpu().float(), attend(*sides), rtol=3e-2, atol=3e-2)


def test_where_the_memory_is_the_hosts_nothing_changes() -> None:
    client = backend.select_client("cpu")
    assert backend.attending([client]) == compat.CHOOSING

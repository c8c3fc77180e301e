"""Attention as one operator: in eager, and in graphs in half precision where memory is apart."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend
from torch.utils._python_dispatch import TorchDispatchMode

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


def _called(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call gives, and the operators that run for it."""
    names: list[str] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watching():
        return call(), names


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "mask": {"attn_mask": MASK},
    "added": {"attn_mask": MASK.float() * 0.5},
    "a causal mask": {"attn_mask": MASK, "is_causal": True},
    "a causal one that is added": {"attn_mask": MASK.float() * 0.5, "is_causal": True},
    "a mask for each head": {"attn_mask": MASK.expand(2, 3, 4, 4)},
    "a mask for all heads": {"attn_mask": MASK[None, None]},
    "a row that sees nothing": {"attn_mask": torch.tensor([[False] * 4, [True] * 4] * 2)},
}


@pytest.mark.parametrize("mode", ["async", "fused"])
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_eager_attention_is_one_operator(
    how: dict[str, Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    torch.manual_seed(0)
    home = [torch.randn(2, 3, 4, 8).transpose(1, 2) for _ in range(3)]
    home = [side.transpose(1, 2).requires_grad_() for side in home]
    sides = [side.detach().to("pjrt").requires_grad_() for side in home]
    moved = {
        name: value.to("pjrt") if isinstance(value, torch.Tensor) else value
        for name, value in how.items()
    }
    expected = attend(*home, **how)
    found, names = _called(lambda: attend(*sides, **moved))
    assert sum(name.endswith(OPERATOR.removeprefix("aten")) for name in names) == 1
    computed = [name for name in names if not name.startswith("aten.detach")]
    assert len(computed) == 1 or "attn_mask" in how
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert found.stride() == expected.stride()
    gradients = torch.autograd.grad(found.square().sum(), sides)
    wanted = torch.autograd.grad(expected.square().sum(), home)
    for mine, right in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(mine.cpu(), right, rtol=1e-4, atol=1e-5)


LEFT: dict[str, Callable[[Any, Any, Any], Any]] = {
    "three dimensions": lambda q, k, v: attend(q[0], k[0], v[0]),
    "values of another size": lambda q, k, v: attend(q, k, v[..., :5]),
    "fewer heads of keys": lambda q, k, v: attend(q, k[:, :1], v[:, :1], enable_gqa=True),
    "a batch that is repeated": lambda q, k, v: attend(q, k[:1], v[:1]),
    "no dropout but a mask with gradients": lambda q, k, v: attend(q, k, v, q[0, 0] @ k[0, 0].T),
    "no keys": lambda q, k, v: attend(q, k[:, :, :0], v[:, :, :0]),
    "mapped": lambda q, k, v: torch.vmap(attend)(q, k, v),
    "tangents": lambda q, k, v: torch.func.jvp(attend, (q, k, v), (q, k, v))[1],
    "a hessian": lambda q, k, v: torch.func.hessian(lambda x: attend(x, k, v).sum())(q).sum(0),
    "types that differ": lambda q, k, v: attend(q.double(), k, v),
    "a mask of another length": lambda q, k, v: attend(q, k, v, attn_mask=q[0, 0, :3, :3]),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_uses_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    home = [torch.randn(2, 3, 4, 8) for _ in range(3)]
    sides = [side.to("pjrt") for side in home]

    def outcome(given: list[Any]) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return LEFT[name](*given)

    try:
        expected = outcome(home)
    except Exception as error:
        with pytest.raises(type(error)):
            LEFT[name](*sides)
        return
    torch.testing.assert_close(LEFT[name](*sides).cpu(), expected, rtol=1e-4, atol=1e-4)


def test_attention_as_products_has_gradients_of_gradients() -> None:
    sides = [torch.randn(1, 1, 3, 2, device="pjrt", requires_grad=True) for _ in range(3)]
    with sdpa_kernel(SDPBackend.MATH):
        (first,) = torch.autograd.grad(attend(*sides).sum(), sides[0], create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), sides[0])
    assert second.abs().sum() > 0


@pytest.mark.parametrize("mode", ["async", "fused"])
def test_multi_head_attention_in_inference(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One operator, whose weights are None where they are not needed."""
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    on_host = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    layer = copy.deepcopy(on_host).to("pjrt")
    x, mask = torch.randn(2, 4, 8), torch.ones(4, 4, dtype=torch.bool).triu(1)
    moved = x.to("pjrt")
    with torch.no_grad():
        for how in ({}, {"need_weights": False}, {"average_attn_weights": False}):
            found, weights = layer(moved, moved, moved, attn_mask=mask.to("pjrt"), **how)
            expected, promised = on_host(x, x, x, attn_mask=mask, **how)
            torch.testing.assert_close(found.cpu(), expected)
            assert (weights is None) == (promised is None)
            if promised is not None:
                torch.testing.assert_close(weights.cpu(), promised)
        nothing = moved[:0]
        found, weights = layer(nothing, nothing, nothing)
        assert found.shape == (0, 4, 8)
        assert weights is None

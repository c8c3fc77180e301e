"""Attention of `torch.compile(f, backend="pjrt")` by cuDNN's kernels, beside that of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pjrt_bridge.runtime import Client, Executable
from pjrt_bridge.stablehlo import Program

FORWARD, BACKWARD = "__cudnn$fmhaSoftmax(", "__cudnn$fmhaSoftmaxBackward("


@pytest.fixture
def torch(gpu: Client) -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a build of torch with CUDA")
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs a GPU for which cuDNN has fused attention")
    torch.manual_seed(0)
    torch.compiler.reset()
    return torch


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of the graphs' programs that are compiled."""
    texts: list[str] = []
    compile = Client.compile

    def noted(client: Client, program: Any, **options: Any) -> Executable:
        # A trial of a kernel is a program, too.
        if isinstance(program, Program) and program.name != "attention":
            texts.append(program.text)
        return compile(client, program, **options)

    monkeypatch.setattr(Client, "compile", noted)
    return texts


def heads(torch: Any, shape: tuple[int, ...], dtype: str, *, inside: bool = True) -> Any:
    batch, count, length, size = shape
    how: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, dtype)}
    if inside:
        return torch.randn(batch, length, count, size, **how).transpose(1, 2)
    return torch.randn(shape, **how)


def check(torch: Any, function: Callable[..., Any], *given: Any, train: bool) -> None:
    """Compare a compiled function of query, key and value with eager in float32."""
    exact = [x.detach().float().requires_grad_(train) for x in given]
    for x in given:
        x.requires_grad_(train)
    # Everything on the device: else this is an error.
    compiled = torch.compile(function, backend="pjrt", options={"fallback": "error"})
    found, wanted = compiled(*given), function(*exact)
    assert found.is_cuda
    assert found.dtype == given[0].dtype
    torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=2e-2)
    if not train:
        return
    slope = torch.randn_like(wanted)
    own = torch.autograd.grad(found, given, slope.to(found.dtype))
    for mine, right in zip(own, torch.autograd.grad(wanted, exact, slope), strict=True):
        largest = right.abs().max()
        assert float((mine.float() - right).abs().max() / largest) < 2e-2


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["plain", "causal"])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("length", [128, 512, 384])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_it_is_one_kernel(
    torch: Any,
    programs: list[str],
    dtype: str,
    length: int,
    size: int,
    is_causal: bool,
    train: bool,
) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention

    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, is_causal=is_causal)

    given = [heads(torch, (2, 4, length, size), dtype) for _ in range(3)]
    check(torch, function, *given, train=train)
    assert sum(FORWARD in text for text in programs) == 1
    assert sum(BACKWARD in text for text in programs) == int(train)
    assert not any("stablehlo.dot_general" in text for text in programs)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_sides_that_lie_otherwise(torch: Any, programs: list[str], train: bool) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention

    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, scale=0.3)

    query = heads(torch, (2, 4, 128, 64), "bfloat16", inside=False)
    others = [heads(torch, (2, 4, 256, 64), "bfloat16", inside=at == 1) for at in range(2)]
    check(torch, function, query, *others, train=train)
    assert any(FORWARD in text for text in programs)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_query_heads_that_share_a_key_head(torch: Any, programs: list[str], train: bool) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention

    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, is_causal=True, enable_gqa=True)

    query = heads(torch, (2, 8, 128, 64), "bfloat16")
    others = [heads(torch, (2, 2, 128, 64), "bfloat16") for _ in range(2)]
    check(torch, function, query, *others, train=train)
    assert any(FORWARD in text for text in programs)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_under_autocast(torch: Any, programs: list[str], train: bool) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention

    def function(q: Any, k: Any, v: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=q.dtype == torch.float32):
            return attend(q, k, v, is_causal=True)

    given = [heads(torch, (2, 4, 128, 64), "float32").requires_grad_(train) for _ in range(3)]
    compiled = torch.compile(function, backend="pjrt", options={"fallback": "error"})
    found, wanted = compiled(*given), attend(*given, is_causal=True)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=2e-2)
    assert any(FORWARD in text for text in programs)
    if train:
        slope = torch.randn_like(wanted)
        own = torch.autograd.grad(found, given, slope.to(found.dtype))
        for mine, right in zip(own, torch.autograd.grad(wanted, given, slope), strict=True):
            assert float((mine - right).abs().max() / right.abs().max()) < 2e-2
        assert any(BACKWARD in text for text in programs)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("use", ["odd", "mask", "added"])
def test_other_attention_is_right_without_it(
    torch: Any, programs: list[str], use: str, train: bool
) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    length = 127 if use == "odd" else 128
    seen = torch.rand(length, length, device="cuda") > 0.3
    mask = {"odd": None, "mask": seen, "added": seen.float()}[use]

    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, attn_mask=mask)

    given = [heads(torch, (2, 4, length, 64), "bfloat16") for _ in range(3)]
    check(torch, function, *given, train=train)
    assert programs
    assert not any("fmha" in text for text in programs)


def test_the_host_of_the_graph_computes_it_too(torch: Any) -> None:
    """A part of a graph that runs in PyTorch: there are kernels of the operator on CUDA."""
    attend = torch.nn.functional.scaled_dot_product_attention

    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    given = [heads(torch, (2, 4, 128, 64), "bfloat16") for _ in range(3)]
    wanted = function(*(x.float() for x in given))
    compiled = torch.compile(
        function,
        backend="pjrt",
        options={"host_ops": ["aten._scaled_dot_product_flash_attention_for_cpu"]},
    )
    torch.testing.assert_close(compiled(*given).float(), wanted, rtol=2e-2, atol=2e-2)

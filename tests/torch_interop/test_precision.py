"""Programs state how exact products are, by torch's settings, on platforms where that matters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pjrt_bridge import registry
from pjrt_bridge.stablehlo.precision import Precision, Precisions
from pjrt_bridge.torch_interop import compiled_graphs, custom_op, explain, export, precision
from pjrt_bridge.torch_interop.compiling import target
from pjrt_bridge.torch_interop.foreign import eager
from pjrt_bridge.torch_interop.ledger import LEDGER
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.resident.client import chosen
from pjrt_bridge_cpu import small_convolutions
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.programs import note_compiled
from tests.torch_interop.helpers import compiled

SETTINGS: dict[str, Precision] = {"highest": "HIGHEST", "high": "HIGH", "medium": "DEFAULT"}


@pytest.fixture(autouse=True)
def restored(fresh: None) -> Iterator[None]:
    """Torch's settings are what they were."""
    backends: Any = torch.backends
    # Torch's tests, which others import, forbid it from then on.
    with getattr(backends, "__allow_nonbracketed_mutation")():
        yield
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = True
        for backend in (backends, backends.mkldnn.matmul, backends.cuda.matmul):
            backend.fp32_precision = "none"


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that are compiled for a platform that multiplies float32 in a shorter type.

    None of its kernels multiplies, as those of the CPU plugin do in small programs.
    """
    client = registry.client("cpu")
    monkeypatch.setattr(XlaKernels, "inline_flops", 0)
    monkeypatch.setattr(small_convolutions, "MOST", 0)
    inexact = replace(client.platform_spec, exact_products=False)
    monkeypatch.setattr(client, "platform_spec", inexact)
    return note_compiled(monkeypatch)


def _stated(text: str) -> list[str]:
    """For each product and convolution of a program what it states."""
    found = []
    for line in text.splitlines():
        if "stablehlo.dot_general" in line or "stablehlo.convolution" in line:
            named = re.search(r"HIGHEST|HIGH", line)
            found.append(named[0] if named else "DEFAULT")
    return found


def _all_stated(texts: list[str]) -> set[str]:
    found = {item for text in texts for item in _stated(text)}
    assert found, "no products"
    texts.clear()
    return found


def _trained(module: Callable[..., Any], *inputs: torch.Tensor) -> None:
    inputs = tuple(item.requires_grad_() for item in inputs)
    module(*inputs).square().sum().backward()


def _cells() -> Callable[..., Any]:
    layer = nn.LSTM(6, 5)
    return lambda x: layer(x)[0]


def _bilinear() -> Callable[..., Any]:
    layer = nn.Bilinear(4, 5, 3)
    return lambda x, y: layer(x, y)


CASES: dict[str, tuple[Callable[[], Callable[..., Any]], tuple[tuple[int, ...], ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), ((3, 6),)),
    "batches": (lambda: torch.bmm, ((2, 3, 4), (2, 4, 5))),
    "einsum": (lambda: lambda x, y: torch.einsum("bij,kj->bki", x, y), ((2, 3, 4), (5, 4))),
    "bilinear": (_bilinear, ((3, 4), (3, 5))),
    "attention": (
        lambda: lambda q, k: functional.scaled_dot_product_attention(q, k, k),
        ((2, 2, 8, 4), (2, 2, 8, 4)),
    ),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, groups=2), ((2, 4, 7, 7),)),
    "transposed convolution": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), ((2, 4, 7),)),
    "recurrent": (_cells, ((4, 2, 6),)),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward_state_it(name: str, setting: str, texts: list[str]) -> None:
    torch.set_float32_matmul_precision(setting)
    make, shapes = CASES[name]
    _trained(compiled(make()), *(torch.randn(shape) for shape in shapes))
    assert len(texts) >= 2
    assert _all_stated(texts) == {SETTINGS[setting]}


def test_factorizations_are_exact_under_any_setting(texts: list[str]) -> None:
    torch.set_float32_matmul_precision("medium")
    compiled(torch.linalg.qr)(torch.randn(6, 6))
    assert _all_stated(texts) == {"HIGHEST"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_needs_none(dtype: torch.dtype, texts: list[str]) -> None:
    compiled(nn.Conv1d(4, 6, 3, dtype=dtype))(torch.randn(2, 4, 7, dtype=dtype))
    compiled(torch.mm)(torch.randn(3, 4, dtype=dtype), torch.randn(4, 5, dtype=dtype))
    assert _all_stated(texts) == {"DEFAULT"}


def test_backward_keeps_what_forward_was_traced_with(texts: list[str]) -> None:
    found = compiled(torch.mm)(torch.randn(3, 4, requires_grad=True), torch.randn(4, 5))
    torch.set_float32_matmul_precision("medium")
    found.sum().backward()
    assert _all_stated(texts) == {"HIGHEST"}


def test_a_changed_setting_compiles_again(texts: list[str]) -> None:
    function = compiled(torch.mm)
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    for setting in ("highest", "medium", "high", "medium", "highest", "high"):
        torch.set_float32_matmul_precision(setting)
        torch.testing.assert_close(function(x, y), x @ y)
    assert [_stated(text) for text in texts] == [["HIGHEST"], ["DEFAULT"], ["HIGH"]]
    assert len(compiled_graphs()) == 3


def test_why_it_was_compiled_again(texts: list[str]) -> None:
    function = compiled(torch.mm)
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    torch.set_float32_matmul_precision("medium")
    function(x, y)
    # Dynamo's own guard sees no difference between these two.
    torch.set_float32_matmul_precision("high")
    report = explain(function, x, y)
    reason = "torch.get_float32_matmul_precision() changed"
    assert [graph.trigger for graph in report.graphs] == [None, reason]


def test_where_products_are_exact_nothing_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = note_compiled(monkeypatch)
    compiled(nn.Sequential(nn.Conv1d(4, 6, 3), nn.Linear(5, 2)))(torch.randn(2, 4, 7))
    assert _all_stated(texts) == {"DEFAULT"}


@pytest.mark.parametrize("mode", ["async", "fused", "sync"])
def test_operators_on_resident_tensors(
    mode: str, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(chosen.EAGER_VARIABLE, mode)
    monkeypatch.setattr(chosen, "_client", None)
    chosen.chosen.cache_clear()
    chosen.forget_compiled()
    host = torch.randn(3, 4)
    x, y = host.to("pjrt"), torch.randn(4, 5).to("pjrt")
    texts.clear()
    made = {}
    for setting in ("highest", "medium", "high", "highest", "medium"):
        torch.set_float32_matmul_precision(setting)
        # From the third call on the compiled module starts the program.
        for _ in range(4):
            torch.testing.assert_close((x @ y).cpu(), host @ y.cpu())
        made[setting] = made.get(setting, 0) + len([text for text in texts if _stated(text)])
        assert all(_stated(text) == [SETTINGS[setting]] for text in texts if _stated(text))
        texts.clear()
    assert made == dict.fromkeys(SETTINGS, 1)
    chosen.forget_compiled()


def test_recorded_operators_keep_the_setting_that_they_were_called_under(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(chosen.EAGER_VARIABLE, "fused")
    monkeypatch.setattr(chosen, "_client", None)
    chosen.chosen.cache_clear()
    chosen.forget_compiled()
    x = torch.randn(4, 4).to("pjrt")
    texts.clear()
    first = x @ x
    torch.set_float32_matmul_precision("high")
    second = first @ x
    second.cpu()
    assert [_stated(text) for text in texts if _stated(text)] == [["HIGHEST"], ["HIGH"]]
    chosen.forget_compiled()


@pytest.mark.parametrize("setting", SETTINGS)
def test_exported_models_state_it(setting: str) -> None:
    torch.set_float32_matmul_precision(setting)
    model = export(nn.Sequential(nn.Conv1d(4, 6, 3), nn.Linear(5, 2)), (torch.randn(2, 4, 7),))
    assert set(_stated(model.program.text)) == {SETTINGS[setting]}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda: None, "HIGHEST"),
        (lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True), "HIGH"),
        (lambda: setattr(torch.backends, "fp32_precision", "ieee"), "HIGHEST"),
        # torch does not say what these are together.
        (lambda: setattr(torch.backends, "fp32_precision", "tf32"), "HIGH"),
        (lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"), "DEFAULT"),
        (lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"), "HIGHEST"),
    ],
)
def test_what_torch_says(change: Callable[[], None], found: Precision) -> None:
    change()
    assert precision.settings() == Precisions(found, found)
    assert precision.settings() is precision.settings()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda: None, Precisions("HIGHEST", "HIGH")),
        (lambda: torch.set_float32_matmul_precision("high"), Precisions("HIGH", "HIGH")),
        (
            lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
            Precisions("HIGHEST", "HIGHEST"),
        ),
        (
            lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
            Precisions("HIGH", "HIGH"),
        ),
    ],
)
def test_what_torch_says_of_tensors_on_cuda(change: Callable[[], None], found: Precisions) -> None:
    change()
    assert precision.settings_of_cuda() == found


square = custom_op(
    "pjrt_bridge_tests::square_by_product",
    lambda b, x: b.dot_general(x, x, lhs_contract=(1,), rhs_contract=(0,)),
    schema="(Tensor x) -> Tensor",
)


def test_programs_of_the_users_operators(texts: list[str]) -> None:
    eager.forget()
    x = torch.randn(3, 3)
    square(x)
    texts.clear()
    for setting in ("highest", "medium", "high", "highest"):
        torch.set_float32_matmul_precision(setting)
        torch.testing.assert_close(square(x), x @ x)
    assert [_stated(text) for text in texts] == [["HIGHEST"], ["DEFAULT"], ["HIGH"]]
    eager.forget()


def test_on_cuda_backward_keeps_what_forward_was_traced_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = registry.client("cpu")
    monkeypatch.setattr(target, "device_of", lambda *_: client.devices[0])
    before = target.Target.of(client, BackendOptions(), LEDGER, precision.settings())
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("high")
    assert before.for_device("cuda", 0).settings == Precisions("HIGHEST", "HIGH")

"""What torch cannot have on the device says what to do in its place."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.data import DataLoader

from pjrt_bridge.errors import DeviceError, PjrtError, ResourceExhausted
from pjrt_bridge.torch_interop.device.programs import programs
from pjrt_bridge.torch_interop.resident.client import failures
from pjrt_bridge.user_warnings import line_of
from tests import forked


def test_pinned_memory() -> None:
    with pytest.raises(DeviceError, match="leave pin_memory out"):
        torch.ones(3).pin_memory()
    rows = torch.arange(4.0)
    with pytest.raises(DeviceError, match=r"DataLoader\(..., pin_memory=False\)"):
        list(DataLoader(rows, batch_size=2, pin_memory=True))  # type: ignore[arg-type]
    batches = [row.to("pjrt", non_blocking=True) for row in DataLoader(rows, batch_size=2)]  # type: ignore[arg-type]
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]


def test_tensors_for_another_process() -> None:
    x = torch.ones(3, device="pjrt")
    for strategy in ("file_descriptor", "file_system"):
        with (
            mock.patch.object(torch.multiprocessing, "_sharing_strategy", strategy),
            pytest.raises(DeviceError, match=r"another process.*tensor\.cpu\(\)"),
        ):
            ForkingPickler.dumps(x)
    assert x.sum().item() == 3


def test_layouts_without_strides() -> None:
    x = torch.eye(3, device="pjrt")
    with (
        pytest.warns(UserWarning, match="to_mkldnn"),
        pytest.raises(DeviceError, match=r"layout torch\._mkldnn cannot be on device 'pjrt'"),
    ):
        x.to_mkldnn()
    assert x.sum().item() == 3


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x, at: x + torch.ones(4),
        lambda x, at: torch.zeros(4).index_add(0, at, x),
        lambda x, at: x.index_add(0, at.cpu(), x),
        lambda x, at: x.index_select(0, at.cpu()),
        lambda x, at: x.index_put((at,), torch.zeros(4)),
        lambda x, at: torch.zeros(4).index_put((at,), x),
        lambda x, at: torch.zeros(4)[at],
        lambda x, at: torch.zeros(4).add_(x),
        lambda x, at: torch.zeros(()).add_(x.sum()),
        lambda x, at: torch.add(x, 1, out=torch.zeros(4)),
    ],
)
def test_host_tensors_among_those_of_the_device(mixed: Callable[..., Any]) -> None:
    x, at = torch.ones(4, device="pjrt"), torch.arange(4, device="pjrt")
    # Some are torch's own to refuse.
    with pytest.raises((DeviceError, RuntimeError), match=r"\.to\('pjrt'\)|on the same device"):
        mixed(x, at)


def test_host_tensors_that_torch_takes_for_any_device() -> None:
    x, at = torch.arange(4.0, device="pjrt"), torch.tensor([2, 0])
    assert x[at].tolist() == [2, 0]
    assert x[torch.arange(4) > 2].tolist() == [3]
    x[at] = torch.tensor(7.0)
    assert (x * torch.tensor(2)).tolist() == [14, 2, 14, 6]


def test_a_mistake_is_raised_and_not_logged() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)
    try:
        x = torch.ones(3, 4, device="pjrt")
        with pytest.raises(RuntimeError, match="3x4 and 3x4"):
            x @ x
    finally:
        logger.removeHandler(handler)
    assert not records


def test_no_room_on_the_device_names_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise PjrtError.from_code(8, "no room", plugin="cpu", function="Execute")

    x = torch.ones(2, 3, device="pjrt")
    monkeypatch.setattr(programs.CallProgram, "run", failing)
    with pytest.raises(
        ResourceExhausted, match=r"no room.*: aten\.asinh\.default\(f32\[2,3\]\) on "
    ):
        x.asinh()


@pytest.mark.skipif(
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >= 200 << 30,
    reason="there is room for 256 GiB",
)
@pytest.mark.parametrize("mode", ["async", "fused"])
def test_no_room_is_an_error_and_no_task_of_the_host(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    x = torch.ones(3, device="pjrt")
    # 256 GiB, which XLA's allocator refuses before it touches anything.
    with pytest.raises(torch.OutOfMemoryError, match=r"aten\.\w+.*f32\[.*device 'pjrt:0'"):
        (x[0] + torch.empty(1 << 36, device="pjrt")).add_(1)[:2].tolist()
    assert (x + 1).tolist() == [2, 2, 2]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("mode", ["async", "fused"])
def test_errors_that_are_seen_later_name_the_line(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    table, wide = torch.ones(5, 3, device="pjrt"), torch.ones(900, 900, device="pjrt")

    def found(beyond: int) -> torch.Tensor:
        busy = wide
        for _ in range(3):
            busy = busy @ wide * 1e-3
        index = (busy.sum() * 0).long() + torch.tensor([beyond, 2], device="pjrt")
        rows = torch.nn.functional.embedding(index, table)
        return (rows * 2).sum()

    for _ in range(4):
        assert found(1).item() == 12
    # As by a program that has called the operator in many places since.
    for number in range(9):
        failures.called("aten.index_select.default", f"{__file__}:{number}")
    with pytest.raises(IndexError) as caught:
        found(7).item()
    _, start = inspect.getsourcelines(found)
    called = f"{__file__}:{start + 5}"
    assert called in str(caught.value.__notes__) or line_of(caught.value) == called
    assert "aten.index_select.default" in f"{caught.value} {caught.value.__notes__}"
    assert found(1).item() == 12


def test_tensors_that_no_storage_holds() -> None:
    with pytest.raises(MemoryError, match=r"\(1099511627776,\) and type torch.int8 needs 1099511"):
        torch.empty(1 << 40, dtype=torch.int8, device="pjrt")
    with pytest.raises(RuntimeError, match=r"negative dimension -1: \[2, -1\]"):
        torch.ones(2, -1, device="pjrt")


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.nn.functional.interpolate(
            torch.ones(1, 2, 3, 3, device=d), scale_factor=0.1
        ),
        lambda d: torch.nn.functional.interpolate(torch.ones(1, 2, 3, device=d), size=0),
        lambda d: torch.nn.functional.interpolate(
            torch.ones(1, 2, 3, 3, device=d), size=(2, 0), mode="bilinear"
        ),
    ],
)
def test_images_of_no_size(call: Callable[[str], torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match="greater than 0") as expected:
        call("cpu")
    with pytest.raises(RuntimeError) as raised:
        call("pjrt")
    assert str(raised.value) == str(expected.value)


def test_nested_tensors() -> None:
    with warnings.catch_warnings():
        # Torch says that they may change.
        warnings.simplefilter("ignore", UserWarning)
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(DeviceError, match=r"no nested tensors of layout torch\.strided"):
        nested.to("pjrt")


def test_layers_that_would_make_nested_tensors() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, padding = torch.randn(2, 4, 8), torch.tensor([[False] * 3 + [True], [False] * 4])
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        # The default.
        encoder.enable_nested_tensor = encoder.use_nested_tensor = True
        found = encoder.to("pjrt")(x.to("pjrt"), src_key_padding_mask=padding.to("pjrt"))
    torch.testing.assert_close(found.cpu(), expected)


def test_tensors_of_a_client_that_was_closed() -> None:
    source = """
import torch
from pjrt_bridge.errors import DeviceError, PjrtError, ResourceExhausted
from pjrt_bridge.torch_interop.device.programs import programs
from pjrt_bridge.user_warnings import line_of
from tests import forked
from pjrt_bridge.torch_interop.device import use

client = use("cpu")
x = torch.ones(3, device="pjrt")
client.close()
for lost in (lambda: x + 1, x.tolist, lambda: repr(x), lambda: torch.ones(2, device="pjrt")):
    try:
        lost()
    except DeviceError as error:
        assert "which device 'pjrt' is, was closed; its tensors are lost" in str(error), error
    else:
        raise AssertionError
"""
    done = forked.parent(forked.TORCH).run(source, [], timeout=240)
    assert done.returncode == 0, done.stderr


def test_the_default_backend_of_compile() -> None:
    source = """
import torch

compiled = torch.compile(lambda x: x.sin() + 1)
try:
    compiled(torch.ones(3, device="pjrt"))
except Exception as error:
    assert "generates no code for device 'pjrt': expected torch.compile(..., backend=" in str(error)
else:
    raise AssertionError
assert compiled(torch.zeros(3)).tolist() == [1, 1, 1]
"""
    # Inductor's modules warn of each other when they are imported.
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "call",
    [
        lambda half: half + torch.tensor(1j, dtype=torch.complex128, device="pjrt"),
        lambda half: 2j * half,
        lambda half: torch.add(half, 1j),
    ],
    ids=["sum", "reflected", "function"],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_results_of_a_type_that_pjrt_does_not_have(call: Callable[[torch.Tensor], Any]) -> None:
    half = torch.ones(3, dtype=torch.float16, device="pjrt")
    with pytest.raises(DeviceError, match=r"\(f16\[3\].* on device 'pjrt:0': torch.complex32 has"):
        call(half)
    assert (half + 1).tolist() == [2, 2, 2]

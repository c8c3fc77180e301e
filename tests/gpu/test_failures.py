"""Failures on a GPU, late ones and too little memory; the client is usable after each."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from pjrt_bridge import child_processes
from pjrt_bridge.errors import PjrtError, ResourceExhausted
from pjrt_bridge.runtime import Client
from tests import programs

ONES = np.ones(64, np.float32)
GB = 1 << 30

_USE = """
import torch
from pjrt_bridge.torch_interop import device
device.use("cuda")
"""


def works(gpu: Client) -> None:
    with gpu.compile(programs.ADD) as executable:
        assert (executable(ONES, ONES)[0].to_numpy() == 2).all()


def filled(bytes: int) -> str:
    """A program without parameters, whose result has so many bytes."""
    type = f"tensor<{bytes // 4}xf32>"
    return f"""
    func.func @main() -> {type} {{
      %0 = stablehlo.constant dense<1.0> : tensor<f32>
      %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> {type}
      return %1 : {type}
    }}
    """


def on_the_device(source: str) -> list[str]:
    """The lines that a process of its own prints, in which device `pjrt` of torch is the GPU.

    By itself torch would leave the GPU to its own device.

    What the plugin writes to standard error, such as the state of its memory, may be there.
    """
    done = subprocess.run(
        [sys.executable, "-c", _USE + dedent(source)],
        env=child_processes.environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def limit(gpu: Client) -> int:
    """Bytes that the plugin may use of the GPU."""
    return gpu.devices[0].memory_stats()["bytes_limit"]


def test_a_program_that_needs_more_than_there_is(gpu: Client, limit: int) -> None:
    with gpu.compile(filled(2 * limit)) as executable:
        # XLA waits ten seconds for memory before it gives up.
        with pytest.raises(ResourceExhausted, match="plugin 'cuda'"):
            executable.execute([])[0].block_until_ready()
        works(gpu)


def test_an_error_goes_through_what_uses_the_result(gpu: Client, limit: int) -> None:
    size = 2 * limit // 4
    with gpu.compile(filled(2 * limit)) as make:
        try:
            (missing,) = make.execute([])
        except ResourceExhausted:
            # It was told at once.
            works(gpu)
            return
        first = f"""
        func.func @main(%a: tensor<{size}xf32>) -> tensor<1xf32> {{
          %0 = stablehlo.slice %a [0:1] : (tensor<{size}xf32>) -> tensor<1xf32>
          return %0 : tensor<1xf32>
        }}
        """
        with gpu.compile(first) as use, pytest.raises(ResourceExhausted, match="plugin 'cuda'"):
            use.execute([missing])[0].to_numpy()
    works(gpu)


def test_buffers_until_the_memory_is_full(gpu: Client, limit: int) -> None:
    kept: list[Any] = []
    with gpu.compile(filled(4 * GB)) as executable:

        def fill() -> None:
            for _ in range(limit // (4 * GB) + 2):
                (made,) = executable.execute([])
                made.block_until_ready()
                kept.append(made)

        with pytest.raises(ResourceExhausted):
            fill()
        assert len(kept) >= limit // (4 * GB) // 2
        works(gpu)
        for one in kept:
            one.delete()
        kept.clear()
        (made,) = executable.execute([])
        made.block_until_ready()
        made.delete()
    works(gpu)


def test_bad_programs_leave_the_client_usable(gpu: Client) -> None:
    source = """
    func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> {
      %0 = stablehlo.custom_call @nobody.knows(%a) {api_version = 4 : i32, backend_config = {}}
        : (tensor<64xf32>) -> tensor<64xf32>
      return %0 : tensor<64xf32>
    }
    """
    with pytest.raises(PjrtError, match=r"nobody\.knows"):
        gpu.compile(source)
    works(gpu)


def test_torch_gets_its_own_error(gpu: Client, limit: int) -> None:
    pytest.importorskip("torch")
    shown = on_the_device(
        f"""
        x = torch.ones(1 << 20, device="pjrt")
        try:
            y = torch.ones({2 * limit // 4}, device="pjrt") + 1
            y.sum().item()
        except torch.OutOfMemoryError as error:
            print(type(error).__name__)
        print((x + x).sum().item())
        """
    )
    assert shown == ["OutOfDeviceMemory", str(float(2 << 20))]


def test_an_index_out_of_range_is_moved_into_the_range(gpu: Client) -> None:
    pytest.importorskip("torch")
    shown = on_the_device(
        """
        table = torch.arange(12.0, device="pjrt").reshape(4, 3)
        print(table[torch.tensor([0, 7], device="pjrt")].sum().item())
        print(table[torch.tensor([0, 3], device="pjrt")].sum().item())
        """
    )
    assert shown == ["33.0", "33.0"]

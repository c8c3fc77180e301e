"""Profiles of programs on a GPU: what CUPTI recorded, as an XSpace."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import pjrt_bridge
from pjrt_bridge.extensions import Profiler
from pjrt_bridge.profiling import xspace
from pjrt_bridge.runtime import Client
from pjrt_bridge.timeline import Span
from tests import programs

SQUARE = np.eye(512, dtype=np.float32)
CALLS = 5


def kernels(planes: tuple[xspace.Plane, ...]) -> list[Span]:
    """What ran on the streams of GPUs."""
    return [
        span
        for plane in planes
        if plane.name.startswith("/device:GPU:")
        for line in plane.lines
        if line.name.startswith("Stream")
        for span in line.spans
    ]


def test_the_kernels_of_a_program(gpu: Client) -> None:
    with gpu.compile(programs.MATMUL) as executable, gpu.put(SQUARE) as argument:
        # What is loaded at the first call is not to be seen.
        executable.execute([argument])[0].block_until_ready()
        with gpu.extension(Profiler).session() as session:
            for _ in range(CALLS):
                executable.execute([argument])[0].block_until_ready()
    planes = xspace.decode(session.data)
    found = kernels(planes)
    lines = [(plane.name, [line.name for line in plane.lines]) for plane in planes]
    assert len(found) >= CALLS, lines
    assert all(span.end > span.start for span in found)


def test_the_bridge_and_the_gpu_on_one_timeline(gpu: Client, tmp_path: Path) -> None:
    with gpu.compile(programs.MATMUL) as executable:
        executable(SQUARE)[0].to_numpy()
        with pjrt_bridge.profile(tmp_path, clients=[gpu]) as profile:
            for _ in range(CALLS):
                executable(SQUARE)[0].to_numpy()
    assert profile.plugins == ("cuda",)
    assert profile.xspace_file is not None
    assert xspace.decode(profile.xspace_file.read_bytes()) == profile.planes
    host = [
        span
        for plane in profile.planes
        if plane.name == "/host:pjrt_bridge"
        for line in plane.lines
        for span in line.spans
    ]
    found = kernels(profile.planes)
    assert host
    assert found
    # Both clocks are the same, to some milliseconds.
    assert min(span.start for span in host) - 5e6 < min(span.start for span in found)
    assert max(span.end for span in found) < max(span.end for span in host) + 5e6

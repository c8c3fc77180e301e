"""Loaded models: what they refuse as arguments."""

import subprocess
import sys
from pathlib import Path

from tests.exported.models import scaled
from tests.plugins import cpu_library

FAKE = """
import sys
import numpy as np
from torch._subclasses import FakeTensorMode
from pjrt_bridge.errors import SignatureMismatch
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.runtime import Plugin

client = Plugin.load(sys.argv[2], name="cpu").client({"cpu_device_count": 1})
with ExportedModel.load(sys.argv[1]).load_on(client) as loaded:
    for _ in range(3):
        loaded(np.ones(16, np.float32))
    with FakeTensorMode():
        import torch
        values = torch.ones(32)
    for value in (values[:16], values[16:]):
        try:
            loaded(value)
        except SignatureMismatch as error:
            print(error)
"""


def test_tensors_without_elements_are_refused(tmp_path: Path) -> None:
    """In a process of its own: to read them ended it."""
    scaled().save(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FAKE, tmp_path / "model", cpu_library()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    assert len(found) == 2
    assert all("FakeTensor whose elements are not in its own memory" in line for line in found)

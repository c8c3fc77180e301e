"""How torch finds the backend."""

import subprocess
import sys

import torch


def test_the_backend_is_listed() -> None:
    assert "pjrt" in torch._dynamo.list_backends()


def test_a_program_that_never_imports_the_bridge() -> None:
    device = "pjrt_bridge.torch_interop.device"
    light = {"pjrt_bridge", "pjrt_bridge.lazy_names", "pjrt_bridge.torch_interop", device}
    named = "pjrt_bridge.torch_interop.named_device"
    light |= {f"{device}.autoload", named, f"{named}.first_use", f"{named}.naming"}
    program = (
        "import sys, torch\n"
        f"LIGHT = {light}\n"
        "ours = {name for name in sys.modules if name.startswith('pjrt_bridge')}\n"
        "assert ours == LIGHT, ours - LIGHT\n"
        "f = torch.compile(lambda x: x.exp() + 1, backend='pjrt', options={'fallback': 'error'})\n"
        "x = torch.ones(3)\n"
        "assert torch.allclose(f(x), x.exp() + 1)\n"
        "from pjrt_bridge.torch_interop import compiled_graphs\n"
        "print([(g.kind, g.plugin, g.on_device) for g in compiled_graphs()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[('inference', 'cpu', 1)]", done.stderr
    assert done.returncode == 0

"""What a model asserts of its values holds in an exported model, too, which needs no PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pjrt_bridge.errors import CheckFailed, SavedModelError
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.exported.manifest import Manifest
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export
from pjrt_bridge.torch_interop.exporting.assertions import _DESCRIPTIONS
from pjrt_bridge.torch_interop.passes.defer_assertions import OF_TENSORS
from tests.exported.test_model import rewrite
from tests.torch_interop.export.test_export import close, lambda_module

ONES = torch.ones(3)


class Positive(nn.Module):
    """Asserts something, and keeps and writes new values."""

    def __init__(self) -> None:
        super().__init__()
        # So large that a program writes where they are.
        self.register_buffer("total", torch.zeros(1 << 15))

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum())
        out.copy_(x + 1)
        torch._assert_async((x > 0).all(), "the elements must be positive")  # the line
        return x * 2


def test_an_assertion_raises_its_message(client: Client, tmp_path: Path) -> None:
    export(Positive(), (ONES, ONES.clone())).save(tmp_path)
    out = np.zeros(3, np.float32)
    with ExportedModel.load(tmp_path).load_on(client) as loaded:
        for call in range(3):
            assert close(loaded(ONES, out), 2 * ONES)
            assert out.tolist() == [2, 2, 2]
            out[:] = 0
            with pytest.raises(
                CheckFailed, match="the elements must be positive: found False"
            ) as e:
                loaded(-ONES, out)
            assert f"{__file__}:" in str(e.value)
            assert "# the line" in str(e.value)
            # As if the call had not been.
            assert out.tolist() == [0, 0, 0]
            assert loaded.weights()["total"][0] == 3 * (call + 1)


def test_what_the_pass_takes_out_can_be_described() -> None:
    assert _DESCRIPTIONS.keys() == OF_TENSORS


def test_linear_algebra(client: Client) -> None:
    matrices = torch.stack([torch.eye(3), 2 * torch.eye(3)])
    with export(lambda_module(torch.linalg.inv), (matrices,)).load_on(client) as loaded:
        assert close(loaded(matrices), torch.linalg.inv(matrices))
        matrices[1, 2, 2] = 0
        with pytest.raises(CheckFailed, match=r"linalg\.inv: the matrix is.*found 3 at \[1\]"):
            loaded(matrices)
    with export(lambda_module(torch.linalg.cholesky), (matrices[0],)).load_on(client) as loaded:
        assert close(loaded(matrices[0]), matrices[0])
        with pytest.raises(CheckFailed, match=r"linalg\.cholesky: .*found 1"):
            loaded(-matrices[0])


def test_an_assertion_on_an_argument_and_one_without_a_message(client: Client) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x)
        return x + 1

    x = torch.tensor(1.0)
    with export(lambda_module(function), (x,)).load_on(client) as loaded:
        assert close(loaded(x), x + 1)
        with pytest.raises(CheckFailed, match=r"assertion of the model does not.*found 0\.0"):
            loaded(torch.tensor(0.0))


def test_weights_that_nothing_can_be_drawn_with(client: Client) -> None:
    """As eager, which raises the same of them, in an operator."""
    draw = lambda_module(lambda weights: torch.multinomial(weights, 2, replacement=True))
    with export(draw, (ONES,)).load_on(client) as loaded:
        (found,) = (np.asarray(loaded(ONES)),)
        assert found.shape == (2,)
        assert set(found.tolist()) <= {0, 1, 2}
        with pytest.raises(CheckFailed, match="inf, nan or negative"):
            loaded(torch.tensor([1.0, -1.0, 1.0]))
        with pytest.raises(CheckFailed, match="inf, nan or negative"):
            loaded(torch.tensor([1.0, torch.nan, 1.0]))
        with pytest.raises(CheckFailed, match="sum is not positive"):
            loaded(torch.zeros(3))
        assert np.asarray(loaded(ONES)).shape == (2,)


def test_in_a_training_step(client: Client) -> None:
    class Solved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(3 * torch.eye(3) + 0.1 * torch.ones(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.solve(self.matrix, x).square().sum()

    net, x = Solved(), torch.randn(3, 2)
    loss = net(x)
    loss.backward()
    with export(net, (x,), training=True).load_on(client) as loaded:
        found = loaded(x)
        assert close(found["loss"], loss)
        assert close(found["gradients"]["matrix"], net.matrix.grad)
    broken = export(net, (x,), training=True).with_weights({"matrix": np.ones((3, 3), np.float32)})
    with broken.load_on(client) as loaded, pytest.raises(CheckFailed, match=r"linalg\.solve"):
        loaded(x)


def test_in_a_program_in_parts(client: Client) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "positive")
        values = torch.unique(x)
        torch._assert_async((values < 9).all(), "small")
        return values + 1

    model = export(lambda_module(function), (ONES,), split=True)
    with model.load_on(client) as loaded:
        assert np.asarray(loaded(ONES)).tolist() == [2]
        with pytest.raises(CheckFailed, match="positive"):
            loaded(-ONES)
        with pytest.raises(CheckFailed, match="small"):
            loaded(9 * ONES)


def test_it_needs_no_torch_and_is_told_to_older_bridges(tmp_path: Path) -> None:
    export(Positive(), (ONES, ONES.clone())).save(tmp_path)
    assert Manifest.read(tmp_path).format == 2
    code = (
        "import sys, numpy as np\n"
        "from pjrt_bridge.exported import ExportedModel\n"
        "from tests.plugins import cpu_plugin\n"
        "client = cpu_plugin().client({'cpu_device_count': 1})\n"
        "loaded = ExportedModel.load(sys.argv[1]).load_on(client)\n"
        "x = np.zeros(3, np.float32)\n"
        "try:\n"
        "    loaded(x, x)\n"
        "finally:\n"
        "    assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("pjrt_bridge.errors.CheckFailed: the elements must be positive")


def test_a_check_that_is_none(tmp_path: Path) -> None:
    export(Positive(), (ONES, ONES.clone())).save(tmp_path)
    rewrite(lambda m: m["model"]["programs"][0]["checks"][0].update(holds="odd"))(tmp_path)
    with pytest.raises(
        SavedModelError, match="holds': found 'odd', needed one of 'nonzero', 'zero'"
    ):
        ExportedModel.load(tmp_path)

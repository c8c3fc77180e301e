"""`torch.compile(model.cuda(), backend="pjrt")`: graphs over torch's own tensors on the GPU."""

from __future__ import annotations

from typing import Any

import pytest

from pjrt_bridge.runtime import Client
from tests.plugins import run_python

COUNT = 1 << 22


@pytest.fixture
def torch(gpu: Client) -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a build of torch with CUDA")
    torch.manual_seed(0)
    torch.compiler.reset()
    return torch


def network(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.Flatten(2),
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True),
        nn.Linear(64, 5),
    ).cuda()


def test_the_gpu_stays_torchs_accelerator(gpu: Client) -> None:
    told = run_python(
        """
import torch
import pjrt_bridge.torch_interop
x = torch.ones(3, device="cuda", requires_grad=True)
torch.compile(lambda x: (x * 2).sum(), backend="pjrt")(x).backward()
print(torch.accelerator.current_accelerator().type, x.grad.tolist())
""",
        prelude="",
    )
    assert told == "cuda [2.0, 2.0, 2.0]"


def test_training_gives_what_eager_gives(torch: Any) -> None:
    ours, eager = network(torch), network(torch)
    eager.load_state_dict(ours.state_dict())
    compiled = torch.compile(ours, backend="pjrt")
    for _ in range(3):
        x = torch.randn(4, 3, 8, 8, device="cuda")
        for model, call in ((ours, compiled), (eager, eager)):
            loss = call(x).square().mean()
            assert loss.is_cuda
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-3, atol=1e-3)


def test_attention_and_dropout_are_traced_without_operators_of_one_library(torch: Any) -> None:
    functional = torch.nn.functional

    def attended(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    given = [torch.randn(2, 4, 16, 8, device="cuda", requires_grad=True) for _ in range(3)]
    # Everything on the device: else this is an error.
    compiled = torch.compile(attended, backend="pjrt", options={"fallback": "error"})
    found = compiled(*given)
    wanted = attended(*given)
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
    gradients = torch.autograd.grad(wanted.sum(), given)
    for mine, right in zip(torch.autograd.grad(found.sum(), given), gradients, strict=True):
        torch.testing.assert_close(mine, right, rtol=2e-3, atol=2e-3)
    dropped = torch.compile(
        lambda x: functional.dropout(x, 0.5), backend="pjrt", options={"fallback": "error"}
    )(torch.ones(1000, device="cuda"))
    assert dropped.is_cuda
    assert 0.4 < float((dropped == 0).float().mean()) < 0.6


def test_memory_of_a_result_is_used_again_when_torch_has_done_with_it(torch: Any) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="pjrt")
    inputs = [torch.full((COUNT,), float(number), device="cuda") for number in range(4)]
    compiled(inputs[0])
    torch.cuda.synchronize()
    sums = []
    for turn in range(200):
        found = compiled(inputs[turn % 4])
        # Long enough that a program that took the memory at once would have written there.
        torch.cuda._sleep(2_000_000)
        sums.append(found.sum(dtype=torch.float64))
        del found
    for turn, total in enumerate(sums):
        assert float(total) == COUNT * (turn % 4 + 1)


def test_memory_of_an_argument_is_used_again_when_the_program_has_done_with_it(torch: Any) -> None:
    compiled = torch.compile(lambda x: (x @ x) * 0 + x, backend="pjrt")
    side = torch.cuda.Stream()
    made = []
    with torch.cuda.stream(side):
        for number in range(200):
            x = torch.full((1024, 1024), float(number), device="cuda")
            made.append(compiled(x))
            del x
            # Torch gives this the memory that the argument was in.
            torch.full((1024, 1024), -1.0, device="cuda")
        for number, found in enumerate(made):
            assert bool((found == number).all())


def test_weights_that_torch_changes_between_calls(torch: Any) -> None:
    model = torch.nn.Linear(512, 512, bias=False).cuda().requires_grad_(False)
    compiled = torch.compile(model, backend="pjrt")
    x = torch.eye(512, device="cuda")
    for number in range(50):
        torch.cuda._sleep(1_000_000)
        model.weight.fill_(float(number))
        assert bool((compiled(x) == number).all())
    weight = torch.randn(512, 512, device="cuda")
    model.weight.data = weight
    torch.testing.assert_close(compiled(x), weight.t(), rtol=1e-3, atol=1e-3)

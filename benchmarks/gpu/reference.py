"""What is right, computed on the host; how much work it is; how fast the device can be."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.models import CHECKED, make
from benchmarks.gpu.side import Floats
from benchmarks.gpu.works import Work


# Operations of fused attention are not counted on the host.
@sdpa_kernel(SDPBackend.MATH)
def compute(work: Work) -> tuple[Floats, dict[str, int]]:
    """Results of the calls that are compared, and what a call takes.

    Inference and decoding are computed in float64, inference of the first text or image alone;
    training in float32.

    Returns:
        The results, and "flops" and "weights" (bytes, in float32) of a call.
    """
    torch.manual_seed(0)
    made = make(dataclasses.replace(work, form="f32"))
    weights = sum(x.numel() * x.element_size() for x in made.module.parameters())
    counter = FlopCounterMode(display=False)
    if work.task == "training":
        assert made.optimizer is not None, "training has an optimizer"
        optimizer = made.optimizer(made.module.parameters())
        losses = []
        for _ in range(CHECKED):
            optimizer.zero_grad()
            with counter:
                loss = made.module(*made.inputs)
                loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return np.array(losses, np.float32), _counts(counter, CHECKED, weights)
    module = made.module.double()
    with torch.no_grad():
        if work.task == "decoding":
            tokens, position = made.inputs
            found = []
            for _ in range(CHECKED):
                with counter:
                    _, position, logits = module(tokens, position)
                found.append(logits.float().numpy())
            return np.stack(found), _counts(counter, CHECKED, weights)
        inputs = [
            (x.double() if x.is_floating_point() else x)[: None if x.dim() < 2 else 1]
            for x in made.inputs
        ]
        with counter:
            result = module(*inputs)
    counts = _counts(counter, 1, weights)
    if work.task == "inference":
        counts["flops"] *= work.batch
    return result[:1].float().numpy(), counts


def _counts(counter: FlopCounterMode, calls: int, weights: int) -> dict[str, int]:
    return {"flops": counter.get_total_flops() // calls, "weights": weights}


def peaks(device: str, *, small: bool) -> dict[str, float]:
    """The most that PyTorch gets out of the device.

    Returns:
        Floating-point operations per second in a product of each form, and bytes per second read
        and written by a copy ("copy").
    """
    size = 256 if small else 8192
    found = {}
    for form, kind, precision in (
        ("f32", torch.float32, "highest"),
        ("f32 high", torch.float32, "high"),
        ("bf16", torch.bfloat16, "high"),
    ):
        torch.set_float32_matmul_precision(precision)
        a = torch.randn(size, size, device=device).to(kind)
        found[form] = 2 * size**3 / _seconds(device, lambda a=a: a @ a)
    found["autocast"] = found["bf16"]
    source = torch.ones(size * size * (1 if small else 8), device=device)
    target = torch.empty_like(source)
    moved = 2 * source.numel() * source.element_size()
    found["copy"] = moved / _seconds(device, lambda: target.copy_(source))
    return found


def _seconds(device: str, call: Callable[[], Any], calls: int = 10) -> float:
    """Of a call: the least of three times."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(4):
        synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        times.append((time.perf_counter() - begun) / calls)
    return min(times[1:])


def beside(device: str, *, small: bool) -> dict[str, Any]:
    """Memory of PyTorch's allocator and of the plugin's in one process, each in use by turns.

    Returns:
        What both told, in bytes, after each has taken and given back arrays several times.

    Raises:
        ValueError: elements of one were changed by the other.
    """
    from pjrt_bridge.torch_interop.device import use

    use()
    count = 1 << (10 if small else 28)
    found: dict[str, Any] = {"bytes of an array": 4 * count}
    kept: list[tuple[int, torch.Tensor]] = []
    for number in range(4):
        made = torch.full((count,), float(number))
        kept += [(number, made.to(where, copy=True)) for where in (device, "pjrt")]
        if number == 2:
            # Room of both is given back and taken again.
            del kept[:2]
        for value, tensor in kept:
            at = tensor[:: count // 8].cpu()
            if not bool((at == value).all()):
                raise ValueError(f"a tensor on {tensor.device} has {at.tolist()}, expected {value}")
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        found |= {"free": free, "total": total, "torch": torch.cuda.memory_reserved()}
    found["plugin"] = torch.pjrt.memory_allocated()  # type: ignore[attr-defined]
    return found

"""A model of every kind of call in a process: programs compiled, loaded, and its numbers."""

from __future__ import annotations

import hashlib
import os

import torch
from torch import nn

from pjrt_bridge.runtime import Client
from pjrt_bridge_cpu import small_convolutions
from pjrt_bridge_cpu.aten import findings

compile_program = Client.compile
cached: list[bool] = []


def noting(self, *args, **kwargs):  # type: ignore[no-untyped-def]
    executable = compile_program(self, *args, **kwargs)
    cached.append(executable.cached)
    return executable


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 32, 3, padding=1)
        self.linear = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x).flatten(2).mT
        heads = self.linear(y).unflatten(2, (4, 16)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return mixed.softmax(-1).cumsum(1).sort(2).values


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    Client.compile = noting  # type: ignore[method-assign]
    small_convolutions.MOST = 0
    findings.is_usable = lambda library, use: True
    model, x = Model().bfloat16(), torch.randn(2, 8, 16, 16).bfloat16()
    compiled = torch.compile(model, backend="pjrt", options={"fallback": "error"})
    with torch.no_grad():
        inferred = compiled(x)
    trained = compiled(x)
    trained.float().sum().backward()
    results = [inferred, trained, *(p.grad for p in model.parameters())]
    data = b"".join(r.detach().float().numpy().tobytes() for r in results)
    print(cached.count(False), cached.count(True), hashlib.sha256(data).hexdigest())


if __name__ == "__main__":
    assert os.environ["PJRT_BRIDGE_CACHE"] != "off"
    main()

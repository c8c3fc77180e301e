"""Whole graphs as programs: what is donated, and the work that many arguments make."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.torch_interop.emit.program import Emitted, emit
from pjrt_bridge.torch_interop.lowering.registry import find_lowering

LARGE = (128, 128)
"""Of which a buffer is worth donating."""


def updates(shape: tuple[int, ...], count: int) -> torch.fx.GraphModule:
    """A graph that writes new values into all of its arguments."""

    def step(*given: torch.Tensor) -> list[torch.Tensor]:
        return [one.copy_(one + 1) for one in given]

    return make_fx(step)(*(torch.empty(shape) for _ in range(count)))


def emitted(module: torch.fx.GraphModule, *, in_place: bool = True) -> Emitted:
    return emit(module, find_lowering, name="updates", in_place=in_place)


def test_arguments_with_new_values_are_donated_to_these() -> None:
    found = emitted(updates(LARGE, 3))
    kinds = [(p.donation, p.alias) for p in found.program.signature.parameters]
    assert kinds == [("must", at) for at in range(3)]
    for module, in_place in ((updates((2, 2), 3), True), (updates(LARGE, 3), False)):
        signature = emitted(module, in_place=in_place).program.signature
        assert [p.donation for p in signature.parameters] == ["kept"] * 3


def test_the_work_of_new_values_is_in_proportion_to_their_number() -> None:
    def lines(count: int) -> int:
        """Lines of the emission, and of donations, that ran."""
        module = updates(LARGE, count)
        files: set[str] = {emit.__code__.co_filename}
        donating: CodeType = Builder.donate.__wrapped__.__code__  # type: ignore[attr-defined]
        found = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal found
            if frame.f_code.co_filename not in files and frame.f_code is not donating:
                return None
            found += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            emitted(module)
        finally:
            sys.settrace(before)
        return found

    emitted(updates(LARGE, 1))
    few, some, many = map(lines, (10, 40, 100))
    assert few < some
    assert (many - some) / 60 <= 1.01 * (some - few) / 30

"""Whole numbers in buffers of modules, on whose values a graph may depend.

Audio codecs keep the strides and paddings of their convolutions in such buffers, and calculate
sizes with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, CallMethodItemSource, DictGetItemSource
from torch._dynamo.variables.base import VariableTracker
from torch._guards import Source
from torch._subclasses import FakeTensor

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8)

_MOST = 4
"""Numbers of one buffer that graphs of the same code may depend on: a count goes on to change."""

_found: WeakKeyDictionary[Any, dict[str, set[int]]] = WeakKeyDictionary()
"""The numbers that graphs depend on, by their code and the buffer's name."""


@dataclass(frozen=True)
class NumberOfBuffer:
    """The number in a buffer, as it is when the graph begins.

    Attributes:
        source: of the buffer.
        value: its number.
    """

    source: Source
    value: int

    @staticmethod
    def of(item: Any) -> NumberOfBuffer | None:
        """That of a tensor that is traced; None if it is no such buffer, or was written over."""
        source, node = item.source, item.as_proxy().node
        if node.op != "placeholder" or not _is_buffer(source):
            return None
        fake, argument = node.meta.get("example_value"), node.meta.get("grapharg")
        if fake is None or argument is None or fake.dim() != 0 or fake.dtype not in _WHOLE:
            return None
        tensor = argument.example
        if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or fake._version:
            return None
        return NumberOfBuffer(source, int(tensor))

    def guarded(self, tx: Any) -> Any:
        """The number, on which the graph depends from here on; None if it is known to change."""
        known = _found.setdefault(tx.output.root_tx.f_code, {}).setdefault(self.source.name, set())
        if self.value not in known and len(known) == _MOST:
            return None
        known.add(self.value)
        source = CallMethodItemSource(self.source)
        install_guard(source.make_guard(GuardBuilder.EQUALS_MATCH))
        return VariableTracker.build(tx, self.value)


def _is_buffer(source: Any) -> bool:
    if not isinstance(source, (AttrSource, DictGetItemSource)):
        return False
    return "_buffers" in str(source.base.name)

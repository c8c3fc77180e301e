"""Padding of sizes that change, so that one program serves many.

`analysis` finds the symbols that can be padded, and with them the padded form of a graph
(`paddable`), which `walk` makes node by node. Each operator has a rule (`rules`), written by family
in the other modules over `rows.Use`; `emission` adds the nodes that rules need. `buckets` pads the
arguments of calls and cuts results, in host memory (`memory`, `layouts`) or on the device
(`torch_interop/resident/storages/padded.py`).
"""

from pjrt_bridge.torch_interop.passes.padding.buckets import CannotPad, GraphPadding, Padded
from pjrt_bridge.torch_interop.passes.padding.positions import OutOfCall

__all__ = ["CannotPad", "GraphPadding", "OutOfCall", "Padded"]

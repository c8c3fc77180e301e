"""Programs as exported models: exported, saved, loaded and run."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.registry import client
from pjrt_bridge.torch_interop import export
from tests.differential.ir import Program
from tests.differential.observing import Call, Seen


class _Model(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, *given: Any) -> Any:
        return self._function(*given)


def observe_exported(
    program: Program, namespace: dict[str, Any], expected: list[Call]
) -> tuple[list[Call] | None, str]:
    """What the exported model gives in each call, or None and the reason why there is none.

    Only results are compared, and only their values, types and shapes: buffers share no memory.
    A call whose row differs from the first has other sizes, and is exported anew.
    """
    if program.random or program.backward or any(call.error for call in expected):
        return None, "not for export"
    found: list[Call] = []
    for row, wanted in zip(program.calls, expected, strict=True):
        made = namespace["arguments"](*row)
        given = [made[name] for name in program.parameters]
        try:
            model = export(_Model(namespace["f"]), tuple(given))
        except NotExportable as error:
            return None, f"NotExportable: {str(error).splitlines()[0][:80]}"
        except Exception as error:
            if type(error).__module__.startswith("pjrt_bridge"):
                raise
            if not _torch_exports(namespace, program, row):
                return None, f"torch.export: {type(error).__name__}"
            raise
        with tempfile.TemporaryDirectory() as folder:
            model.save(folder)
            loaded = ExportedModel.load(folder).load_on(client())
            made = namespace["arguments"](*row)
            results = loaded(*(_plain(made[name]) for name in program.parameters))
            found.append(_as_seen(results, wanted))
    return found, ""


def _plain(value: Any) -> Any:
    """Without conj and neg bits, which DLPack does not know."""
    if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
        return value.resolve_conj().resolve_neg()
    return value


def _torch_exports(namespace: dict[str, Any], program: Program, row: tuple[Any, ...]) -> bool:
    made = namespace["arguments"](*row)
    given = tuple(made[name] for name in program.parameters)
    try:
        with torch.no_grad():
            torch.export.export(_Model(namespace["f"]), given).run_decompositions()
    except Exception:
        return False
    return True


def _as_seen(results: Any, wanted: Call) -> Call:
    """The call, with everything that is not compared as it should be."""
    leaves = pytree.tree_leaves(results, is_leaf=lambda item: hasattr(item, "__dlpack__"))
    places = list(wanted.results)
    seen = Call(
        structure=wanted.structure,
        arguments=wanted.arguments,
        written=wanted.written,
        same=wanted.same,
        shared=wanted.shared,
        writes=wanted.writes,
        later=wanted.later,
    )
    if len(leaves) != len(places):
        seen.structure = f"{len(leaves)} results"
        return seen
    for place, leaf in zip(places, leaves, strict=True):
        other = wanted.results[place]
        if isinstance(other, Seen) and hasattr(leaf, "__dlpack__"):
            value = _tensor(leaf)
            seen.results[place] = Seen(
                value.dtype,
                tuple(value.shape),
                other.strides,
                other.offset,
                other.requires_grad,
                other.bits,
                other.resizable,
                value,
            )
        else:
            seen.results[place] = leaf
    return seen


def _tensor(leaf: Any) -> torch.Tensor:
    array = np.asarray(leaf)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))

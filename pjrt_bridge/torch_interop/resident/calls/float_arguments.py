"""Operators whose floats may be symbols, in the place of ATen's.

ATen's operators take the value of a symbol for an argument that is a float, so that what is traced
serves that value alone. `pjrt_bridge::native_layer_norm` is `aten::native_layer_norm` with a Scalar
for each float, and lowers as that does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx.node import map_aggregate

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat import OpOverload

_NAMES = (
    "_cdist_backward.default",
    "_cdist_forward.default",
    "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit_no_training.default",
    "_pdist_backward.default",
    "_pdist_forward.default",
    "embedding_renorm.default",
    "native_batch_norm_backward.default",
    "native_group_norm.default",
    "native_layer_norm.default",
    "std.correction",
    "var.correction",
    "var_mean.correction",
)

_counterparts: dict[str, OpOverload] = {}


def counterpart(op: OpOverload) -> Callable[..., Any] | None:
    """What takes symbols in the place of an operator with floats; None where there is none."""
    name = op.__name__
    if op.namespace != "aten":
        return None
    if name in _IN_PLACE:
        new, written = _IN_PLACE[name]
        return partial(_written, _counterparts[new], written) if new in _counterparts else None
    return _counterparts.get(name)


_IN_PLACE: dict[str, tuple[str, tuple[int, ...]]] = {
    "_native_batch_norm_legit.default": ("_native_batch_norm_legit_functional.default", (3, 4)),
    "embedding_renorm_.default": ("embedding_renorm.default", (0,)),
}
"""For operators that write into arguments those that give new tensors, behind their other results,
and the positions of these arguments."""


def _written(op: OpOverload, written: tuple[int, ...], *args: Any, **kwargs: Any) -> Any:
    found = op(*args, **kwargs)
    results = found if isinstance(found, (tuple, list)) else (found,)
    kept = len(results) - len(written)
    for place, value in zip(written, results[kept:], strict=True):
        args[place].copy_(value)
    return results[:kept] if kept else args[written[0]]


def _define(name: str) -> None:
    aten = compat.operator(f"aten.{name}")
    if aten is None:
        return
    schema = "(" + str(aten._schema).partition("(")[2].replace("float ", "Scalar ")
    own = f"{compat.OWN_NAMESPACE}::{name.removesuffix('.default')}"
    torch.library.define(own, schema)
    torch.library.impl(own, "cpu", aten)
    torch.library.register_fake(own, partial(_promised, aten))
    made = compat.operator(f"{compat.OWN_NAMESPACE}.{name}")
    assert made is not None
    _counterparts[name] = made


def _promised(aten: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """What the operator promises, which depends on none of its floats."""
    given, named = map_aggregate((args, kwargs), compat.hint_of_float)
    return aten(*given, **named)


for _name in _NAMES:
    _define(_name)

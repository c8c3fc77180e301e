"""The signature of a module's `main`: its types, and the attributes that frameworks attach.

The attributes on parameters and results (`jax.buffer_donor`, `tf.aliasing_output`,
`mhlo.layout_mode`, `mhlo.sharding`, `sdy.sharding`) are XLA's conventions; StableHLO itself has no
word for donation, layouts and shardings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError, UnsupportedDtype
from pjrt_bridge.stablehlo import modules
from pjrt_bridge.stablehlo.sharding.hlo import shard_shape
from pjrt_bridge.stablehlo.sharding.mesh import axes_in
from pjrt_bridge.stablehlo.sharding.sharding import shard_shape_of
from pjrt_bridge.stablehlo.types import Donation, Parameter, Result, Signature, TensorType

_LAYOUT = re.compile(r"\{([\d,\s]*)(?::[^}]*)?\}")

Meshes = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class _Common:
    """What parameters and results share."""

    type: TensorType
    dynamic: tuple[int, ...]
    layout: tuple[int, ...] | None
    sharding: str | None
    shard_shape: tuple[int, ...]


def read_signature(module: Any, main: Any) -> Signature:
    """The signature of the function `main` of a module of the bindings.

    Raises:
        ProgramError: a type that no PJRT program can have, or an attribute that cannot be read.
    """
    meshes = {name: axes_in(text) for name, text in modules.meshes(module).items()}
    inputs, results = modules.function_values(main)
    return Signature(
        tuple(_parameter(i, kind, attrs, meshes) for i, (kind, attrs) in enumerate(inputs)),
        tuple(_result(i, kind, attrs, meshes) for i, (kind, attrs) in enumerate(results)),
    )


def _parameter(index: int, kind: Any, attrs: Mapping[str, Any], meshes: Meshes) -> Parameter:
    where = f"parameter {index}"
    if attrs.get("mhlo.layout_mode") == "auto":
        raise ProgramError(
            f"{where}: mhlo.layout_mode 'auto' lets the compiler choose an order that PJRT does "
            "not tell; name one such as {1,0}, or leave it out"
        )
    common = _common(where, kind, attrs, meshes)
    if common.dynamic:
        raise ProgramError(
            f"{where}: type {kind} is dynamic; a program can be compiled for static parameter "
            "shapes only, so refine the shapes first"
        )
    alias: int | None = attrs.get("tf.aliasing_output")
    donation: Donation = "kept"
    if alias is not None:
        donation = "must"
    elif attrs.get("jax.buffer_donor"):
        donation = "may"
    return Parameter(
        common.type, common.layout, donation, alias, common.sharding, common.shard_shape
    )


def _result(index: int, kind: Any, attrs: Mapping[str, Any], meshes: Meshes) -> Result:
    common = _common(f"result {index}", kind, attrs, meshes)
    return Result(common.type, common.layout, common.sharding, common.shard_shape, common.dynamic)


def _common(where: str, kind: Any, attrs: Mapping[str, Any], meshes: Meshes) -> _Common:
    found = modules.tensor_parts(kind)
    if found is None:
        raise ProgramError(f"{where}: type {kind} is no ranked tensor, which PJRT buffers hold")
    sizes, bounds, element = found
    shape: list[int] = []
    for size, bound in zip(sizes, bounds, strict=True):
        known = bound if size is None else size
        if known is None:
            raise ProgramError(
                f"{where}: type {kind} has a dynamic dimension without a bound; a program can be "
                "compiled for static or bounded shapes only, so refine the shapes first"
            )
        shape.append(known)
    try:
        tensor = TensorType(tuple(shape), dtypes.from_stablehlo(element))
    except UnsupportedDtype as error:
        raise ProgramError(f"{where}: type {kind}: {error}") from None
    sharding = attrs.get("mhlo.sharding")
    shards = tensor.shape
    if sharding is not None:
        shards = shard_shape(tensor.shape, sharding)
    elif "sdy.sharding" in attrs:
        sharding = attrs["sdy.sharding"]
        shards = shard_shape_of(tensor.shape, sharding, meshes)
    return _Common(
        tensor,
        tuple(i for i, size in enumerate(sizes) if size is None),
        _layout(where, attrs.get("mhlo.layout_mode")),
        sharding,
        shards,
    )


def _layout(where: str, mode: str | None) -> tuple[int, ...] | None:
    if mode is None or mode in ("default", "auto"):
        return None
    match = _LAYOUT.fullmatch(mode)
    if match is None:
        raise ProgramError(
            f"{where}: mhlo.layout_mode {mode!r} is neither default, auto nor a minor-to-major "
            "order such as {1,0}"
        )
    return tuple(int(dim) for dim in match[1].split(",") if dim.strip())

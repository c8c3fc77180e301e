"""Types of StableHLO programs: static tensor types and the signature of `@main`.

Plain data without jaxlib, so the runtime can keep and serialize signatures on its own. Shapes are
numbers of elements per dimension; layouts are minor-to-major dimension orders, as in
`mhlo.layout_mode` and `PJRT_Buffer_MemoryLayout`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError, UnsupportedDtype
from pjrt_bridge.wrong_arguments import checked_methods, require

Donation = Literal["kept", "may", "must"]

_RANK = 1000
"""Dimensions of a tensor whose description is read."""


@checked_methods
@dataclass(frozen=True, slots=True)
class TensorType:
    """A statically shaped tensor type (StableHLO spec, "Types").

    Attributes:
        shape: elements per dimension, major to minor; `()` is a scalar.
        dtype: element type.

    Raises:
        ArgumentError: something else than a tuple and an element type.
        ProgramError: a negative dimension.
    """

    shape: tuple[int, ...]
    dtype: DType

    def __post_init__(self) -> None:
        shape: Any = self.shape
        dtype: Any = self.dtype
        if not (isinstance(shape, tuple) and isinstance(dtype, DType)):
            require(shape, tuple, "TensorType: shape")
            require(dtype, DType, "TensorType: dtype")
        if self.shape and min(self.shape) < 0:
            raise ProgramError(f"tensor type: dimensions must be >= 0, found shape {self.shape}")

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense host array (sub-byte types take one byte per element there)."""
        return self.size * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """The type as JSON-ready data."""
        return {"shape": list(self.shape), "dtype": self.dtype.name}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TensorType:
        """The type that `to_json` described; other fields are passed over.

        Raises:
            UnsupportedDtype: an element type that this bridge does not know.
            ProgramError: a negative dimension.
            KeyError, TypeError: the data has another form.
        """
        return TensorType(_numbers(data["shape"]), dtypes.of(_text(data["dtype"])))

    def __str__(self) -> str:
        return f"{self.dtype.stablehlo}[{','.join(map(str, self.shape))}]"


@checked_methods
@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of `@main`.

    Attributes:
        type: global type.
        layout: minor-to-major order asked for by `mhlo.layout_mode`; None: the plugin's default.
        donation: `"kept"`; `"may"` be donated (`jax.buffer_donor`); `"must"` become output
            `alias` (`tf.aliasing_output`).
        alias: index of the aliased output where donation is `"must"`, else None.
        sharding: text of the `mhlo.sharding` or `sdy.sharding` attribute.
        shard_shape: shape on one device that the sharding implies; `type.shape` where there is
            none.

    Raises:
        ProgramError: `alias` without `"must"` or the other way round, a layout that is no
            permutation.
    """

    type: TensorType
    layout: tuple[int, ...] | None = None
    donation: Donation = "kept"
    alias: int | None = None
    sharding: str | None = None
    shard_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_layout("parameter", self.type, self.layout)
        if (self.donation == "must") != (self.alias is not None):
            raise ProgramError(
                f"parameter {self.type}: donation {self.donation!r} with alias {self.alias}; "
                "an alias belongs to donation 'must' and to no other"
            )
        if not self.shard_shape:
            object.__setattr__(self, "shard_shape", self.type.shape)


@checked_methods
@dataclass(frozen=True, slots=True)
class Result:
    """One result of `@main`.

    Attributes:
        type: global type; of a bounded dynamic dimension the bound.
        layout: minor-to-major order asked for by `mhlo.layout_mode`; None: the plugin's default.
        sharding: text of the `mhlo.sharding` or `sdy.sharding` attribute.
        shard_shape: shape on one device that the sharding implies; `type.shape` where there is
            none.
        dynamic: dimensions whose size is only bounded (`#stablehlo.bounds`).
    """

    type: TensorType
    layout: tuple[int, ...] | None = None
    sharding: str | None = None
    shard_shape: tuple[int, ...] = ()
    dynamic: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_layout("result", self.type, self.layout)
        if not self.shard_shape:
            object.__setattr__(self, "shard_shape", self.type.shape)


@checked_methods
@dataclass(frozen=True)
class Signature:
    """Parameters and results of a program's `@main`, in order."""

    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]

    def to_json(self) -> dict[str, Any]:
        """The signature as JSON-ready data, for serialized executables."""
        return {
            "parameters": [
                {**_common(p), "donation": p.donation, "alias": p.alias} for p in self.parameters
            ],
            "results": [{**_common(r), "dynamic": list(r.dynamic)} for r in self.results],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """The signature that `to_json` described.

        Raises:
            ProgramError: the data has another form.
        """
        try:
            found = cls(
                tuple(map(_parameter, data["parameters"])),
                tuple(
                    Result(**_fields(r), dynamic=_numbers(r["dynamic"])) for r in data["results"]
                ),
            )
        except (KeyError, TypeError, AttributeError, UnsupportedDtype) as error:
            raise ProgramError(f"signature: malformed JSON data: {error!r}") from error
        for parameter in found.parameters:
            if parameter.alias is not None and parameter.alias >= len(found.results):
                raise ProgramError(
                    f"signature: malformed JSON data: alias {parameter.alias} of "
                    f"{len(found.results)} results"
                )
        for result in found.results:
            if any(dimension >= result.type.rank for dimension in result.dynamic):
                raise ProgramError(
                    f"signature: malformed JSON data: dynamic dimensions {result.dynamic} of "
                    f"{result.type}"
                )
        return found


def _check_layout(what: str, tensor: TensorType, layout: tuple[int, ...] | None) -> None:
    if layout is not None and sorted(layout) != list(range(tensor.rank)):
        raise ProgramError(
            f"{what} {tensor}: layout {layout} is no permutation of {tensor.rank} dimensions"
        )


def _common(item: Parameter | Result) -> dict[str, Any]:
    return {
        **item.type.to_json(),
        "layout": None if item.layout is None else list(item.layout),
        "sharding": item.sharding,
        "shard_shape": list(item.shard_shape),
    }


def _parameter(data: Mapping[str, Any]) -> Parameter:
    if data["donation"] not in ("kept", "may", "must"):
        raise TypeError(f"donation {data['donation']!r:.80}")
    alias = None if data["alias"] is None else _numbers([data["alias"]])[0]
    return Parameter(**_fields(data), donation=data["donation"], alias=alias)


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    type = TensorType.from_json(data)
    shards = _numbers(data["shard_shape"])
    if len(shards) != type.rank:
        raise TypeError(f"shard_shape {shards!r:.80} of {type}")
    return {
        "type": type,
        "layout": None if data["layout"] is None else _numbers(data["layout"]),
        "sharding": None if data["sharding"] is None else _text(data["sharding"]),
        "shard_shape": shards,
    }


def _numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > _RANK:
        raise TypeError(f"{value!r:.80} is no list of at most {_RANK} numbers")
    for number in value:
        if type(number) is not int or not -1 << 63 <= number < 1 << 63:
            raise TypeError(f"{number!r:.80} is no integer of 64 bits")
    return tuple(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value

"""Symbolic sizes of an exported program: their names, their limits, and values for them.

The lowerings emit static shapes. So an exported program with symbolic sizes becomes one program for
each choice of them, over the same weights; the symbols stay in the interface, where they tell which
sizes of arguments are related.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from pjrt_bridge.errors import NotExportable, OptionError
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit.substitute_sizes import substitute_sizes
from pjrt_bridge.torch_interop.exporting.capture import CapturedGraph

_ENDLESS = 1 << 60


@dataclass(frozen=True)
class StatedSize:
    """A size that a caller states, and the symbol of torch's that it determines.

    The size is `factor * symbol + offset`.

    Attributes:
        name: by which the caller states it.
        symbol: of torch's.
        factor: of the symbol.
        offset: that is added.
        least: smallest size; None where there is no limit.
        most: largest size; None where there is no limit.
    """

    name: str
    symbol: Any
    factor: int = 1
    offset: int = 0
    least: int | None = None
    most: int | None = None

    @property
    def range(self) -> str:
        """The limits and the step, as a text."""
        least, most = self.least or 0, self.most
        text = f"{least} or more" if most is None else f"{least} to {most}"
        if self.factor == 1:
            return text
        rest = self.offset % self.factor
        return f"{text}, {f'{rest} more than ' if rest else ''}a multiple of {self.factor}"

    def tell(self, size: int) -> int | None:
        """The value of the symbol; None for a size outside the limits or between steps."""
        low = self.least is not None and size < self.least
        if low or (self.most is not None and size > self.most):
            return None
        value, rest = divmod(size - self.offset, self.factor)
        return None if rest else value

    def text(self, expression: Any) -> Any:
        """An expression of torch's in terms of the stated size."""
        stated = type(self.symbol)(self.name, integer=True)
        return expression.subs(self.symbol, (stated - self.offset) / self.factor)


@dataclass(frozen=True)
class Symbols:
    """The symbolic sizes of one exported program.

    Attributes:
        sizes: that a caller states, one for each symbol of torch's.
        examples: by name the size in the example, as far as the program has one.
        shapes: of arguments with symbolic sizes, by name, with the texts of the sizes.
        conditions: expressions of torch's symbols, which held when the model was traced.
    """

    sizes: Sequence[StatedSize] = ()
    examples: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    conditions: Sequence[Any] = ()

    @classmethod
    def of(
        cls,
        program: ExportedProgram,
        captured: CapturedGraph,
        positional: Sequence[str] = (),
        dynamic_shapes: Any = None,
    ) -> Symbols:
        """The symbols of an exported program.

        Args:
            program: as torch.export gives it.
            captured: the same.
            positional: names of the parameters that arguments by position belong to.
            dynamic_shapes: what torch.export was given; the names of dimensions are in it.

        Raises:
            NotExportable: a dimension whose size does not determine its symbol.
        """
        inputs = [source for source in captured.sources if not source.is_weight]
        args, kwargs = program.example_inputs or ((), {})
        examples = compat.tree_leaves((args, kwargs)) or [None] * len(inputs)
        declared = _declared(dynamic_shapes, positional, args, kwargs) or [{}] * len(inputs)
        dimensions = [
            _SymbolicDimension(
                f"{source.name}.{dim}",
                size,
                example.shape[dim] if isinstance(example, torch.Tensor) else None,
                dims.get(dim),
            )
            for source, example, dims in zip(inputs, examples, declared, strict=True)
            if isinstance(source.value, torch.Tensor)
            for dim, size in enumerate(source.value.shape)
            if compat.symbols(size)
        ]
        ranges = program.range_constraints
        sizes: dict[Any, StatedSize] = {}
        stated: dict[str, int] = {}
        # A dimension that is a symbol names it, else one that is a multiple of it.
        for dimension in sorted(dimensions, key=lambda dimension: not dimension.is_symbol):
            found = dimension.tells(ranges)
            if found is not None and found[0].symbol not in sizes:
                size, example = found
                sizes[size.symbol] = size
                if example is not None:
                    stated[size.name] = example
        for dimension in dimensions:
            unknown = compat.symbols(dimension.size) - sizes.keys()
            if unknown:
                raise NotExportable(
                    f"dimension {dimension.name}: found the size {dimension.size}, expected sizes "
                    f"that tell {', '.join(sorted(map(str, unknown)))}; give the dimension a Dim "
                    "of its own"
                )
        return cls(
            tuple(sizes.values()),
            stated,
            {
                source.name: tuple(_text(size, sizes) for size in source.value.shape)
                for source in inputs
                if compat.symbols_of_sizes(source.value)
            },
            compat.conditions(program),
        )

    @property
    def limits(self) -> dict[str, tuple[int | None, int | None]]:
        """By name the least and the largest size; None where there is none."""
        return {size.name: (size.least, size.most) for size in self.sizes}

    def choices(self, sizes: Sequence[Mapping[str, int]] | None) -> list[dict[str, int]]:
        """The choices of sizes, checked.

        Raises:
            OptionError: no choice where there are dynamic dimensions, a missing or unknown name, a
                size outside the limits, or sizes for which the model does something else.
        """
        if not self.sizes and sizes is None:
            return [{}]
        if sizes is None:
            ranges = ", ".join(f"{size.name!r} ({size.range})" for size in self.sizes)
            example = dict(self.examples) or {size.name: size.least or 1 for size in self.sizes}
            raise OptionError(
                f"export: the model's dynamic dimensions are {ranges}, and programs have fixed "
                f"sizes; say for which to make one each, such as sizes=[{example}]"
            )
        if not sizes:
            raise OptionError("export: sizes: found none, expected one choice or more")
        for chosen in sizes:
            if set(chosen) != set(self.limits):
                raise OptionError(
                    f"export: sizes: found {dict(chosen)}, expected a size for each of "
                    f"{list(self.limits) or 'no dimensions: dynamic_shapes names none'}"
                )
            for size in self.sizes:
                if size.tell(chosen[size.name]) is None:
                    raise OptionError(
                        f"export: sizes: found {size.name}={chosen[size.name]}, expected "
                        f"{size.range}, which is what torch.export traced the model for"
                    )
            self._check_conditions(chosen)
        return [dict(chosen) for chosen in sizes]

    def _check_conditions(self, chosen: Mapping[str, int]) -> None:
        """Refuse sizes for which the model was not traced.

        What a program computes there may be something else: a branch that depends on a size was
        decided for the example.
        """
        values = self._values(chosen)
        for condition in self.conditions:
            if not compat.is_met(condition, values):
                stated = ", ".join(f"{name}={size}" for name, size in chosen.items())
                text = condition
                for size in self.sizes:
                    text = size.text(text)
                raise OptionError(
                    f"export: sizes: found {stated}, expected sizes for which {text} is true, as "
                    "it was when torch.export traced the model; trace the model anew with an "
                    "example of these sizes"
                )

    def _values(self, chosen: Mapping[str, int]) -> dict[Any, int]:
        """The values of torch's symbols."""
        return {size.symbol: size.tell(chosen[size.name]) or 0 for size in self.sizes}

    def specialized(
        self, module: fx.GraphModule, captured: CapturedGraph, chosen: Mapping[str, int], keys: int
    ) -> fx.GraphModule:
        """The graph with these sizes substituted.

        Raises:
            NotExportable: a result's shape depends on data.
        """
        if not self.sizes:
            return module
        values = self._values(chosen)
        arguments: list[Any] = []
        for source in captured.sources:
            value = source.value
            if source.kind == "input":
                value = _placed(value, values)
            arguments.append(value)
        arguments += [torch.empty((), dtype=torch.int64, device="cpu")] * keys
        try:
            return substitute_sizes(module, arguments)
        except compat.DATA_DEPENDENT as error:
            raise NotExportable(f"a size in the model depends on data: {error}") from error


def _placed(value: torch.Tensor, values: Mapping[Any, int]) -> torch.Tensor:
    """A tensor of these sizes, which lies in its memory as the example does.

    A symbol that no size tells is a step over elements that are not the argument's, or an offset.
    All that matters of those is that they are there (`placement/surroundings.py`).
    """

    def told(number: int | torch.SymInt) -> int:
        around = dict.fromkeys(compat.symbols(number), 2)
        return int(compat.evaluate(number, around | dict(values)))

    shape = [int(compat.evaluate(size, values)) for size in value.shape]
    strides, offset = [told(stride) for stride in value.stride()], told(value.storage_offset())
    reach = sum(max(n - 1, 0) * stride for n, stride in zip(shape, strides, strict=True))
    return torch.empty(offset + reach + 1, dtype=value.dtype, device="cpu").as_strided(
        shape, strides, offset
    )


@dataclass(frozen=True)
class _SymbolicDimension:
    """A dimension with a symbolic size.

    Attributes:
        name: that it has where none was declared.
        size: symbolic.
        example: its size in the example, if there is one.
        declared: what `dynamic_shapes` says of it.
    """

    name: str
    size: Any
    example: int | None
    declared: Any

    @property
    def is_symbol(self) -> bool:
        """Whether the size is a symbol itself, and not calculated from one."""
        return compat.symbols(self.size) == {compat.expression(self.size)}

    def tells(self, ranges: Mapping[Any, Any]) -> tuple[StatedSize, int | None] | None:
        """A size for the caller to state, and its value in the example.

        None where the dimension does not determine a symbol: its size depends on several, or on one
        by something else than `factor * symbol + offset`.
        """
        if len(compat.symbols(self.size)) != 1:
            return None
        (symbol,) = compat.symbols(self.size)
        size = compat.expression(self.size)
        offset = size.subs(symbol, 0)
        factor = size.subs(symbol, 1) - offset
        if not (offset.is_Integer and factor.is_Integer and factor > 0):
            return None
        if (size - factor * symbol - offset).expand() != 0:
            return None
        factor, offset = int(factor), int(offset)
        least, most = _limits(ranges.get(symbol))
        root = getattr(self.declared, "root", self.declared if self.is_symbol else None)
        name = str(getattr(root, "__name__", ""))
        if name.isidentifier():
            value = None if self.example is None else (self.example - offset) // factor
            return StatedSize(name, symbol, least=least, most=most), value
        lower, upper = _limits(ranges.get(size))
        least = None if least is None else factor * least + offset
        most = None if most is None else factor * most + offset
        return StatedSize(
            self.name,
            symbol,
            factor,
            offset,
            max((bound for bound in (least, lower) if bound is not None), default=None),
            min((bound for bound in (most, upper) if bound is not None), default=None),
        ), self.example


def _declared(
    dynamic_shapes: Any, positional: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[dict[int, Any]]:
    """For each leaf of the arguments, what `dynamic_shapes` declares of its dimensions."""
    values = [*args, *kwargs.values()]
    named = [*positional[: len(args)], *kwargs]
    if isinstance(dynamic_shapes, Mapping):
        specs = [dynamic_shapes.get(name) for name in named]
    elif isinstance(dynamic_shapes, (list, tuple)):
        specs = [*dynamic_shapes, *[None] * (len(values) - len(dynamic_shapes))]
    else:
        specs = [None] * len(values)
    return [
        found
        for spec, value in zip(specs, values, strict=False)
        for found in _dimensions(spec, value)
    ]


def _dimensions(spec: Any, value: Any) -> list[dict[int, Any]]:
    if isinstance(value, Mapping) and isinstance(spec, Mapping):
        return [one for key in value for one in _dimensions(spec.get(key), value[key])]
    if isinstance(value, (list, tuple)) and isinstance(spec, (list, tuple)):
        pairs = zip(spec, value, strict=False)
        return [one for inner, item in pairs for one in _dimensions(inner, item)]
    if not isinstance(value, torch.Tensor):
        return [{} for _ in compat.tree_leaves(value)]
    return [dict(spec.items() if isinstance(spec, Mapping) else enumerate(spec or ()))]


def _limits(range: Any) -> tuple[int | None, int | None]:
    if range is None:
        return None, None
    least, most = (
        None if abs(bound) >= _ENDLESS else int(bound) for bound in (range.lower, range.upper)
    )
    return least, most


def _text(size: Any, sizes: Mapping[Any, StatedSize]) -> int | str:
    found = compat.expression(size)
    for symbol in compat.symbols(size):
        found = sizes[symbol].text(found)
    return str(found) if compat.symbols(size) else int(size)

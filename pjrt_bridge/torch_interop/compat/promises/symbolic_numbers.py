"""Numbers of Python that are symbols while a call is traced, and what tracing assumes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic
from torch.utils._sympy.interp import handlers
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.reference import TensorReferenceAnalysis


class SymbolicNumbers:
    """Numbers that differ from call to call, for the promises of `trace_call`.

    Args:
        mode: a mode with symbols.
        values: of the call that is traced.

    Attributes:
        promises: a symbolic number for each value.
    """

    def __init__(self, mode: FakeTensorMode, values: Sequence[float]) -> None:
        environment = mode.shape_env
        assert environment is not None
        self._environment = environment
        self._symbols: list[sympy.Symbol] = []
        self.promises: list[torch.SymFloat | torch.SymInt] = []
        for at, value in enumerate(values):
            source = ConstantSource(f"number_{at}")
            symbol = environment.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
            found: Any
            if isinstance(value, int):
                found = environment.create_symintnode(symbol, hint=value, source=source)
            else:
                found = environment.create_symfloatnode(symbol, hint=value, source=source)
            assert isinstance(found, torch.SymFloat | torch.SymInt)
            self._symbols.append(symbol)
            self.promises.append(found)

    @property
    def constant(self) -> frozenset[int]:
        """The numbers, by their places, of which what was traced serves one value only."""
        replaced = self._environment.replacements
        return frozenset(at for at, symbol in enumerate(self._symbols) if symbol in replaced)

    def conditions(self) -> Callable[[Sequence[float]], bool] | None:
        """Whether what was traced serves other values; None where it serves all.

        What is traced depends on comparisons of the numbers, by a decomposition say.
        """
        assumed = [guard.expr for guard in self._environment.guards]
        if not assumed:
            return None
        evaluate: Callable[..., list[Any]] = sympy.lambdify(
            self._symbols, assumed, modules=[{"math": math}], printer=PythonPrinter()
        )

        def hold(values: Sequence[float]) -> bool:
            try:
                return all(evaluate(*values))
            except (ArithmeticError, NameError, TypeError, ValueError):
                # Of an infinite number, say: such a call gets a program of its own.
                return False

        return hold


def leave_calculations_to_python() -> None:
    """Have torch leave calculations with sizes to Python that it has no operators of tensors for.

    AOTAutograd makes tensors of floating-point numbers that graphs read. For a function that its
    table (2.13) has not, such as the remainder in `((-n) % 4) * 0.5`, it would raise an
    AttributeError.
    """
    for name in handlers().values():
        if not hasattr(TensorReferenceAnalysis, name):
            setattr(TensorReferenceAnalysis, name, staticmethod(_has_no_operator))


def _has_no_operator(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError

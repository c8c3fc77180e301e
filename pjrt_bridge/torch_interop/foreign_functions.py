"""Foreign functions: functions that are no operators of torch's, and what is known of each.

A foreign function gives StableHLO for arguments of known sizes: a function of JAX, of TensorFlow,
or a program that someone wrote. One operator of torch, `pjrt_functions::call`, calls all of them by
name (`pjrt_bridge.torch_interop.foreign`); its lowering makes the function's program a part of the
program of the graph.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import OptionError
from pjrt_bridge.stablehlo.patterns import rounds
from pjrt_bridge.stablehlo.patterns.composites import resolved
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType

NAMESPACE = "pjrt_functions"
OPERATOR = f"{NAMESPACE}.call.default"
"""`(str function, Tensor[] arguments, SymInt[] sizes) -> Tensor[]`"""

PORTABLE = "pjrt"
"""The platform of programs that any plugin takes."""


class ArraySpec(NamedTuple):
    """Shape and element type of an array.

    Attributes:
        shape: integers, or what stands for integers that only a call knows: it is added,
            multiplied and divided as they are, and `int` of it fixes its value.
        dtype: element type.
    """

    shape: tuple[Any, ...]
    dtype: DType

    @staticmethod
    def of(tensor: Any) -> ArraySpec:
        """The spec of a tensor of torch.

        Raises:
            UnsupportedDtype: an element type without a PJRT counterpart.
        """
        return ArraySpec(tuple(tensor.shape), dtypes.from_torch(tensor.dtype))

    @staticmethod
    def of_array(array: Any) -> ArraySpec:
        """The spec of an array of NumPy or JAX, or of an object that describes one.

        Raises:
            UnsupportedDtype: an element type without a PJRT counterpart.
        """
        return ArraySpec(tuple(array.shape), dtypes.from_numpy(array.dtype))


class ArrayFunction(Protocol):
    """A function of arrays of a framework in order, and of sizes, as that framework traces it."""

    def __call__(self, arrays: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any]:
        """The results, in order."""


@dataclass(frozen=True)
class Derivative:
    """The functions that compute the gradients of those arguments that were asked for.

    Attributes:
        backward: of `saved`, then of the gradients of the results `reads`.
        sizes: of `backward`.
        saved: positions among the function's arguments, and behind them what it gives.
        reads: positions among what it gives.
        differentiable: the same as `backward`, of all arguments and then of the gradients of
            `reads`; it has gradients itself.
    """

    backward: ForeignFunction
    sizes: tuple[Any, ...]
    saved: tuple[int, ...]
    reads: tuple[int, ...]
    differentiable: ForeignFunction


class ForeignFunction(ABC):
    """A pure function of arrays.

    Args:
        label: what users read.

    Attributes:
        label: see above.
        name: that the operator finds it by; unique in a process.
        row_dims: how many leading dimensions it keeps apart, as its author says: an element of its
            results depends on those elements of its arguments alone that have the same positions in
            them. Arguments without one of these dimensions, or with one row, count for all rows.
    """

    row_dims = 0

    def __init__(self, label: str) -> None:
        self.label = label
        self.name = _register(self, label)

    @abstractmethod
    def results(self, arguments: Sequence[ArraySpec], sizes: Sequence[Any]) -> Sequence[ArraySpec]:
        """Shapes and types of the results for such arguments.

        Args:
            arguments: what it is given.
            sizes: integers, or what stands for them, that it depends on beside its arguments.

        Raises:
            Exception: what the function raises for such arguments.
        """

    @abstractmethod
    def program(
        self, arguments: Sequence[TensorType], sizes: Sequence[int], platform: str
    ) -> Program:
        """Its program for arguments of known sizes.

        Args:
            arguments: what it is given.
            sizes: see `results`.
            platform: name of the plugin's platform, or `PORTABLE`.

        Raises:
            ProgramError: there is none for them.
        """

    def saving(self, wanted: Sequence[bool]) -> ForeignFunction:
        """The function that also gives what gradients of these arguments need, after its results.

        By default that is nothing.
        """
        return self

    def derivative(self, arguments: Sequence[ArraySpec], wanted: Sequence[bool]) -> Derivative:
        """How gradients of these arguments are computed.

        Raises:
            NotImplementedError: it has no gradients.
        """
        raise NotImplementedError(f"{self.name} has no gradients")

    def pushed(self, moved: Sequence[bool]) -> ForeignFunction:
        """The tangents of those results that are floats, for arguments and then tangents of some.

        Args:
            moved: by argument whether it has a tangent.

        Raises:
            NotImplementedError: it has no tangents.
        """
        raise NotImplementedError(f"{self.name} has no tangents (torch.func.jvp)")

    def mapped(self, dimensions: Sequence[int | None]) -> ForeignFunction:
        """The function over a further dimension of some arguments, which leads its results.

        Args:
            dimensions: by argument the dimension; None where all use the same array.

        Raises:
            NotImplementedError: it cannot be mapped.
        """
        raise NotImplementedError(f"{self.name} cannot be mapped over a dimension (torch.vmap)")


_functions: dict[str, ForeignFunction] = {}
_numbers = itertools.count()
_lock = threading.Lock()


def _register(function: ForeignFunction, label: str) -> str:
    with _lock:
        name = f"{label}#{next(_numbers)}"
        _functions[name] = function
    return name


def find(name: str) -> ForeignFunction:
    """The function of a name.

    Raises:
        OptionError: there is none in this process.
    """
    found = _functions.get(name)
    if found is None:
        raise OptionError(
            f"function {name!r} is not known in this process: a graph that calls it was loaded "
            "from a file; compile or export it where the function is defined"
        )
    return found


def label_of(name: object) -> str:
    """The label of a function for messages: the text that it was registered with."""
    return str(name).rpartition("#")[0]


def lowering_for(platform: str) -> Callable[..., Any]:
    """The lowering of the operator for a platform: it calls the function's program.

    What the function wrote as StableHLO is computed by the target's kernels.
    """

    def lower(context: Any, name: str, arguments: Sequence[Any], sizes: Sequence[int] = ()) -> Any:
        types = [argument.type for argument in arguments]
        program = resolved(find(name).program(types, sizes, platform), context.kernels)
        return context.b.call(program, arguments, rounds(context.kernels))

    return lower

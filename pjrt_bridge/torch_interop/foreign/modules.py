"""Modules of torch as pure functions of their parameters, buffers and arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from pjrt_bridge.errors import NotExportable, OptionError
from pjrt_bridge.torch_interop.foreign.structures import Structure, flatten, unflatten
from pjrt_bridge.torch_interop.foreign.torch_function import TorchFunction
from pjrt_bridge.torch_interop.foreign_functions import ArraySpec
from pjrt_bridge.torch_interop.tensors import array_over


class ModuleCalls:
    """A module, called as a function of (parameters, buffers, arguments, keyword arguments).

    Raises:
        OptionError: no module, or one that is not on the host.
    """

    def __init__(self, module: Any) -> None:
        if not isinstance(module, torch.nn.Module):
            raise OptionError(
                f"module: found a {type(module).__name__}, expected a torch.nn.Module"
            )
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.device.type != "cpu":
                raise OptionError(
                    f"module: found {name} on {tensor.device}, expected the host: module.cpu()"
                )
        self._module = module
        self._known: dict[Any, ModuleCall] = {}

    def parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """The parameters by name, over their memory where they are row-major."""
        return {name: array_over(tensor) for name, tensor in self._module.named_parameters()}

    def buffers(self) -> dict[str, np.ndarray[Any, Any]]:
        """The buffers by name."""
        return {name: array_over(tensor) for name, tensor in self._module.named_buffers()}

    def trained(self) -> frozenset[str]:
        """The names of the parameters that require gradients."""
        found = self._module.named_parameters()
        return frozenset(name for name, parameter in found if parameter.requires_grad)

    def bind(
        self,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        is_array: Callable[[object], bool],
        wide: bool,
    ) -> BoundCall:
        """The function for arguments of this nesting, and its arrays.

        Args:
            parameters: by name.
            buffers: by name.
            args: of the module; what is neither an array nor a container is a constant.
            kwargs: the same, by name.
            is_array: tells arrays of the calling framework.
            wide: integers of 64 bits may be results; otherwise they have 32.
        """
        leaves: list[Any] = []
        structure = flatten((dict(parameters), dict(buffers), args, dict(kwargs)), leaves)
        arrays = [leaf for leaf in leaves if is_array(leaf)]
        constants = tuple(None if is_array(leaf) else leaf for leaf in leaves)
        key = (structure, constants, wide, self._module.training)
        if key not in self._known:
            self._known[key] = ModuleCall(self._module, structure, constants, wide)
        # The containers' own leaves come first, in this order.
        names, trained = [*sorted(parameters), *sorted(buffers)], self.trained()
        fixed = frozenset(at for at, name in enumerate(names) if name not in trained)
        return BoundCall(self._known[key], arrays, fixed)


class BoundCall(NamedTuple):
    """A call of a module.

    Attributes:
        call: the function.
        arrays: its arguments.
        fixed: positions of those that have no gradients: buffers, and what is not trained.
    """

    call: ModuleCall
    arrays: list[Any]
    fixed: frozenset[int]

    def drawn(
        self, specs: Sequence[ArraySpec], bits: Callable[[], Any] | None, wanted: str
    ) -> tuple[TorchFunction, list[Any], frozenset[int]]:
        """The function, its arguments, and which have no gradients, with bits to draw from.

        Args:
            specs: of the arrays.
            bits: gives 64 random bits, as two int32, which precede the arrays of a function that
                draws; None where the caller has none.
            wanted: what the caller passes for them, for the error.

        Raises:
            NotExportable: it draws, and there are none.
        """
        function = self.call.function
        if not function.draws(specs):
            return function, self.arrays, self.fixed
        if bits is None:
            raise NotExportable(
                f"{function.label}: it draws random numbers: pass {wanted}, or call .eval() on the "
                "module first"
            )
        return function.seeded(), [bits(), *self.arrays], frozenset(at + 1 for at in self.fixed)


class ModuleCall:
    """A module as a function of arrays in order.

    Attributes:
        function: of the arrays; it gives the results, then the new values of the buffers.
    """

    def __init__(
        self, module: torch.nn.Module, structure: Structure, constants: tuple[Any, ...], wide: bool
    ) -> None:
        self._module = module
        self._structure = structure
        self._constants = constants
        self._wide = wide
        self._returned: Structure | None = None
        self.function = TorchFunction(self._run, f"torch.{type(module).__name__}")

    def returned(self) -> Structure:
        """The nesting of (result, buffers), once the function was traced."""
        assert self._returned is not None
        return self._returned

    def _run(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        # The module may write into its arguments; nobody else sees that.
        supply = (self._widened(tensor).clone() for tensor in tensors)
        leaves = [next(supply) if item is None else item for item in self._constants]
        parameters, changed, args, kwargs = unflatten(self._structure, leaves)
        call: Callable[..., Any] = torch.func.functional_call
        result = call(self._module, {**parameters, **changed}, args, kwargs)
        found: list[Any] = []
        self._returned = flatten((_plain(result), changed), found)
        return [self._narrowed(item) for item in found]

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        """An argument in a type that torch has positions and classes in."""
        narrow = tensor.dtype is torch.int32 and not self._wide
        return tensor.to(torch.int64) if narrow else tensor

    def _narrowed(self, item: Any) -> torch.Tensor:
        if not isinstance(item, (torch.Tensor, bool, int, float, complex)):
            raise OptionError(
                f"{self.function.label}: found a {type(item).__name__} in its result, expected "
                "tensors and numbers in tuples, lists and dicts"
            )
        tensor = item if isinstance(item, torch.Tensor) else torch.tensor(item, device="cpu")
        if tensor.dtype is torch.int64 and not self._wide:
            return tensor.to(torch.int32)
        return tensor


def _plain(value: Any) -> Any:
    """A result without classes of its own: data classes as dicts, caches as pairs.

    A cache of transformers, which its models give by default, has keys and values for each layer.
    """
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = map(_plain, value)
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return tuple(items) if isinstance(value, tuple) else list(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    layers = getattr(value, "layers", None)
    if isinstance(layers, list) and all(
        isinstance(getattr(layer, name, None), torch.Tensor)
        for layer in layers
        for name in ("keys", "values")
    ):
        return tuple((layer.keys, layer.values) for layer in layers)
    return value

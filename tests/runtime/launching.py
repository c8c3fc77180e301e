"""Plans for programs of row-major torch tensors, and tables with faults for them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from pjrt_bridge.abi.functions import FUNCTIONS
from pjrt_bridge.runtime import Buffer, Executable, Layout, dispatch
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.tensors import framework


def array(type: TensorType) -> dispatch.Array:
    """A row-major array."""
    order = tuple(reversed(range(type.rank)))
    return dispatch.Array(type, type.shape, Layout(order).strides(type.shape))


_CALLBACKS: list[object] = []


class Launcher:
    """A plan for an executable, with what a frontend keeps for it.

    Args:
        executable: takes and gives row-major arrays.
        kept: buffers of its last parameters.
    """

    def __init__(self, executable: Executable, kept: Sequence[Buffer] = ()) -> None:
        self.executable = executable
        parameters = [parameter.type for parameter in executable.signature.parameters]
        given = len(parameters) - len(kept)
        self.plan = executable.plan(
            [
                dispatch.Given(index if index < given else None, array(type))
                for index, type in enumerate(parameters)
            ],
            [
                dispatch.Made(array(type), type.shape, array(type).strides)
                for type in executable.outputs
            ],
            framework(),  # type: ignore[arg-type]
        )
        self.kept = dispatch.Kept([*[None] * given, *kept], [0] * len(parameters))

    def start(self, *tensors: Any) -> Any:
        """What `Plan.launch` gives."""
        return self.plan.launch(list(tensors), self.kept.parts, None)

    def __call__(self, *tensors: Any) -> Any:
        """The tensors over the results."""
        launch = self.start(*tensors)
        launch.finish()
        return launch.tensors()


class Fault:
    """A function of a plugin's table that fails while `active`, cleanly as plugins do.

    Attributes:
        entry: what stands for it in the table of a plan.
        active: whether it fails now.
    """

    def __init__(self, original: tuple[int, int], function: str, spoil: Callable[[Any], None]):
        prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        struct = FUNCTIONS[function]
        assert struct is not None
        real = prototype(original[0])
        self.active = False

        def call(address: int) -> int | None:
            if self.active:
                spoil(struct.ctype.from_address(address))
            error: int | None = real(address)
            return error

        callback = prototype(call)
        # What was made through it calls it when it ends, whenever that is.
        _CALLBACKS.append(callback)
        self.entry = ctypes.cast(callback, ctypes.c_void_p).value or 0, original[1]


def too_small(args: Any) -> None:
    """What every plugin refuses."""
    args.struct_size = 1

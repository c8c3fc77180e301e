"""Plans for programs of row-major tensors, and tables with faults for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import to_dlpack

from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.functions import FUNCTIONS
from pjrt_bridge.runtime import Buffer, Executable
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from tests.faults.replaced import Replaced


def capsules(
    export: Callable[[Any], object] = to_dlpack,
    adopt: Callable[[Any], Any] = torch.from_dlpack,
    tensor: type = torch.Tensor,
) -> plans.Capsules:
    """Torch as a framework that exchanges capsules, or one with something of its own."""
    return plans.Capsules(tensor, export, adopt)


_TABLES: list[Replaced] = []


class Launcher:
    """A plan for an executable, with what a frontend keeps for it.

    Args:
        executable: takes and gives row-major arrays.
        kept: buffers of its last parameters.
        exchange: how tensors are read and made; by default torch's, through its exchange API.
    """

    def __init__(
        self,
        executable: Executable,
        kept: Sequence[Buffer] = (),
        exchange: plans.Framework | plans.Capsules | None = None,
    ) -> None:
        self.executable = executable
        parameters = [parameter.type for parameter in executable.signature.parameters]
        given = len(parameters) - len(kept)
        self.plan = executable.plan(
            [
                plans.BoundParameter(index if index < given else None, ValueSpec.row_major(type))
                for index, type in enumerate(parameters)
            ],
            list(map(ValueSpec.row_major, executable.outputs)),
            exchange or ADAPTER.exchange(),  # type: ignore[arg-type]
        )
        self.kept = plans.PinnedBuffers([*[None] * given, *kept], [0] * len(parameters))

    def start(self, *tensors: Any) -> Any:
        """What `Plan.launch` gives."""
        return self.plan.launch(list(tensors), self.kept.parts, None)

    def call(self, *tensors: Any) -> Any:
        """What `Plan.call` gives."""
        return self.plan.call(tensors, self.kept.parts)

    def __call__(self, *tensors: Any) -> Any:
        """The tensors over the results."""
        launch = self.start(*tensors)
        launch.finish()
        return launch.tensors()


class FailingFunction:
    """A function of a plugin's table that fails while `active`, cleanly as plugins do.

    Args:
        api: the plugin's.
        function: its name.
        spoil: changes the args struct.
        late: when the plugin has filled it, not before.

    Attributes:
        entry: what stands for it in the table of a plan.
        active: whether it fails now.
    """

    def __init__(
        self, api: Api, function: str, spoil: Callable[[Any], None], *, late: bool = False
    ) -> None:
        struct = FUNCTIONS[function]
        assert struct is not None
        self.active = False

        def call(table: Replaced, args: Any) -> int | None:
            if self.active and not late:
                spoil(args)
            error = table.real(function, args)
            if self.active and late:
                spoil(args)
            return error

        table = Replaced(api.address, {function: call})
        # What was made through it calls it when it ends, whenever that is.
        _TABLES.append(table)
        self.entry = table.pointer(function), struct.size


def too_small(args: Any) -> None:
    """What every plugin refuses."""
    args.struct_size = 1

"""Mesh: devices of a client as a grid with named axes."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.runtime import Client, Device
from pjrt_bridge.runtime.objects.sharded import devices_of
from pjrt_bridge.stablehlo.sharding import mesh as grids
from pjrt_bridge.torch_interop.resident.client import chosen

BATCH_AXES = ("dp", "fsdp")
"""Axes over which batches are divided where nothing else is said."""


class Mesh:
    """The first devices of the client that `torch.device("pjrt")` stands for, as a grid.

    Args:
        client: of the devices; None: the one that the device stands for already, or by default.
        **axes: size of each axis by its name, the last varying fastest.

    Attributes:
        client: see above.
        grid: the axes, as programs know them.

    Raises:
        OptionError: the client has fewer devices.
        ProgramError: a size below 1, or no name of an axis.
        DeviceError: tensors are on another client.
    """

    def __init__(self, *, client: Client | None = None, **axes: int) -> None:
        self.client = chosen.client() if client is None else chosen.use_client(client)
        self.grid = grids.Mesh.of(axes)
        devices_of(self.client, self.grid)

    def __deepcopy__(self, memo: dict[int, Any]) -> Mesh:
        """The same mesh: it never changes, and devices cannot be copied."""
        return self

    @property
    def devices(self) -> tuple[Device, ...]:
        """The device at each position."""
        return devices_of(self.client, self.grid)

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.grid.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and (self.client, self.grid) == (other.client, other.grid)

    def __hash__(self) -> int:
        return hash((id(self.client), self.grid))

    def __repr__(self) -> str:
        return str(self.grid)

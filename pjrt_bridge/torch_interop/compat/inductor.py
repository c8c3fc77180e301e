"""Inductor, the default backend of torch.compile, which generates no code for other devices."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import fx

from pjrt_bridge.errors import DeviceError


def refuse_graphs_of(kind: str) -> None:
    """Have Inductor say what to do in its place where a graph has tensors on a device.

    Args:
        kind: of the device, by its name in torch.
    """
    from torch._inductor.codegen.common import custom_backend_passes
    from torch._inductor.custom_graph_pass import CustomGraphModulePass

    class Refusing(CustomGraphModulePass):
        def __call__(self, graph: fx.GraphModule) -> NoReturn:
            raise DeviceError(
                "torch.compile's default backend, Inductor, generates no code for device "
                f"{kind!r}: expected torch.compile(..., backend='pjrt')"
            )

        def uuid(self) -> Any:
            return kind

    custom_backend_passes[kind] = Refusing()

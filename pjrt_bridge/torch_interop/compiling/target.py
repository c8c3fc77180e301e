"""Targets of compiling graphs: a client, its lowerings, and the user's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import fx

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.mixed.records import Ledger
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client, CompileOptions, Device
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.precision import Precisions
from pjrt_bridge.torch_interop import nodes
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER, TorchAdapter
from pjrt_bridge.torch_interop.compiling.agreement import Agreement, agree
from pjrt_bridge.torch_interop.emit.lookup import lookup
from pjrt_bridge.torch_interop.emit.node_lowering import Lookup
from pjrt_bridge.torch_interop.meshes.constraint import lowering_over_mesh
from pjrt_bridge.torch_interop.named_device.naming import NAME, OWN_DEVICES
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.placement.calibration import slower_operators
from pjrt_bridge.torch_interop.placement.predicate import Placement
from pjrt_bridge.torch_interop.precision import settings_of_cuda
from pjrt_bridge.torch_interop.resident.client.chosen import chosen
from pjrt_bridge.torch_interop.resident.graphs.border import BUFFERS
from pjrt_bridge.torch_interop.shared.kinds import device_of, kind_shared_with


@dataclass(frozen=True)
class Target:
    """The target that graphs are compiled for.

    Attributes:
        client: of the plugin.
        options: the user's.
        ledger: of what is compiled, and of the warnings.
        kernels: that lowerings use.
        lookup: finds lowerings.
        slower: see `Placement`.
        settings: how exact torch's settings wanted products when the graph was traced.
        settings_of_cuda: the same of tensors on CUDA.
        adapter: of the values that programs are given.
        device: that programs run on; None: the client's default.
        divides: programs run over the mesh of the values that they are given.
        donates: programs may write new values of arguments into their memory.
        agreement: what the processes of the client agreed on for the graph that is compiled.
    """

    client: Client
    options: BackendOptions
    ledger: Ledger
    kernels: Kernels
    lookup: Lookup
    slower: Mapping[str, int]
    settings: Precisions
    settings_of_cuda: Precisions
    adapter: TorchAdapter = ADAPTER
    device: Device | None = None
    divides: bool = False
    donates: bool = False
    agreement: Agreement | None = None

    @staticmethod
    def of(client: Client, options: BackendOptions, ledger: Ledger, settings: Precisions) -> Target:
        """The target of graphs over host tensors."""
        kernels = kernels_of(client)
        # Where the host is forbidden everything goes to the device.
        weighed = options.placement == "auto" and options.fallback == "host"
        slower = slower_operators(client) if weighed else {}
        return Target(
            client,
            options,
            ledger,
            kernels,
            lookup(client, kernels),
            slower,
            settings,
            settings_of_cuda(),
            # Elsewhere the argument of a program is a copy.
            donates=client.shares_host_memory,
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Torch's types of the devices whose tensors programs take; the host's is the first."""
        shared = kind_shared_with(self.client)
        return OWN_DEVICES if shared is None else (*OWN_DEVICES, shared)

    def for_device(self, kind: str, index: int) -> Target:
        """The target of graphs over tensors on a device.

        Args:
            kind: torch's type of the device.
            index: of the device.

        Raises:
            DeviceError: the client has no such device; or the user asked for another plugin than
                the one that resident tensors are on.
        """
        if kind != NAME:
            return replace(
                self,
                adapter=BUFFERS,
                device=device_of(self.client, kind, index),
                slower={},
                settings=self.settings_of_cuda if kind == "cuda" else self.settings,
                # The memory of arguments is torch's.
                donates=False,
            )
        client, device = chosen(index)
        if self.options.plugin is not None and client.plugin.name != self.plugin:
            raise DeviceError(
                f"plugin {self.plugin!r} was asked for, and the tensors of the graph are on "
                f"device '{NAME}', which is plugin {client.plugin.name!r}"
            )
        found = self
        if client is not self.client:
            found = Target.of(client, self.options, self.ledger, self.settings)
        return replace(found, adapter=BUFFERS, device=device, slower={}, donates=True)

    def over_mesh(self) -> Target:
        """The target of the same graphs over values that are divided over a mesh.

        With the portable lowerings: a partitioner does not divide a plugin's own calls.
        """
        return replace(
            self,
            kernels=Kernels(),
            lookup=lowering_over_mesh,
            slower={},
            device=None,
            divides=True,
            donates=True,
        )

    def together(self, graph: fx.Graph) -> Target | None:
        """The target of a graph whose collective operations are the client's.

        Args:
            graph: of known sizes; all passes were applied to it.

        Returns:
            None where no other target is needed: see `agree`, which raises, too.
        """
        if self.divides or self.agreement is not None:
            return None
        found = agree(graph, self.client, self.device)
        if found is None:
            return None
        return replace(self, agreement=found, lookup=found.lookup(self.lookup))

    def spans(self, graph: fx.Graph) -> bool:
        """Whether a graph may have collective operations that are the client's."""
        return self.client.store is not None and any(map(nodes.exchanges, graph.nodes))

    def exchanges(self, graph: fx.Graph) -> bool:
        """Whether the program of a graph, or of a part, is one of all processes together."""
        return self.agreement is not None and any(map(nodes.exchanges, graph.nodes))

    def compile_options(self, graph: fx.Graph) -> CompileOptions:
        """The options of the program of a graph, or of a part."""
        options = self.options.compile_options(None if self.divides else self.device)
        if self.agreement is not None and self.exchanges(graph):
            return self.agreement.options(options)
        return options

    def of_operators(self) -> Target:
        """The target of single operators: their values may be those of further storages, too."""
        return replace(self, donates=False)

    @property
    def precisions(self) -> Precisions | None:
        """The precisions that programs state; None where the platform needs none to be exact."""
        return None if self.client.platform_spec.exact_products else self.settings

    @property
    def plugin(self) -> str:
        """The plugin's name."""
        return self.client.plugin.name

    def placement(self) -> Placement:
        """The placement that decides where the nodes of one graph run."""
        return Placement(self.lookup, self.options.wants_on_host, self.slower)

"""The options of `torch.compile(..., backend="pjrt", options={...})`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Literal

from pjrt_bridge.errors import OptionError
from pjrt_bridge.runtime import Client, CompileOptions, Device
from pjrt_bridge.runtime.core.compile_options import Override
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.meshes.mesh import Mesh
from pjrt_bridge.torch_interop.passes.layouts import OrderRule, Orders

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {},
    "max-autotune-no-cudagraphs": {},
}
"""The options that each `mode` of torch.compile stands for.

They are the defaults for all: a graph is one program whose calls are short already, which is what
Inductor's CUDA graphs are for, and kernels are chosen by the plugin's compiler.
"""


@dataclass(frozen=True)
class BackendOptions:
    """Options of the `pjrt` backend.

    Attributes:
        plugin: name of a discovered plugin or path of a library; None: the environment's choice or
            the best that was discovered.
        client: a client of `pjrt_bridge.client`, instead of the plugin's default one. If it spans
            the processes of torch.distributed, it carries out their collective operations.
        fallback: what happens to operators that the plugin cannot run: `"host"` runs them in
            PyTorch and warns once, `"error"` raises.
        host_ops: operators that run in PyTorch whatever the plugin can do: `"aten.mm.default"`,
            `"aten.mm"` for all its overloads, `"mylib.twice"`, `"higher_order.cond"`.
        placement: `"auto"` leaves operators to PyTorch where it was measured to be faster;
            `"device"` runs everything on the device that can run there.
        min_segment: the least number of operators (views and scalars do not count) for which the
            device is used; smaller parts of a graph run in PyTorch.
        buckets: sizes that change are padded where the operators allow, so that calls share a
            compilation: `"auto"` to sizes that the bridge chooses once they change, increasing
            sizes to the next of them, `[]` not at all. Others are compiled as they are.
        compiler_flags: flags of the plugin's compiler for these graphs alone.
        excess_precision: a chain of operators in half precision is computed in float32 and rounded
            where it ends, as Inductor does; False: after each operator, as eager mode does.
        check_indices: True: indices that are out of range raise an IndexError that names operator,
            line and numbers, and integers that are divided by zero raise eager's RuntimeError.
            `"auto"`: indices and divisors are checked where the plugin's kernels do so at little
            cost. Where nothing is checked, indices are moved into the range, or what is written
            there is dropped, and the plugin decides what a quotient by zero is.
        layouts: order of elements of `"parameters"` on the device and of `"results"` in memory:
            `"row-major"`, `"column-major"`, `"channels-last"`, or for each rank the dimensions
            from slowest to fastest varying, `{2: (1, 0)}`; as PyTorch has them by default.
        mesh: the devices over which graphs are divided (`sharding.Mesh`). Batches, which are all
            inputs but parameters, are divided over its axes `dp` and `fsdp`, parameters as they
            were marked; None: graphs are divided where a value that they are given is.

    Raises:
        OptionError: an unknown name or an impossible value.
    """

    plugin: str | None = None
    client: Client | None = None
    fallback: Literal["host", "error"] = "host"
    host_ops: Sequence[str] = ()
    placement: Literal["auto", "device"] = "auto"
    min_segment: int = 1
    buckets: Sequence[int] | Literal["auto"] = "auto"
    compiler_flags: Mapping[str, Override] = field(default_factory=dict)
    excess_precision: bool = True
    check_indices: bool | Literal["auto"] = "auto"
    layouts: Mapping[str, OrderRule] = field(default_factory=dict)
    mesh: Mesh | None = None

    @staticmethod
    def parse(options: Mapping[str, Any] | None, mode: str | None) -> BackendOptions:
        """Check what torch.compile hands over.

        Args:
            options: by their names, which go before those of the mode.
            mode: one of `MODES`.
        """
        if mode is not None and not (isinstance(mode, str) and mode in MODES):
            raise OptionError(f"the pjrt backend has no mode {mode!r}; it has {', '.join(MODES)}")
        known = [item.name for item in fields(BackendOptions)]
        unknown = sorted(set(options or {}) - set(known))
        if unknown:
            raise OptionError(
                f"the pjrt backend has no options {', '.join(unknown)}; it has {', '.join(known)}"
            )
        return BackendOptions(**{**MODES[mode or "default"], **(options or {})})

    def __post_init__(self) -> None:
        if self.plugin is not None and not isinstance(self.plugin, str):
            raise OptionError(f"option plugin: found {self.plugin!r}, expected a name or a path")
        self._check_client()
        if self.fallback not in ("host", "error"):
            raise OptionError(
                f"option fallback: found {self.fallback!r}, expected 'host' or 'error'"
            )
        if self.placement not in ("auto", "device"):
            raise OptionError(
                f"option placement: found {self.placement!r}, expected 'auto' or 'device'"
            )
        if isinstance(self.min_segment, bool) or not (
            isinstance(self.min_segment, int) and self.min_segment >= 1
        ):
            raise OptionError(
                f"option min_segment: found {self.min_segment!r}, expected a number of operators, "
                "1 or more"
            )
        if not isinstance(self.compiler_flags, Mapping):
            raise OptionError(
                f"option compiler_flags: found {self.compiler_flags!r}, expected a dict"
            )
        for name, other in (("excess_precision", None), ("check_indices", "auto")):
            found = getattr(self, name)
            if not (isinstance(found, bool) or (other is not None and found == other)):
                expected = "True or False" if other is None else f"True, False or {other!r}"
                raise OptionError(f"option {name}: found {found!r}, expected {expected}")
        if self.mesh is not None and not isinstance(self.mesh, Mesh):
            raise OptionError(f"option mesh: found {self.mesh!r}, expected a sharding.Mesh")
        if self.mesh is not None and self.plugin not in (None, self.mesh.client.plugin.name):
            raise OptionError(
                f"option plugin: found {self.plugin!r}, and {self.mesh} of plugin "
                f"{self.mesh.client.plugin.name!r}"
            )
        object.__setattr__(self, "host_ops", _host_ops(self.host_ops))
        object.__setattr__(self, "buckets", _buckets(self.buckets))
        self.orders()
        self.compile_options()

    def _check_client(self) -> None:
        found = self.client
        if found is None:
            return
        if not isinstance(found, Client):
            raise OptionError(f"option client: found {found!r}, expected what client() returned")
        if self.plugin not in (None, found.plugin.name):
            raise OptionError(
                f"option plugin: found {self.plugin!r}, and a client of plugin "
                f"{found.plugin.name!r}"
            )
        if isinstance(self.mesh, Mesh) and self.mesh.client is not found:
            raise OptionError(f"option client: found {found!r}, and {self.mesh} of another client")

    def orders(self) -> Orders:
        """The orders that the option `layouts` asks for."""
        return Orders.parse(self.layouts)

    def compile_options(self, device: Device | None = None) -> CompileOptions:
        """The options of each compilation; for the first device by default."""
        assignment = None if device is None else [[device.id]]
        return CompileOptions(env=dict(self.compiler_flags), device_assignment=assignment)

    def wants_on_host(self, operator: str) -> bool:
        """Whether `host_ops` names an overload such as `"aten.mm.default"`."""
        return any(operator == name or operator.startswith(name + ".") for name in self.host_ops)


def _host_ops(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise OptionError(f"option host_ops: found {names!r}, expected a list of operator names")
    return tuple(map(_host_op, names))


def _buckets(sizes: Any) -> tuple[int, ...] | Literal["auto"]:
    if sizes == "auto":
        return "auto"
    if (
        isinstance(sizes, str)
        or not isinstance(sizes, Sequence)
        or any(isinstance(size, bool) or not isinstance(size, int) for size in sizes)
        or any(low >= high for low, high in pairwise((0, *sizes)))
    ):
        raise OptionError(
            f"option buckets: found {sizes!r}, expected 'auto' or increasing sizes, 1 or more, "
            "such as [64, 256, 1024]"
        )
    return tuple(sizes)


def _host_op(name: Any) -> str:
    spelled = name.replace("::", ".") if isinstance(name, str) else ""
    if not compat.is_operator(spelled):
        raise OptionError(
            f"option host_ops: torch has no operator {name!r}; expected a name such as 'aten.mm' "
            "or 'aten.mm.default'"
        )
    if compat.is_composite(spelled):
        raise OptionError(
            f"option host_ops: torch decomposes {spelled!r} before a backend gets it; name the "
            "operators that it becomes, which the report of explain() lists"
        )
    return spelled

"""The `pjrt` backend of torch.compile.

    compiled = torch.compile(model, backend="pjrt")

Dynamo hands over a graph; AOTAutograd turns it into functional ATen graphs, one for inference or
one each for forward and backward, which `pjrt_bridge.torch_interop.compiler` compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import fx

from pjrt_bridge.registry import client as select_client
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import compat, precision
from pjrt_bridge.torch_interop.compiler import Compiler
from pjrt_bridge.torch_interop.compiling.repeated_writes import repeated_write
from pjrt_bridge.torch_interop.foreign import eager
from pjrt_bridge.torch_interop.ledger import LEDGER
from pjrt_bridge.torch_interop.named_device.naming import NAME, exceptions_of_backward
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.placement.refusals import refused
from pjrt_bridge.torch_interop.recurrent import layers
from pjrt_bridge.torch_interop.resident.client.chosen import client as device_client
from pjrt_bridge.torch_interop.resident.client.chosen import is_in_use
from pjrt_bridge.torch_interop.shared.kinds import kind_shared_with

_OVERLAPPING = FallbackReason(
    "",
    "it writes into arguments that overlap in memory or, where gradients are computed, are views "
    "of one tensor; clone() one of them before",
    "refused",
)


compat.trace_recurrent_layers(layers.FUNCTIONS, layers.is_supported)


def pjrt(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph: what torch.compile calls for `backend="pjrt"`.

    Args:
        graph: from Dynamo.
        example_inputs: its (fake) inputs.
        options: see `BackendOptions`.
        mode: one of `pjrt_bridge.torch_interop.options.MODES`.

    Raises:
        OptionError: an unknown option or mode, or an impossible value.
        PluginNotFound: no plugin of that name, or none at all.
        FallbackForbidden: the graph cannot run on the device and `fallback` is `"error"`.
    """
    chosen = BackendOptions.parse(options, mode)
    compat.guard_tangents()
    if compat.has_fake_arguments(graph) or compat.is_forward_mode():
        # PyTorch knows the results of operators on FakeTensors without computing anything, and
        # AOTAutograd has no rules for tangents.
        return graph.forward
    client = chosen.client or (
        select_client(chosen.plugin) if chosen.mesh is None else chosen.mesh.client
    )
    compiler = Compiler(client, chosen, compat.division(graph))
    compat.guard_offsets(graph)
    clients = [client, device_client()] if is_in_use() else [client]
    if not all(item.platform_spec.exact_products for item in clients):
        compat.guard_answer(precision.__name__, precision.settings.__name__, precision.NAME)
        if kind_shared_with(client) == "cuda":
            compat.guard_answer(
                precision.__name__, precision.settings_of_cuda.__name__, precision.NAME_OF_CUDA
            )
    repeated = repeated_write(graph)
    if repeated is not None:
        return compiler.leave_to_pytorch(graph, example_inputs, repeated)
    compat.keep_own_backward(graph)
    compiler.traced_from(graph)
    written = compat.WrittenArguments()
    leave = partial(compiler.leave_to_pytorch, graph, example_inputs, _OVERLAPPING)
    try:
        with exceptions_of_backward() as raised:
            compiled = compat.run_aot_autograd(
                graph,
                example_inputs,
                forward=partial(compiler.compile, "forward"),
                backward=partial(compiler.compile, "backward"),
                inference=partial(compiler.compile, "inference"),
                keep=chosen.wants_on_host,
                refused=refused,
                change=compiler.prepare_joint,
                # A view may merge dimensions, of which then the first alone can be divided.
                saves_views=chosen.mesh is None,
                attending=attending(clients),
                written=written,
            )
    except SystemError as error:
        # Dynamo divides a function where AOTAutograd cannot trace it, backward included.
        if not raised:
            raise
        raise raised[0] from error
    except compat.OverlappingArguments:
        return leave()
    compiled = compiler.noting(compiled)
    if written.merged:
        compiled = compat.of_merged_arguments(compiled)
    # Tensors that the graph holds itself are arguments to AOTAutograd, but not to Dynamo's code.
    holds_tensors = any(True for _ in (*graph.parameters(), *graph.buffers()))
    compiled = compat.marked(compiled)
    if not holds_tensors:
        compiled = compiler.entrance(compiled, len(example_inputs))
        compiled = compat.returned_as_given(compiled, graph, written)
        compiled = compat.apart_or(leave, compiled, graph, written)
    return compat.apart_from_fakes(compiled, graph)


def attending(clients: Iterable[Client]) -> tuple[str, ...]:
    """Torch's types of the devices on which attention is traced as one operator.

    On device `pjrt` where its memory is not the host's: there plugins have kernels for it.

    Args:
        clients: for which a graph may be compiled.
    """
    apart = any(not client.shares_host_memory for client in clients)
    return (*compat.CHOOSING, NAME) if apart else compat.CHOOSING


def _forget() -> None:
    LEDGER.forget()
    eager.forget()


# torch.compiler.reset calls it.
pjrt.reset = _forget  # type: ignore[attr-defined]

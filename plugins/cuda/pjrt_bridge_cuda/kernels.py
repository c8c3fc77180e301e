"""Kernels for programs of XLA's CUDA plugin: attention by cuDNN, where the compiler takes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from pjrt_bridge import user_warnings
from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Attention
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cuda import fused_attention
from pjrt_bridge_cuda.fused_attention import Call

_CAPABILITY = (8, 0)
"""Least compute capability for which cuDNN has fused attention."""

_CUDNN = 9
"""Least major version of cuDNN for which the calls are written."""

_tried: WeakKeyDictionary[Client, dict[Call, bool]] = WeakKeyDictionary()
"""By client, whether its compiler takes a call."""


def can_fuse_attention(client: Client) -> bool:
    """Whether all GPUs of a client, and its cuDNN, have fused attention."""
    capabilities = [device.attributes.get("compute_capability") for device in client.devices]
    described = client.topology.attributes.get("target_config")
    cudnn = re.search(r'\bdnn_version: "(\d+)\.', described) if isinstance(described, str) else None
    return (
        cudnn is not None
        and int(cudnn[1]) >= _CUDNN
        and all(_version(item) >= _CAPABILITY for item in capabilities)
    )


def _version(capability: object) -> tuple[int, ...]:
    found = re.fullmatch(r"(\d+)\.(\d+)", capability) if isinstance(capability, str) else None
    return tuple(map(int, found.groups())) if found else ()


class CudaKernels(Kernels):
    """Attention in half precision without a mask, or a causal one, as a call of cuDNN.

    Args:
        client: that programs are compiled for.
    """

    # The host waits for the condition.
    can_branch = False

    def __init__(self, client: Client) -> None:
        self._client = client
        self._usable = _tried.setdefault(client, {})

    def attention(
        self,
        b: Builder,
        query: Value,
        key: Value,
        value: Value,
        mask: Value | None,
        how: Attention,
    ) -> tuple[Value, Value] | None:
        """See `Kernels.attention`."""
        if mask is not None or not fused_attention.takes(query, key, value, how):
            return None
        found = self._emit(b, *fused_attention.forward(query, key, value, how))
        return None if found is None else (found[0], found[1])

    def attention_gradients(
        self,
        b: Builder,
        grad_output: Value,
        query: Value,
        key: Value,
        value: Value,
        output: Value,
        sums: Value,
        how: Attention,
    ) -> tuple[Value, ...] | None:
        """Emit the gradients of query, key and value as one kernel; None where there is none.

        Args:
            b: the builder to emit into.
            grad_output: of the type of the output.
            query: as `attention` took it, as all others.
            key: see there.
            value: see there.
            output: that `attention` gave, or that was computed otherwise.
            sums: the logarithms of sums, as with the output.
            how: the numbers.
        """
        like_query = all(x.type == query.type for x in (grad_output, output))
        if not like_query or not fused_attention.takes(query, key, value, how):
            return None
        call = fused_attention.backward(grad_output, query, key, value, output, sums, how)
        return self._emit(b, *call)

    def _emit(
        self, b: Builder, call: Call, sides: Sequence[Value], inside: bool
    ) -> tuple[Value, ...] | None:
        usable = self._usable.get(call)
        if usable is None:
            usable = self._usable[call] = self._compiles(call)
        return fused_attention.emit(b, call, sides, inside=inside) if usable else None

    def _compiles(self, call: Call) -> bool:
        """Whether the compiler takes a call, which it does not tell before it has built a kernel.

        Warns with a `BridgeWarning`, once for a client.
        """
        b = Builder(call.operands, name="attention")
        try:
            self._client.compile(b.finish(call.emit(b, b.parameters))).close()
        except PjrtBridgeError as error:
            if all(self._usable.values()):
                sides = ", ".join(map(str, call.operands))
                user_warnings.warn(
                    f"attention is computed without cuDNN where its kernel does not compile; "
                    f"{call.target} of {sides}: {error}"
                )
            return False
        return True

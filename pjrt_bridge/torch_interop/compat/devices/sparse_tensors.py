"""Sparse tensors of torch's device for others: positions and values that are tensors of it.

Torch's kernels for the host that make such tensors, and that give their parts, read and write no
elements, or do it by further operators: they fit any device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import operator

_HOST_KEYS = {
    "SparsePrivateUse1": "SparseCPU",
    "SparseCsrPrivateUse1": "SparseCsrCPU",
}

KEYS = tuple(_HOST_KEYS)
"""The dispatch keys of the device's sparse tensors: of coordinates, and compressed ones."""

_OF_BOTH = (
    "aten._nnz.default",
    "aten.clone.default",
    "aten.dense_dim.default",
    "aten.empty_like.default",
    "aten.sparse_dim.default",
    "aten.values.default",
)

_FITTING = {
    "SparsePrivateUse1": (
        *_OF_BOTH,
        "aten._coalesced_.default",
        "aten._dimI.default",
        "aten._dimV.default",
        "aten._indices.default",
        "aten._sparse_coo_tensor_with_dims.default",
        "aten._sparse_coo_tensor_with_dims_and_tensors.default",
        "aten._values.default",
        "aten.copy_sparse_to_sparse_.default",
        "aten.indices.default",
        "aten.is_coalesced.default",
        "aten.sparse_resize_.default",
        "aten.sparse_resize_and_clear_.default",
        "aten.zero_.default",
    ),
    "SparseCsrPrivateUse1": (
        *_OF_BOTH,
        "aten.ccol_indices.default",
        "aten.col_indices.default",
        "aten.crow_indices.default",
        "aten.resize_as_sparse_.default",
        "aten.row_indices.default",
    ),
}


@cache
def _kernel(name: str, key: str) -> Callable[..., Any]:
    op = operator(name)
    assert op is not None
    return partial(op.redispatch, _key_set(key))


@cache
def _key_set(key: str) -> Any:
    return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _HOST_KEYS[key]))


def kernels(key: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Torch's kernels that fit the device, by the names of their operators."""
    for name in _FITTING[key]:
        if operator(name) is not None:
            yield name, _kernel(name, key)


def composed_operators(key: str) -> Iterator[OpOverload]:
    """Operators that torch would compute by others, though the host has a kernel for each."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if not torch._C._dispatch_has_kernel(full) or not has(full, _HOST_KEYS[key]):
            continue
        if has(full, "CompositeExplicitAutograd") or has(
            full, "CompositeExplicitAutogradNonFunctional"
        ):
            packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
            op = getattr(packet, schema.overload_name or "default")
            if str(op) not in _FITTING[key]:
                yield op


def is_sparse(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of positions and values."""
    return tensor.layout is torch.sparse_coo or tensor.layout in _COMPRESSED


_COMPRESSED = {
    torch.sparse_csr: True,
    torch.sparse_bsr: True,
    torch.sparse_csc: False,
    torch.sparse_bsc: False,
}
"""Layouts, and whether rows are compressed."""


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a sparse tensor consists of: positions, and values last."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if _COMPRESSED[tensor.layout]:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


def made_of(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """A sparse tensor of other parts, in shape and layout like one."""
    if like.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            parts[0],
            parts[1],
            like.shape,
            is_coalesced=like.is_coalesced(),
            check_invariants=False,
        )
    return torch.sparse_compressed_tensor(
        parts[0], parts[1], parts[2], like.shape, layout=like.layout, check_invariants=False
    )


def replace(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Give a sparse tensor of the device the parts of another one of its layout."""
    if tensor.layout is torch.sparse_coo:
        _kernel("aten.copy_sparse_to_sparse_.default", "SparsePrivateUse1")(tensor, other)
        return
    _kernel("aten.resize_as_sparse_.default", "SparseCsrPrivateUse1")(tensor, other)
    _kernel("aten.copy_.default", "SparseCsrPrivateUse1")(tensor, other)

"""Process groups of torch.distributed: their names in graphs, and the operators that they call."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel


def ranks(name: str) -> tuple[int, ...] | None:
    """The ranks of a process group; None where this process knows no group of the name."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    c10d: Any = dist.distributed_c10d
    try:
        return tuple(dist.get_process_group_ranks(c10d._resolve_process_group(name)))
    except (LookupError, RuntimeError, ValueError):
        return None


def rank() -> int:
    """The number of this process in torch.distributed."""
    return dist.get_rank()


def world_size() -> int:
    """The number of processes in torch.distributed."""
    return dist.get_world_size()


_EXCHANGES = (
    *("_allgather_base_", "_reduce_scatter_base_", "allgather_", "allgather_coalesced_"),
    *("allgather_into_tensor_coalesced_", "allreduce_", "allreduce_coalesced_", "alltoall_"),
    *("alltoall_base_", "barrier", "broadcast_", "gather_", "monitored_barrier_", "recv_"),
    *("recv_any_source_", "reduce_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_"),
    *("scatter_", "send"),
)
"""The operators of `c10d` through which process groups exchange tensors of some device."""


def exchange_by(kernel: Callable[..., Any], key: str) -> Any:
    """Give all these operators a kernel, called with the operator first.

    They have one for any device, which asks the process group for a backend that knows the device.

    Args:
        kernel: see above.
        key: the dispatch key of the device.

    Returns:
        What keeps the kernels registered.
    """
    library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name in _EXCHANGES:
            packet = getattr(torch.ops.c10d, name, None)
            if packet is not None:
                library.impl(name, partial(kernel, packet.default), key)
    return library


def name_backends(device: str) -> None:
    """Have process groups name one backend for the host and for a device.

    Some functions, such as `batch_isend_irecv`, ask a group for the backend of a tensor's device.
    A group that is made for the device alone exchanges copies on the host.

    Args:
        device: whose tensors are exchanged by `exchange_by`.
    """
    if not dist.is_available():
        return
    c10d: Any = dist.distributed_c10d
    for group in c10d._world.pg_map if dist.is_initialized() else ():
        for here, there in (("cpu", device), (device, "cpu")):
            with suppress(RuntimeError):  # It has no backend for one of them.
                backend = group._get_backend(torch.device(here))
                kind = c10d.Backend.backend_type_map.get(backend.name())
                if kind is not None:
                    group._register_backend(torch.device(there), kind, backend)
    before = c10d.BackendConfig.get_device_backend_map

    @wraps(before)
    def for_host_as_well(self: Any) -> Any:
        found = before(self)
        return {"cpu": found[device], **found} if device in found else found

    c10d.BackendConfig.get_device_backend_map = for_host_as_well


def find_unused_on_host(is_ours: Callable[[torch.Tensor], bool]) -> None:
    """Have DistributedDataParallel exchange on the host which parameters of a device were used.

    Its reducer (torch 2.13, `all_reduce_local_used_map`) keeps that on the device of its first
    parameter, and copies it there through pinned memory, which the device would have to provide. So
    a parameter of the host comes first, which no model uses: its gradient is None for ever.

    Args:
        is_ours: whether a parameter is on the device.
    """
    if not dist.is_available():
        return
    kind: Any = DistributedDataParallel
    before = kind._ddp_init_helper

    @wraps(before)
    def prepare(
        self: Any, parameters: Any, sparse: Any, names: Any, static_graph: bool, *others: Any
    ) -> Any:
        tracks = self.find_unused_parameters or static_graph
        if tracks and parameters and is_ours(parameters[0]):
            parameters = [torch.nn.Parameter(torch.zeros(1, device="cpu")), *parameters]
            sparse = [False, *sparse]
            names = {0: "", **{position + 1: name for position, name in names.items()}}
        return before(self, parameters, sparse, names, static_graph, *others)

    kind._ddp_init_helper = prepare


class Receipt(dist.Work if dist.is_available() else object):  # type: ignore[misc]
    """The work of receiving a tensor, for the process that waits for it.

    A thread waits for the message itself, so that a process can receive before it sends.
    """

    _returned = threading.local()
    """The last receipt that a thread returned. PyTorch keeps the object in C++ until its caller has
    it, and without a reference of Python's the methods below would be gone by then."""

    def __init__(self, work: Any, finish: Callable[[], None]) -> None:
        """Begin to wait on a thread.

        Args:
            work: what the operator returned, for a tensor of the host.
            finish: is called on the thread; waits for the work, and takes over what came.
        """
        super().__init__()
        self._work = dist.Work.unbox(work)
        self._finish = finish
        self._future: Any = Future()
        self._done = threading.Event()
        threading.Thread(target=self._run, name="pjrt_bridge receives", daemon=True).start()

    def _run(self) -> None:
        try:
            self._finish()
        except Exception as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(None)
        finally:
            self._done.set()

    def returned(self) -> Any:
        """The object that the kernel of an operator returns."""
        self._returned.receipt = self
        return self.boxed()

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait until the tensor is there.

        Args:
            timeout: for how long; without one the process group's own timeout is the limit.

        Raises:
            RuntimeError: the timeout has passed.
            Exception: the one of receiving it.
        """
        seconds = timeout.total_seconds()
        if not self._done.wait(seconds if seconds > 0 else None):
            raise RuntimeError(f"no tensor was received within {seconds} seconds")
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Whether the tensor is there, or will not come."""
        return bool(self._future.done())

    def get_future(self) -> Any:
        """What is done when the tensor is there."""
        return self._future

    def _source_rank(self) -> int:
        """The rank in the group that sent the tensor; for receipts from any."""
        return int(self._work._source_rank())

    source_rank = _source_rank

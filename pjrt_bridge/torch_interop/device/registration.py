"""Telling torch of the device: its name, its module, and a kernel for every operator."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from pjrt_bridge import user_warnings
from pjrt_bridge.errors import DeviceError
from pjrt_bridge.torch_interop.compat import distributed_random, leave_alone, process_groups
from pjrt_bridge.torch_interop.compat.aot import flex
from pjrt_bridge.torch_interop.compat.devices import (
    accelerator_module,
    device_guard,
    dlpack_methods,
    host_promises,
    third_party_device,
)
from pjrt_bridge.torch_interop.compat.operators import operator
from pjrt_bridge.torch_interop.device.accelerator import autocast, streams
from pjrt_bridge.torch_interop.device.accelerator.torch_module import MODULE, of_accelerator
from pjrt_bridge.torch_interop.device.operators import (
    attention,
    collectives,
    convolution,
    copies,
    random,
    sequences,
    synchronized_norm,
)
from pjrt_bridge.torch_interop.device.operators.operators import call
from pjrt_bridge.torch_interop.device.operators.sparse import SparseOperators
from pjrt_bridge.torch_interop.device.recording.recording import compute_all
from pjrt_bridge.torch_interop.meshes import constraint
from pjrt_bridge.torch_interop.named_device import first_use, naming
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.recurrent import layers as recurrent
from pjrt_bridge.torch_interop.resident.client import backward_threads, refusals
from pjrt_bridge.torch_interop.resident.client.current import current_in_cpp
from pjrt_bridge.torch_interop.resident.storages import factories, freed_storages, saving
from pjrt_bridge.torch_interop.resident.storages.storage import is_resident

_registered: list[Any] = []
_lock = threading.Lock()


def register() -> None:
    """Make `torch.device("pjrt")` usable in this process; further calls do nothing.

    Raises:
        DeviceError: another package has given torch's device for others its own name.
    """
    with _lock:
        name = naming.name()
        if name not in (None, NAME):
            raise DeviceError(
                f"torch has one device for other packages in a process, and it is {name!r} here: "
                f"device {NAME!r} cannot be had beside it"
            )
        if _registered:
            return
        if name is None:
            if naming.has_own_accelerator():
                user_warnings.warn(
                    f"from now on torch computes gradients on device {NAME!r} and the host only: "
                    "it has one accelerator in a process; use another process for CUDA's"
                )
            naming.give_name(lambda: MODULE)
        first_use.forget()
        # Code that Dynamo compiles while it lets go of other code keeps that alive.
        leave_alone(naming.Guard.type_)
        kernels = third_party_device.OperatorKernels()
        _registered.append(kernels)
        kernels.of_others(call)
        kernels.of_other_layouts(refusals.other_layout)
        SparseOperators(kernels)
        own = _kernels()
        for name, kernel in own.items():
            kernels.of(name, kernel)
        for op in third_party_device.composed_operators():
            if str(op) not in own:
                kernels.of(str(op), partial(call, op))
        # PyTorch makes operators of every step of them.
        for op, kernel in recurrent.decompositions().items():
            for key in (third_party_device.KEY, f"Autograd{third_party_device.KEY}"):
                kernels.of(str(op), kernel, key)
        for key in (third_party_device.KEY, f"Autograd{third_party_device.KEY}"):
            kernels.of(str(attention.OPERATOR), attention.attention, key)
        for key in ("Conjugate", "Negative"):
            # Otherwise torch would copy such a source first, by a copy.
            kernels.of("aten._copy_from.default", third_party_device.FALL_THROUGH, key)
        kernels.of("aten._pin_memory.default", refusals.pin_memory, "CPU")
        # Torch has none, for which it asks the host; of another device it aborts the process.
        kernels.of("aten.fractional_max_pool3d_backward.default", _gradient_alike, "Meta")
        host_promises.promise_as_host(NAME)
        constraint.of_device(copies.constrained)
        on_host = process_groups.exchange_by(collectives.run_on_host, third_party_device.KEY)
        process_groups.find_unused_on_host(is_resident)
        _registered.append(on_host)
        process_groups.name_backends(NAME)
        distributed_random.draw_by_shard(NAME)
        register_optimizer_step_post_hook(_after_step)
        autocast.register(kernels)
        saving.register()
        freed_storages.register()
        flex.take_device(NAME, f"Autocast{third_party_device.KEY}")
        accelerator_module.answer_for(NAME, of_accelerator())
        dlpack_methods.answer_for(NAME, refusals.dlpack)
        for guard in naming.GUARD:
            device_guard.answer_for(
                guard, NAME, backward_threads.count, current_in_cpp, streams.wait_in_cpp
            )


def _gradient_alike(_: torch.Tensor, input: torch.Tensor, *__: Any) -> torch.Tensor:
    return torch.empty_like(input)


def _after_step(*_: Any) -> None:
    # Within a graph nothing is recorded, and Dynamo would trace what follows.
    if not torch.compiler.is_compiling():
        compute_all()


def _kernels() -> dict[str, Any]:
    """The kernels of operators that are no programs, by name."""
    made = {
        "aten.empty.memory_format": factories.empty_of_format,
        "aten.empty_strided.default": factories.empty_strided,
        "aten.empty_like.default": factories.empty_like,
        "aten.new_empty.default": factories.new_empty(torch.ops.aten.new_empty.default),
        "aten.new_empty_strided.default": factories.new_empty(
            torch.ops.aten.new_empty_strided.default
        ),
        "aten.is_set_to.default": factories.is_set_to,
        "aten.record_stream.default": streams.record_stream,
        "aten.resize_.default": factories.resize,
        "aten.set_.source_Storage": factories.set_storage,
        "aten.set_.source_Tensor": factories.set_tensor,
        "aten._copy_from.default": copies.copy_from,
        "aten._to_copy.default": third_party_device.copy_waiting,
        "aten._copy_from_and_resize.default": copies.copy_from_and_resize,
        "aten.conj_physical_.default": copies.conjugate,
        "aten._local_scalar_dense.default": copies.number,
        "aten._native_multi_head_attention.default": attention.multi_head_attention,
        "aten._nested_tensor_from_mask_left_aligned.default": refusals.no_nested_tensor,
        "aten.equal.default": copies.equal,
        "aten._has_compatible_shallow_copy_type.default": copies.takes_data_of,
        "aten.randperm.generator_out": random.random_permutation,
        "aten.convolution_overrideable.default": convolution.forward,
        "aten.convolution_backward_overrideable.default": convolution.backward,
    }
    made |= synchronized_norm.KERNELS
    made |= sequences.kernels()
    for overload in ("default", "to", "from"):
        op = getattr(torch.ops.aten.random_, overload)
        made[str(op)] = partial(random.random_integers, op)
    for overload in ("default", "periodic", "beta"):
        op = operator(f"aten.kaiser_window.{overload}")
        if op is not None:
            made[str(op)] = partial(random.kaiser_window, op)
    for name in third_party_device.VIEWS:
        if operator(name) is not None:
            made[name] = third_party_device.kernel_of(name)
    return made

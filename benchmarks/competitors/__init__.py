"""Who competes, and how each makes a case ready.

A competitor's module has `prepare(case, name)`, which gives a `Timer`. It is imported in the worker
process only, which may run in an interpreter of its own. What it cannot import, or has not got for
other reasons, makes it absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

Timer = Callable[[int], float]
"""Repeats a call so often, one after the other, and gives the seconds of all of them."""

WARM = " warm"
"""After a competitor's name: in a process that finds what another one has compiled."""


class Absent(Exception):
    """A competitor that is not on this machine, or that has no way to do a case; says why."""


@dataclass(frozen=True)
class Competitor:
    """Where a competitor lives.

    Attributes:
        module: in this package.
        interpreter: which of those that the user names runs it; None: the coordinator's own.
        about: one line for the reader of the tables.
        environment: variables of its process.
    """

    module: str
    about: str
    interpreter: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


COMPETITORS: Mapping[str, Competitor] = {
    "eager": Competitor("torch_compile", "PyTorch without torch.compile"),
    "inductor": Competitor("torch_compile", "torch.compile with Inductor, its default backend"),
    "inductor tuned": Competitor(
        "torch_compile", "Inductor with freezing, max_autotune and its C++ wrapper; with --tuned"
    ),
    "pjrt": Competitor("torch_compile", 'torch.compile(backend="pjrt"), on the default plugin'),
    "pjrt alone": Competitor(
        "torch_compile",
        "the same without PyTorch's kernels (`PJRT_BRIDGE_ATEN=off`)",
        environment={"PJRT_BRIDGE_ATEN": "off"},
    ),
    "jax": Competitor("jax_jit", "jax.jit on JAX's own XLA for CPU, blocking", "jax"),
    "torch_xla": Competitor("torch_xla", "torch.compile with PyTorch/XLA's openxla", "torch_xla"),
    "tf.function": Competitor("tf_function", "tf.function, with TensorFlow's own kernels"),
    "jit_compile": Competitor("tf_function", "tf.function(jit_compile=True): TensorFlow's own XLA"),
    "tf_interop": Competitor("tf_function", "tf_interop.function, on the default plugin"),
    "runtime": Competitor("runtime", "the bridge's runtime: tensors in, program, tensors out"),
    "executable": Competitor(
        "runtime", "an Executable that is called on the plugin's buffers, blocking"
    ),
    "raw C": Competitor("raw_loop", "a loop in C over the plugin's PJRT_Api"),
}


def competitor(name: str) -> Competitor:
    """A competitor by its name, which may end in " warm"."""
    return COMPETITORS[name.removesuffix(WARM)]


def timer(call: Callable[[], Any]) -> Timer:
    """A timer of a Python call."""

    def time_it(repeats: int) -> float:
        started = time.perf_counter()
        for _ in repeat(None, repeats):
            call()
        return time.perf_counter() - started

    return time_it

"""What a case declares: the work in terms of a framework, who competes, and what is asked.

Nothing here imports a framework: a case is read in interpreters that have PyTorch, and in others
that have JAX alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Measure(Enum):
    """What of a competitor is measured."""

    CALL = "a call"
    """Seconds of a call, after the first; competitors take turns."""
    START = "the first call"
    """Seconds of the first call in a new process: what was compiled before is on no disk, or on
    this run's."""
    MEMORY = "memory"
    """Bytes that are resident in the process at the peak of a call after the first."""

    @property
    def unit(self) -> str:
        """Of a sample."""
        return "B" if self is Measure.MEMORY else "s"


@dataclass(frozen=True)
class Array:
    """An input that frameworks have alike.

    Attributes:
        shape: of it.
        dtype: name of its element type, in PyTorch and JAX.
        below: its elements are integers from 0 up to this; None: they are normally distributed.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int | None = None

    def draw(self, seed: int) -> NDArray[Any]:
        """The elements; as float32 where the type is a floating one."""
        rng = np.random.default_rng(seed)
        if self.below is None:
            return rng.standard_normal(self.shape, dtype=np.float32)
        return rng.integers(0, self.below, self.shape)


@dataclass(frozen=True)
class TorchWork:
    """A case in PyTorch.

    Attributes:
        function: a module or a function of tensors; in training it gives the loss.
        inputs: of it.
        training: a call is forward and backward, and a step of the optimizer if there is one.
        optimizer: of the module's parameters.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    training: bool = False
    optimizer: Any = None


@dataclass(frozen=True)
class JaxWork:
    """A case in JAX: a function that can be traced, and its arguments (pytrees of arrays)."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]


@dataclass(frozen=True)
class TensorFlowWork:
    """A case in TensorFlow.

    Attributes:
        function: a Python function or a Keras model, of tensors.
        inputs: of it.
        whole: all of it can be compiled; a part that runs in TensorFlow all the same is an error.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    whole: bool = True


@dataclass(frozen=True)
class Asked:
    """A number to reach.

    Attributes:
        competitor: of it is asked
        limit: at most this many times
        against: what the best of these needs.
    """

    competitor: str
    limit: float
    against: tuple[str, ...]


@dataclass(frozen=True)
class Suite:
    """What is asked of the cases of some families together.

    Attributes:
        name: of the suite.
        families: whose cases it has.
        asked: of the geometric mean over its cases.
        slowest: the same competitor may need so many times what the others need in any case.
    """

    name: str
    families: tuple[str, ...]
    asked: Asked
    slowest: float | None = None


@dataclass(frozen=True)
class Case:
    """One thing that every competitor does.

    Attributes:
        name: tells it from all others.
        competitors: names in `benchmarks.competitors.COMPETITORS`; " warm" after a name means a
            process that finds what another process has compiled.
        torch: makes the work in PyTorch, in the process that does it.
        jax: the same in JAX.
        tensorflow: makes the work of a case that is about TensorFlow.
        measure: what is measured.
        asked: numbers to reach.
        quick: so small that a test can afford it.
    """

    name: str
    competitors: tuple[str, ...]
    torch: Callable[[], TorchWork] | None = None
    jax: Callable[[], JaxWork] | None = None
    tensorflow: Callable[[], TensorFlowWork] | None = None
    measure: Measure = Measure.CALL
    asked: tuple[Asked, ...] = field(default=())
    quick: bool = False


def functions(
    arrays: tuple[Array, ...],
    torch: Callable[[Any], Callable[..., Any]],
    jax: Callable[[Any], Callable[..., Any]],
) -> tuple[Callable[[], TorchWork], Callable[[], JaxWork]]:
    """The work of a case that is one function of arrays, in PyTorch and in JAX.

    Args:
        arrays: what it takes.
        torch: takes the module `torch` and gives the function.
        jax: takes the module `jax` and gives the same function.
    """

    def torch_work() -> TorchWork:
        import torch as module

        return TorchWork(torch(module), tensors(arrays))

    def jax_work() -> JaxWork:
        import jax as module

        inputs = [
            module.numpy.asarray(array.draw(seed)).astype(_jax_type(array.dtype))
            for seed, array in enumerate(arrays)
        ]
        return JaxWork(jax(module), tuple(inputs))

    return torch_work, jax_work


def tensors(arrays: Sequence[Array]) -> tuple[Any, ...]:
    """The arrays as PyTorch's tensors."""
    import torch

    return tuple(
        # A copy, because NumPy does not align its memory as plugins need it.
        torch.from_numpy(array.draw(seed)).to(getattr(torch, array.dtype), copy=True)
        for seed, array in enumerate(arrays)
    )


def _jax_type(dtype: str) -> str:
    # JAX has no 64-bit integers unless it is told to.
    return {"int64": "int32"}.get(dtype, dtype)

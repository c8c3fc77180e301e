"""What a program of the catalogues is: how to make it, what to call it with, what to expect.

A program is made afresh for each contender, from the same seeds, so that what one contender does to
its variables, tables and files the other does not see.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

Generator = np.random.Generator


@dataclass(frozen=True)
class Arguments:
    """What one call is made with."""

    positional: tuple[Any, ...]
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Instance:
    """A program with state of its own.

    Attributes:
        run: what a user would hand to `tf.function`, or has from Keras or a SavedModel.
        inputs: arguments of one call.
        variables: compared after each call.
        seen: what a call left elsewhere (tables, files, lists), compared after each call.
    """

    run: Any
    inputs: Callable[[Generator], Arguments]
    variables: Sequence[tf.Variable] = ()
    seen: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class Case:
    """A program of a catalogue, and what has to become of it.

    Attributes:
        name: as in the test's name.
        build: makes an instance; `make` calls it.
        on_host: operator types that have to be on the host; empty for one that compiles whole.
        on_device: operator types that have to be on the device.
        segments: device segments at least.
        tolerance: largest difference, relative to the largest magnitude of the expected value.
        calls: how many are compared.
    """

    name: str
    build: Callable[[], Instance]
    on_host: frozenset[str]
    on_device: frozenset[str]
    segments: int = 1
    tolerance: float = 1e-5
    calls: int = 3

    def make(self) -> Instance:
        """A new instance; all of a case start equal."""
        # Keras draws the seeds of initializers when a layer is made.
        tf.keras.utils.set_random_seed(1)
        return self.build()


MIXED: list[Case] = []
WHOLE: list[Case] = []


def mixed(
    on_host: str, on_device: str = "MatMul", *, segments: int = 1, calls: int = 3
) -> Callable[[Callable[[], Instance]], Callable[[], Instance]]:
    """Enter a program that only in part can be compiled; operator types apart by blanks."""

    def enter(build: Callable[[], Instance]) -> Callable[[], Instance]:
        host, device = frozenset(on_host.split()), frozenset(on_device.split())
        MIXED.append(Case(build.__name__, build, host, device, segments, calls=calls))
        return build

    return enter


def whole(
    on_device: str, *, tolerance: float = 1e-5, calls: int = 3
) -> Callable[[Callable[[], Instance]], Callable[[], Instance]]:
    """Enter a program that has to be one segment, on the device."""

    def enter(build: Callable[[], Instance]) -> Callable[[], Instance]:
        device = frozenset(on_device.split())
        WHOLE.append(
            Case(build.__name__, build, frozenset(), device, tolerance=tolerance, calls=calls)
        )
        return build

    return enter


def given(*positional: Any, **named: Any) -> Arguments:
    """The arguments of a call, written as a call."""
    return Arguments(positional, named)


def floats(rng: Generator, *shape: int, dtype: Any = tf.float32) -> tf.Tensor:
    """Normal numbers, as a tensor that TensorFlow allocated."""
    return tf.cast(tf.identity(rng.standard_normal(shape)), dtype)


def numbers(rng: Generator, high: int, *shape: int, dtype: Any = tf.int32) -> tf.Tensor:
    """Integers from 0 on and below `high`."""
    return tf.cast(tf.identity(rng.integers(0, high, shape)), dtype)


def words(rng: Generator, choices: Sequence[str], *shape: int) -> tf.Tensor:
    """Strings out of a choice."""
    return tf.constant(rng.choice(np.array(choices, object), shape))


def weights(*shape: int, seed: int = 0, scale: float = 0.3) -> tf.Variable:
    """A variable with the same values in each instance."""
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return tf.Variable(values.astype(np.float32))


def text_file() -> Path:
    """An empty file for what a program prints."""
    return Path(tempfile.mkdtemp(prefix="pjrt-bridge-")) / "printed"

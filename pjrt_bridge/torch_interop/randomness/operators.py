"""Random operators that take a key: `pjrt_bridge::rand` is `aten::rand` with a key in front.

A key is a 64-bit integer, an int64 scalar tensor; one with a dimension has a key for each row. The
operators are pure: with the same key they give the same numbers, so graphs that hold them may be
recomputed, divided and run anywhere. Their schemas are those of ATen's operators; operators that
the installed torch lacks are left out.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx.node import map_aggregate

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.named_device.naming import OWN_DEVICES
from pjrt_bridge.torch_interop.randomness.host import kernel
from pjrt_bridge.torch_interop.randomness.transforms import gradients, over_rows

NAMESPACE = compat.OWN_NAMESPACE

_WITH_KEYS = (
    "bernoulli.Tensor",
    "bernoulli.p",
    "cauchy.default",
    "exponential.default",
    "geometric.default",
    "log_normal.default",
    "multinomial.default",
    "native_dropout.default",
    "normal.Tensor_Tensor",
    "normal.Tensor_float",
    "normal.float_Tensor",
    "normal.float_float",
    "normal_functional.default",
    "rand.default",
    "rand_like.default",
    "randint.default",
    "randint.low",
    "randint_like.default",
    "randint_like.low_dtype",
    "randn.default",
    "randn_like.default",
    "randperm.default",
    "rrelu_with_noise_functional.default",
    "uniform.default",
)

_INTEGERS = (
    "bernoulli.Tensor",
    "bernoulli.p",
    "geometric.default",
    "multinomial.default",
    "randint.default",
    "randint.low",
    "randint_like.default",
    "randint_like.low_dtype",
    "randperm.default",
)
"""Operators that give integers, or what is converted from them; others give floating point."""

_READING = (
    "bernoulli.Tensor",
    "multinomial.default",
    "native_dropout.default",
    "normal.Tensor_Tensor",
    "normal.Tensor_float",
    "normal.float_Tensor",
    "rrelu_with_noise_functional.default",
)
"""Operators that read the elements of the last of their tensors; others only its shape."""

_WITH_DROPOUT = ("_scaled_dot_product_flash_attention_for_cpu.default",)
"""Operators that are random only where they are given a probability of dropout above 0."""

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_counterparts: dict[str, compat.OpOverload] = {}
_pure: dict[compat.OpOverload, compat.OpOverload] = {}
_of_pure: dict[compat.OpOverload, compat.OpOverload] = {}


def counterpart(name: str) -> compat.OpOverload | None:
    """The operator with a key for one of ATen's, such as `"aten.rand.default"`, or None."""
    return _counterparts.get(name)


def pure_counterpart(target: object) -> compat.OpOverload | None:
    """For an operator that may be random the same one without torch's tag of random operators."""
    return _pure.get(target) if isinstance(target, compat.OpOverload) else None


def of_pure_counterpart(target: object) -> compat.OpOverload | None:
    """The operator of ATen of which `pure_counterpart` gave this one."""
    return _of_pure.get(target) if isinstance(target, compat.OpOverload) else None


def gives(
    name: str,
    made: torch.Tensor,
    taken: Sequence[torch.Tensor],
    devices: Container[str] = OWN_DEVICES,
) -> bool:
    """Whether the counterpart of an operator supports such a result for such tensors.

    Args:
        name: of the operator.
        made: its result.
        taken: its tensors.
        devices: torch's types of those on which programs compute it.
    """
    plain = name.removeprefix("aten.")
    if made.layout is not torch.strided or made.device.type not in devices:
        return False
    if made.dtype not in _FLOATS and (
        made.dtype.is_floating_point or made.dtype.is_complex or plain not in _INTEGERS
    ):
        return False
    return plain not in _READING or taken[-1].dtype in _FLOATS


def _define(name: str) -> None:
    aten = compat.operator(f"aten.{name}")
    if aten is None:
        return
    schema = str(aten._schema).partition("(")[2]
    schema = re.sub(r"(, \*)?, Generator\? generator=None\)", ")", f"(Tensor key, {schema}")
    schema = schema.replace("Generator? generator=None, ", "")
    # Numbers that are symbols while a call is traced.
    schema = schema.replace("float ", "Scalar ")
    own = f"{NAMESPACE}::{name.removesuffix('.default')}"
    torch.library.define(own, schema)
    torch.library.impl(own, "cpu", kernel(name, aten))
    torch.library.register_fake(own, partial(_promised, aten))
    made = compat.operator(f"{NAMESPACE}.{name}")
    assert made is not None
    torch.library.register_vmap(own, over_rows(name, made))
    backward, keep = gradients(name, made)
    compat.register_gradients(made, backward, keep)
    _counterparts[f"aten.{name}"] = made


def _promised(aten: compat.OpOverload, key: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """What the operator without the key promises, which depends on no number that is a symbol."""
    # Of these integers none is a size.
    hint = compat.hint if aten.__name__.startswith("randint_like") else compat.hint_of_float
    given, named = map_aggregate((args, kwargs), hint)
    return aten(*given, **named)


def _define_pure(name: str) -> None:
    aten = compat.operator(f"aten.{name}")
    if aten is None:
        return
    own = f"{NAMESPACE}::{name.removesuffix('.default')}"
    torch.library.define(own, "(" + str(aten._schema).partition("(")[2])
    made = compat.operator(f"{NAMESPACE}.{name}")
    assert made is not None
    _pure[aten], _of_pure[made] = made, aten


def _define_key() -> compat.OpOverload:
    """The operator that draws a key from torch's generator; its index tells keys apart."""
    own = f"{NAMESPACE}::key"
    tags = (torch.Tag.nondeterministic_seeded,)
    torch.library.define(own, "(int index) -> Tensor", tags=tags)
    torch.library.impl(own, "default", lambda index: draw_keys(1)[0])
    torch.library.register_fake(own, lambda index: torch.empty((), dtype=torch.int64, device="cpu"))
    made = compat.operator(f"{NAMESPACE}.key.default")
    assert made is not None
    return made


_LOWEST = -(1 << 63)
_STEP = 0x1E3779B97F4A7C15
"""Between derived keys: odd, so that they differ, and far from what callers may count in."""
_APART = 8
"""Integers from one key to the next: plugins use memory in place that begins at a multiple of 64
bytes."""


def derived_keys(words: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """Keys as a function of 64 random bits.

    Args:
        words: the bits, as two int32.
        count: how many keys; they differ.
    """
    high, low = words.to(torch.int64).unbind(0)
    key = (high << 32) | (low & 0xFFFFFFFF)
    # As 64-bit integers, which wrap around.
    steps = ((index * _STEP - _LOWEST) % (1 << 64) + _LOWEST for index in range(count))
    return tuple(key + step for step in steps)


def draw_keys(count: int) -> tuple[torch.Tensor, ...]:
    """New keys, drawn from torch's generator."""
    if count == 1:
        return (torch.empty((), dtype=torch.int64, device="cpu").random_(_LOWEST, None),)
    memory = torch.empty((count, _APART), dtype=torch.int64, device="cpu")
    return memory.random_(_LOWEST, None).select(1, 0).unbind()


KEY = _define_key()
for _name in _WITH_KEYS:
    _define(_name)
for _name in _WITH_DROPOUT:
    _define_pure(_name)

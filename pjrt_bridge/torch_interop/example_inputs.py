"""Example inputs from short descriptions, as torch tensors."""

from __future__ import annotations

import torch

from pjrt_bridge import dtypes, example_inputs
from pjrt_bridge.errors import UnsupportedDtype
from pjrt_bridge.example_inputs import Numbers
from pjrt_bridge.torch_interop.tensors import torch_dtype


def example_input(text: str) -> torch.Tensor:
    """One argument: a `.npy` file, or random numbers of a type and shape.

    Args:
        text: a path, or `f32[8,64]` (normally distributed), `i64[4,128]<1000` (integers from 0 to
            below 1000; below 2 without a limit), `i1[3]` (booleans), `f32[]` (a scalar).

    Raises:
        DataError: neither a description nor a file that can be read.
    """
    return example_inputs.read(text, _drawn, torch.from_numpy)


def example_promise(text: str) -> torch.Tensor:
    """The same without values, on the device `meta`.

    Raises:
        DataError: see `example_input`.
    """
    return example_inputs.read(
        text,
        lambda numbers: torch.empty(numbers.shape, dtype=_dtype(numbers), device="meta"),
        lambda array: torch.from_numpy(array).to("meta"),
    )


def _dtype(numbers: Numbers) -> torch.dtype:
    try:
        return torch_dtype(dtypes.from_stablehlo(numbers.element))
    except (UnsupportedDtype, AssertionError) as error:
        raise UnsupportedDtype(f"torch has no element type {numbers.element!r}") from error


def _drawn(numbers: Numbers) -> torch.Tensor:
    dtype = _dtype(numbers)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(numbers.shape, dtype=wide, device="cpu").to(dtype)
    return torch.randint(numbers.limit, numbers.shape, device="cpu").to(dtype)

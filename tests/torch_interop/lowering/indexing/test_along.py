"""Positions that are the same for whole slices, as of messages along the edges of a graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.torch_interop import export
from tests.extent import examples

Written = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    torch.compiler.reset()
    return torch.compile(function, backend="pjrt", fullgraph=True, dynamic=False)


OPERATIONS: dict[str, Callable[[int], Written]] = {
    "scatter_add": lambda dim: lambda x, index, src: x.scatter_add(dim, index, src),
    "add": lambda dim: lambda x, index, src: x.scatter(dim, index, src, reduce="add"),
    "gather": lambda dim: lambda x, index, src: x.gather(dim, index),
    **{
        f"{how} {own}": lambda dim, how=how, own=own: (
            lambda x, index, src: x.scatter_reduce(dim, index, src, how, include_self=own)
        )
        for how in ("sum", "mean", "prod", "amax", "amin")
        for own in (True, False)
    },
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[int], set[int], int, int]:
    """Sizes of a tensor and of the index, where the index is repeated, the dimension, a seed."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dim = draw(st.integers(0, len(sizes) - 1))
    index = [
        draw(st.integers(1, 7)) if d == dim else draw(st.integers(1, n))
        for d, n in enumerate(sizes)
    ]
    repeated = draw(st.sets(st.integers(0, len(sizes) - 1)))
    return sizes, index, repeated, dim, draw(st.integers(0, 2**31))


@settings(max_examples=examples(25), deadline=None)
@given(cases(), st.sampled_from(sorted(OPERATIONS)))
def test_positions_that_are_repeated_along_any_dimensions(case, operation):
    sizes, shape, repeated, dim, seed = case
    generator = torch.Generator().manual_seed(seed)
    narrow = [1 if d in repeated else n for d, n in enumerate(shape)]
    index = torch.randint(0, sizes[dim], narrow, generator=generator)
    x = torch.randint(-9, 9, sizes, generator=generator).float()
    src = torch.randint(-9, 9, shape, generator=generator).float()
    written = OPERATIONS[operation](dim)

    def function(x, index, src):
        return written(x, index.expand(shape), src)

    torch.testing.assert_close(
        compiled(function)(x, index, src), function(x, index, src), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("operation", ["scatter_add", "mean False", "gather"])
def test_slices_are_written_and_read_whole(operation):
    x, index, src = torch.zeros(6, 32), torch.randint(0, 6, (9,)), torch.randn(9, 32)
    written = OPERATIONS[operation](0)

    class Along(torch.nn.Module):
        def forward(self, x, index, src):
            return written(x, index.unsqueeze(-1).expand_as(src), src)

    text = export(Along(), (x, index, src)).program.text
    assert "tensor<9x32x1xi64>" not in text
    assert "tensor<9x1xi64>" in text


@pytest.mark.parametrize("operation", ["scatter_add", "gather"])
@pytest.mark.parametrize("position", [-1, 6])
def test_a_position_out_of_range_is_refused(operation, position):
    index = torch.tensor([0, position, 2])
    written = OPERATIONS[operation](0)

    def function(x, index, src):
        return written(x, index.unsqueeze(-1).expand_as(src), src)

    with pytest.raises((IndexError, RuntimeError), match=r"index"):
        compiled(function)(torch.zeros(6, 4), index, torch.ones(3, 4))

"""Attention of few queries by the custom call: numbers, shared heads, which ones, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.kernel_attributes import Attention
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import few_queries
from pjrt_bridge_cpu.few_queries import TARGET, attend
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.cpu.helpers import emitted
from tests.extent import examples

PART = 2048
"""Keys of a part in `native/attend.c`."""


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert few_queries.can_attend_few(client)
    monkeypatch.setattr(few_queries, "LEAST", 1)


def called(
    client: Client, sides: Sequence[Any], mask: Any, scale: float, turned: Sequence[bool]
) -> tuple[Any, Any]:
    """The call's results; keys and values are computed in the order of memory that they say."""
    turn = (0, 2, 1, 3)
    arrays = [np.asarray(side) for side in (*sides, mask)]
    arrays[1:3] = [
        side.transpose(turn).copy() if is_turned else side
        for side, is_turned in zip(arrays[1:3], turned, strict=True)
    ]
    b = Builder([TensorType(each.shape, dtypes.of(each.dtype.name)) for each in arrays])
    query, *caches, added = b.parameters
    key, value = (
        b.transpose(cache, turn) if is_turned else cache
        for cache, is_turned in zip(caches, turned, strict=True)
    )
    found = attend(b, query, key, value, added, scale)
    results = client.compile(b.finish(list(found)))(*arrays)
    output, sums = (np.asarray(result).astype(np.float64) for result in results)
    return output, sums


def exact(sides: Sequence[Any], mask: Any, scale: float) -> tuple[Any, Any]:
    """The same in float64."""
    query, key, value = (np.asarray(side).astype(np.float64) for side in sides)
    shared = query.shape[1] // key.shape[1]
    key, value = (np.repeat(side, shared, 1) for side in (key, value))
    scores = query @ key.swapaxes(2, 3) * scale
    scores = scores + mask.astype(np.float64) if mask.size else scores
    top = scores.max(-1, keepdims=True)
    top[np.isneginf(top)] = 0
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    total[total == 0] = 1
    return weights @ value / total, (top + np.log(total))[..., 0]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from(["float32", "bfloat16"]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 3]),
    st.sampled_from([1, 2, 7]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([1, 15, 64, 1000, PART, PART + 5, 2 * PART + 100]),
    st.sampled_from([1, 16, 40, 64]),
    st.sampled_from([1, 33, 64]),
    st.sampled_from([None, (0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1)]),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(0, 99),
)
def test_it_is_attention(
    client: Client,
    name: str,
    batches: int,
    heads: int,
    shared: int,
    queries: int,
    count: int,
    size: int,
    width: int,
    masked: tuple[int, ...] | None,
    turned: tuple[bool, bool],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    shapes = (
        (batches, heads * shared, queries, size),
        (batches, heads, count, size),
        (batches, heads, count, width),
    )
    kind = dtypes.of(name).numpy
    sides = [rng.standard_normal(shape).astype(kind) for shape in shapes]
    mask = np.zeros((0, 1, 1, count), np.float32)
    if masked is not None:
        each = [n if m else 1 for n, m in zip(shapes[0][:3], masked, strict=True)]
        mask = rng.standard_normal((*each, count)).astype(np.float32)
        mask[rng.random(mask.shape) < 0.3] = -np.inf
    scale = size**-0.5
    output, sums = called(client, sides, mask, scale, turned)
    expected = exact(sides, mask, scale)
    rtol = 2.0**-8 if name == "bfloat16" else 2e-5
    np.testing.assert_allclose(output, expected[0], rtol=rtol, atol=1e-5)
    np.testing.assert_allclose(sums, expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [20, 2 * PART + 20])
def test_special_numbers(client: Client, count: int) -> None:
    rng = np.random.default_rng(0)
    sides = [rng.standard_normal((1, 5, n, 32)).astype(np.float32) for n in (1, count, count)]
    mask = np.zeros((1, 5, 1, count), np.float32)
    mask[0, 0] = -np.inf
    # All keys of the first part but none of another one, and the other way round.
    mask[0, 1, 0, 10:] = -np.inf
    mask[0, 2, 0, :10] = -np.inf
    sides[1][0, 3, count - 1] = np.nan
    sides[1][0, 4, 3, 0] = np.inf * np.sign(sides[0][0, 4, 0, 0])
    output, sums = called(client, sides, mask, 0.2, (False, True))
    assert not output[0, 0].any()
    assert sums[0, 0, 0] == 0
    assert np.isnan(output[0, 3:]).all()
    assert np.isnan(sums[0, 3:]).all()
    expected = exact([side[:, 1:3] for side in sides], mask[:, 1:3], 0.2)
    np.testing.assert_allclose(output[:, 1:3], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums[:, 1:3], expected[1], rtol=1e-5)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def repeated(x: torch.Tensor, count: int) -> torch.Tensor:
    """As models repeat heads that are shared."""
    batches, heads, length, size = x.shape
    spread = x[:, :, None].expand(batches, heads, count, length, size)
    return spread.reshape(batches, heads * count, length, size)


def of_shared_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    attended: torch.Tensor = functional.scaled_dot_product_attention(
        query, key, value, enable_gqa=True
    )
    return attended


def of_repeated_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    key, value = repeated(key, 4), repeated(value, 4)
    attended: torch.Tensor = functional.scaled_dot_product_attention(query, key, value)
    return attended


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", [of_shared_heads, of_repeated_heads])
def test_heads_that_are_shared_are_read_once(
    function: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    sides = [draw(2, heads, n, 16).to(dtype) for heads, n in ((8, 1), (2, 70), (2, 70))]
    with torch.no_grad():
        found = torch.compile(function, backend="pjrt")(*sides)
        torch.testing.assert_close(found, function(*sides), rtol=2e-2, atol=1e-2)
        torch._dynamo.reset()
        (line,) = (line for line in emitted(function, *sides).split("\n") if TARGET in line)
    assert "tensor<2x8x70x16" not in line


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("kind", ["bool", "float32", "one for all keys"])
def test_masks_and_gradients(kind: str) -> None:
    query, key, value = (draw(2, 3, n, 16) for n in (2, 50, 50))
    mask = {
        "bool": draw(2, 50) > 0,
        "float32": draw(2, 1, 2, 50),
        "one for all keys": draw(2, 1, 2, 1),
    }[kind]

    def attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = functional.scaled_dot_product_attention(query, key, value, mask)
        return found

    both = [[side.clone().requires_grad_() for side in (query, key, value)] for _ in range(2)]
    compiled = torch.compile(attended, backend="pjrt")
    for function, sides in zip((attended, compiled), both, strict=True):
        function(*sides).square().sum().backward()
    for expected, found in zip(*both, strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    with torch.no_grad():
        torch.testing.assert_close(compiled(query, key, value), attended(query, key, value))
    assert TARGET in emitted(attended, query, key, value)


FLOATS = dtypes.of("float32")


@pytest.mark.parametrize("reason", ["causal", "many queries", "float64"])
def test_others_are_left_to_other_kernels(reason: str, client: Client) -> None:
    dtype = dtypes.of("float64" if reason == "float64" else "float32")
    queries = few_queries.MOST + 1 if reason == "many queries" else 2
    types = [TensorType((1, 2, n, 8), dtype) for n in (queries, 9, 9)]
    b = Builder(types)
    kernels = XlaKernels()
    kernels.can_attend_few = True
    how = Attention(1.0, is_causal=reason == "causal")
    assert kernels.attention(b, *b.parameters, None, how) is None


def test_programs_for_other_plugins_have_none() -> None:
    b = Builder([TensorType((1, 2, 1, 8), FLOATS)] * 3)
    assert XlaKernels().attention(b, *b.parameters, None, Attention(1.0, is_causal=False)) is None


def _types(*shapes: tuple[int, ...]) -> list[TensorType]:
    return [TensorType(shape, FLOATS) for shape in shapes]


GIVEN = _types((2, 4, 1, 8), (2, 2, 9, 8), (2, 2, 9, 6), (0, 1, 1, 9))
RESULTS = _types((2, 4, 1, 6), (2, 4, 1))
HOW = {"how": np.array([0, 0], np.int64), "scale": np.array([1.0], np.float32)}
Refused = tuple[dict[str, Any], Sequence[TensorType], Sequence[TensorType], str]


def _with(index: int, *changed: TensorType) -> list[TensorType]:
    return [*GIVEN[:index], *changed, *GIVEN[index + 1 :]]


_MISFIT = "do not fit each other"
REFUSED: dict[str, Refused] = {
    "no attributes": ({}, GIVEN, RESULTS, "not those that the bridge writes"),
    "three operands": (HOW, GIVEN[:3], RESULTS, "four operands"),
    "a query of rank 3": (HOW, _with(0, *_types((2, 4, 8))), RESULTS, "rank 3, expected 4"),
    "keys of float64": (
        HOW,
        _with(1, TensorType((2, 2, 9, 8), dtypes.of("float64"))),
        RESULTS,
        "element types",
    ),
    "a mask of bool": (
        HOW,
        _with(3, TensorType((1, 1, 1, 9), dtypes.of("bool"))),
        RESULTS,
        "element types",
    ),
    "keys of another size": (HOW, _with(1, *_types((2, 2, 9, 7))), RESULTS, _MISFIT),
    "fewer values": (HOW, _with(2, *_types((2, 2, 8, 6))), RESULTS, _MISFIT),
    "values of other heads": (HOW, _with(2, *_types((2, 1, 9, 6))), RESULTS, _MISFIT),
    "heads that are not divided": (
        HOW,
        [*_types((2, 4, 1, 8), (2, 3, 9, 8), (2, 3, 9, 6)), GIVEN[3]],
        RESULTS,
        _MISFIT,
    ),
    "keys in the other order": (
        HOW | {"how": np.array([1, 0], np.int64)},
        GIVEN,
        RESULTS,
        _MISFIT,
    ),
    "a mask of other batches": (HOW, _with(3, *_types((3, 1, 1, 9))), RESULTS, _MISFIT),
    "a mask of fewer keys": (HOW, _with(3, *_types((1, 1, 1, 8))), RESULTS, _MISFIT),
    "another width": (HOW, GIVEN, _types((2, 4, 1, 5), (2, 4, 1)), _MISFIT),
    "no numbers in a key": (
        HOW,
        _types((2, 4, 1, 0), (2, 2, 9, 0), (2, 2, 9, 6), (0, 1, 1, 9)),
        RESULTS,
        _MISFIT,
    ),
    "no keys": (
        HOW,
        _types((2, 4, 1, 8), (2, 2, 0, 8), (2, 2, 0, 6), (0, 1, 1, 0)),
        RESULTS,
        _MISFIT,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    config, types, results, reason = REFUSED[name]
    b = Builder(list(types))
    found = b.custom_call(TARGET, b.parameters, list(results), backend_config=config)
    executable = client.compile(b.finish(list(found)))
    arrays = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_attend_few

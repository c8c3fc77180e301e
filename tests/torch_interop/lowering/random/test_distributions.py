"""Random operators on the device, in the reference interpreter, and in PyTorch: one stream.

The third side of each comparison is the generator in Python's own integers, which is held against
the vectors that its authors published.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.lowering import registry
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.random import choice, distributions, threefry
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from pjrt_bridge.torch_interop.randomness import operators
from tests.torch_interop.lowering.harness import (
    BOTH,
    as_list,
    check,
    lower,
    overload,
    run_on_cpu,
)

MASK = (1 << 32) - 1
KEY = torch.tensor(-0x123456789ABCDEF)
LOW, HIGH = int(KEY) & MASK, int(KEY) >> 32 & MASK
X = torch.linspace(-3, 5, 21).reshape(3, 7)
POSITIVE = X.exp()


def reference(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32-20, from the paper's description."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (counter[0] + keys[0]) & MASK, (counter[1] + keys[1]) & MASK
    for r in range(20):
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[r % 8]
        x = (x + y) & MASK
        y = ((y << turn | y >> 32 - turn) & MASK) ^ x
        if r % 4 == 3:
            s = r // 4 + 1
            x, y = (x + keys[s % 3]) & MASK, (y + keys[(s + 1) % 3] + s) & MASK
    return x, y


KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((MASK, MASK), (MASK, MASK), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]
"""(key, counter, words), of the vectors that come with Random123."""


@pytest.mark.parametrize(("key", "counter", "expected"), KNOWN)
@pytest.mark.parametrize("engine", BOTH)
def test_known_answers(engine, key, counter, expected):
    assert reference(key, counter) == expected
    word = TensorType((), dtypes.of("uint32"))
    builder = Builder([word] * 4)
    first, second = builder.parameters[:2], builder.parameters[2:]
    program = builder.finish(threefry.threefry(builder, first, second))
    found = engine(program, *(np.array(item, np.uint32) for item in (*key, *counter)))
    assert tuple(map(int, found)) == expected


def drawn_words(count: int, lane: int = 0) -> list[tuple[int, int]]:
    return [reference((LOW, HIGH), (at, lane << 24)) for at in range(count)]


@pytest.mark.parametrize("lane", [0, 1, 255])
def test_an_elements_words_are_those_of_its_position(lane):
    builder = Builder([TensorType((), dtypes.of("int64"))])
    drawn = threefry.words(builder, builder.parameters[0], (3, 5), lane)
    program = builder.finish(drawn)
    for engine in BOTH:
        first, second = (array.ravel().tolist() for array in engine(program, KEY.numpy()))
        assert list(zip(first, second, strict=True)) == drawn_words(15, lane)


def test_positions_of_more_than_32_bits_reach_the_second_word():
    builder = Builder([])
    numbers = np.array([7, 5 << 32 | 3, 2**64 - 1], np.uint64)
    program = builder.finish(threefry._halves(builder, builder.constant(numbers)))
    for engine in BOTH:
        low, high = engine(program)
        assert (low.tolist(), high.tolist()) == ([7, 3, MASK], [0, 5, MASK])


@pytest.mark.parametrize("lane", [0, 3])
def test_wide_positions_give_the_words_of_narrow_ones(monkeypatch, lane):
    monkeypatch.setattr(threefry, "NARROW", 8)
    test_an_elements_words_are_those_of_its_position(lane)
    found = torch.ops.pjrt_bridge.rand(KEY, [150_000])
    monkeypatch.undo()
    assert torch.equal(found, torch.ops.pjrt_bridge.rand(KEY, [150_000]))


def kwargs(dtype: torch.dtype) -> dict[str, torch.dtype]:
    return {"dtype": dtype}


EXACT = [
    *(("rand.default", ([5, 7],), kwargs(t)) for t in operators._FLOATS),
    ("rand.default", ([],), {}),
    ("rand.default", ([0, 3],), {}),
    ("rand.default", ([150_000],), {}),
    ("rand_like.default", (X.t(),), {}),
    ("rand_like.default", (torch.arange(6),), kwargs(torch.float32)),
    ("uniform.default", (X,), {}),
    ("randint.default", (10, [50]), {}),
    ("randint.low", (-3, 4, [2, 9]), kwargs(torch.int32)),
    ("randint.low", (0, 256, [40]), kwargs(torch.uint8)),
    ("randint.low", (0, 2, [40]), kwargs(torch.bool)),
    ("randint.low", (0, 1000, [40]), kwargs(torch.float32)),
    ("randint.low", (0, 1 << 32, [40]), {}),
    ("randint.low", (-5, (1 << 32) - 4, [40]), {}),
    ("randint.low", (-(2**63), 2**63 - 1, [40]), {}),
    ("randint.low", (-7, 3 << 40, [40]), {}),
    ("randint_like.default", (X, 9), {}),
    ("randint_like.low_dtype", (X, -9, 9), kwargs(torch.int16)),
    ("bernoulli.p", (X, 0.3), {}),
    ("bernoulli.p", (X.to(torch.int64), 0.3), {}),
    ("bernoulli.p", (X, 0.0), {}),
    ("bernoulli.p", (X, 1.0), {}),
    ("bernoulli.Tensor", (X, X.sigmoid()), {}),
    ("bernoulli.Tensor", (X.int(), X.sigmoid().double()), {}),
    ("bernoulli.Tensor", (X, X.sigmoid().bfloat16()), {}),
    ("bernoulli.Tensor", (X, (X > 0).float()), {}),
    *(("native_dropout.default", (X.to(t), 0.3, True), {}) for t in operators._FLOATS),
    ("native_dropout.default", (X, 0.3, None), {}),
    ("native_dropout.default", (X, 0.3, False), {}),
    ("native_dropout.default", (X, 1.0, True), {}),
    ("native_dropout.default", (torch.tensor([math.nan, math.inf]), 1.0, True), {}),
    ("randperm.default", (13,), {}),
    ("randperm.default", (0,), {}),
    ("randperm.default", (9,), kwargs(torch.float32)),
    ("multinomial.default", (POSITIVE, 1), {}),
    ("multinomial.default", (POSITIVE, 1, True), {}),
    ("multinomial.default", (POSITIVE[0].double(), 4), {}),
    ("multinomial.default", (POSITIVE, 11, True), {}),
    ("multinomial.default", (POSITIVE[0].half(), 11, True), {}),
]

CLOSE = [
    *(("randn.default", ([6, 7],), kwargs(t)) for t in operators._FLOATS),
    ("randn_like.default", (X,), {}),
    ("normal_functional.default", (X, 2.0, 3.0), {}),
    ("normal_functional.default", (X.half(), 2.0, 0.0), {}),
    ("normal.Tensor_float", (X, 2.0), {}),
    ("normal.float_Tensor", (1.0, POSITIVE), {}),
    ("normal.Tensor_Tensor", (X[0], POSITIVE), {}),
    ("normal.float_float", (1.0, 2.0, [4, 3]), kwargs(torch.float64)),
    ("uniform.default", (X, -2.0, 5.0), {}),
    ("uniform.default", (X.bfloat16(), 1.0, 1.02), {}),
    *(("exponential.default", (X.to(t), 0.7), {}) for t in operators._FLOATS),
    ("geometric.default", (X, 0.3), {}),
    ("geometric.default", (X.to(torch.int64), 0.01), {}),
    ("cauchy.default", (X.double(), 1.0, 2.0), {}),
    ("log_normal.default", (X, 0.5, 0.25), {}),
    ("rrelu_with_noise_functional.default", (X, torch.empty_like(X), 0.1, 0.3, True), {}),
    ("rrelu_with_noise_functional.default", (X.bfloat16(), X.bfloat16(), 0.1, 0.3, True), {}),
    ("rrelu_with_noise_functional.default", (X, X.cos(), 0.1, 0.3, False), {}),
]


def ids(cases):
    return [f"{index}-{case[0]}" for index, case in enumerate(cases)]


@pytest.mark.parametrize(("name", "args", "named"), EXACT, ids=ids(EXACT))
def test_the_device_and_pytorch_draw_the_same(name, args, named):
    engines = BOTH if args[0] != [150_000] else (run_on_cpu,)
    check(f"pjrt_bridge.{name}", KEY, *args, exact=True, engines=engines, **named)


@pytest.mark.parametrize(("name", "args", "named"), CLOSE, ids=ids(CLOSE))
def test_the_device_and_pytorch_draw_the_same_but_for_roundings(name, args, named):
    check(f"pjrt_bridge.{name}", KEY, *args, **named)


def test_every_operator_with_a_key_has_a_lowering_and_a_case():
    tried = {name for name, *_ in (*EXACT, *CLOSE)}
    for name in operators._WITH_KEYS:
        assert registry.find_lowering(f"pjrt_bridge.{name}") is not None
        assert operators.counterpart(f"aten.{name}") is overload(f"pjrt_bridge.{name}")
        assert name in tried


def test_uniform_numbers_are_the_top_bits_of_the_words():
    words = drawn_words(9)
    for dtype, bits in ((torch.float32, 24), (torch.bfloat16, 8), (torch.float16, 11)):
        (found,) = lower("pjrt_bridge.rand.default", KEY, [9], dtype=dtype)
        assert found.tolist() == [(first >> 32 - bits) / 2**bits for first, _ in words]
    (found,) = lower("pjrt_bridge.rand.default", KEY, [9], dtype=torch.float64)
    assert found.tolist() == [((a >> 6 << 27) + (b >> 5)) / 2**53 for a, b in words]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 7), (-5, 1 << 32), (-(2**63), 2**63 - 1), (3, 1 << 50)]
)
def test_integers_are_a_fraction_of_the_range(low, high):
    count = high - low
    first = [a << 32 | b for a, b in drawn_words(20)]
    second = [a << 32 | b for a, b in drawn_words(20, lane=1)]
    if count <= 1 << 32:
        expected = [low + (a * count >> 64) for a in first]
    else:
        expected = [
            low + ((a << 64 | b) * count >> 128) for a, b in zip(first, second, strict=True)
        ]
    (found,) = lower("pjrt_bridge.randint.low", KEY, low, high, [20], engine=run_on_cpu)
    assert found.tolist() == expected


def with_words(monkeypatch, first: list[int], second: list[int] | None = None) -> int:
    """From now on lowerings get these words; how many there are."""
    arrays = [np.array(item, np.uint32) for item in (first, second or first)]

    def chosen(b, key, shape, lane=0):
        return tuple(b.reshape(b.constant(array), tuple(shape)) for array in arrays)

    for module in (distributions, choice):
        monkeypatch.setattr(module, "words", chosen)
    return len(first)


EXTREMES = [0, 1, 127, 128, 1 << 8, 1 << 31, (1 << 31) - 1, MASK - 255, MASK - 128, MASK - 1, MASK]


@pytest.mark.parametrize("dtype", operators._FLOATS)
@pytest.mark.parametrize("engine", BOTH)
def test_intervals_hold_at_their_ends(monkeypatch, engine, dtype):
    count = with_words(monkeypatch, EXTREMES)
    x = torch.zeros(count, dtype=dtype)

    def drawn(name: str, *args: object) -> Tensor:
        (found,) = lower(f"pjrt_bridge.{name}", KEY, *args, engine=engine)
        assert not found.isnan().any()
        return found

    assert drawn("rand_like.default", x).min() == 0
    assert drawn("rand_like.default", x).max() < 1
    for low, high in ((0.0, 1.0), (1.0, 1.01), (-3.0, 1e4), (2.0, 2.0), (-1e-3, 1e-3)):
        ends = torch.tensor([low, high], dtype=dtype)
        found = drawn("uniform.default", x, low, high)
        assert (found >= ends[0]).all()
        assert (found < ends[1]).all() or low == high
    for rate in (1e-2, 1.0, 50.0):
        found = drawn("exponential.default", x, rate)
        assert (found > 0).all()
        assert found.isfinite().all()
    assert not drawn("exponential.default", x, torch.inf).any()
    assert drawn("randn_like.default", x).isfinite().all()
    assert drawn("randn_like.default", x).abs().max() > 6 or dtype is torch.float64
    assert (drawn("geometric.default", x, 0.5) >= 1).all()
    assert drawn("cauchy.default", x).isfinite().all() or dtype is torch.float16
    assert not drawn("bernoulli.p", x, 0.0).any()
    assert drawn("bernoulli.p", x, 1.0).all()
    assert not drawn("bernoulli.Tensor", x, x).any()
    assert drawn("bernoulli.Tensor", x, x + 1).all()


@pytest.mark.parametrize("engine", BOTH)
def test_a_category_without_weight_is_never_drawn(monkeypatch, engine):
    count = with_words(monkeypatch, EXTREMES)
    for weights in ([0, 0.1, 0, 0.2, 0.3, 0, 0.7, 0, 1e-3, 0, 0], [0] * 5 + [3.0] + [0] * 5):
        p = torch.tensor(weights)
        for draws, replacement in ((count, True), (1, True), (1, False)):
            (found,) = lower(
                "pjrt_bridge.multinomial.default", KEY, p, draws, replacement, engine=engine
            )
            assert (p[found] > 0).all()


def test_choices_without_replacement_are_distinct():
    p = torch.rand(4, 30)
    p[:, ::3] = 0
    (found,) = lower("pjrt_bridge.multinomial.default", KEY, p, 20, engine=run_on_cpu)
    assert all(len(set(row)) == 20 for row in found.tolist())
    assert (p.gather(1, found) > 0).all()


def test_normal_numbers_are_quantiles(monkeypatch):
    from scipy.special import ndtri

    words = [*EXTREMES, *range(0, 1 << 32, 9_999_991)]
    count = with_words(monkeypatch, words)
    (found,) = lower("pjrt_bridge.randn.default", KEY, [count], engine=run_on_cpu)
    beyond = (np.array(words, np.uint64) % (1 << 31) + 0.5) / 2**32
    sign = np.where(np.array(words) < 1 << 31, 1, -1)
    np.testing.assert_allclose(found.numpy(), sign * ndtri(beyond), rtol=2e-6, atol=2e-6)


def test_the_gradient_of_a_random_slope():
    grad, noise = X.cos(), X.sin().abs()
    for training, lower_, upper in ((True, 0.1, 0.3), (False, 0.1, 0.3), (True, 0.2, 0.2)):
        args = (grad, X, noise, lower_, upper, training, False)
        check("aten.rrelu_with_noise_backward.default", *args)
        half = (*(item.bfloat16() for item in args[:3]), *args[3:])
        check("aten.rrelu_with_noise_backward.default", *half)


REFUSED = [
    ("uniform.default", (X, 2.0, 1.0)),
    ("exponential.default", (X, -1.0)),
    ("geometric.default", (X, 1.0)),
    ("bernoulli.p", (X, 1.5)),
    ("normal_functional.default", (X, 0.0, -1.0)),
    ("randint.low", (5, 3, [4])),
    ("randint.low", (0, 300, [4], torch.uint8)),
    ("randperm.default", (-1,)),
    ("cauchy.default", (X, 0.0, -1.0)),
]


@pytest.mark.parametrize(("name", "args"), REFUSED, ids=[case[0] for case in REFUSED])
def test_pytorch_says_of_numbers_what_eager_says(name, args):
    *args, last = args
    named = {"dtype": last} if isinstance(last, torch.dtype) else {}
    args = args if named else [*args, last]
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError) as ours:
        overload(f"pjrt_bridge.{name}")(KEY, *args, **named)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(RuntimeError) as theirs:
        overload(f"aten.{name}")(*args, **named)
    assert str(ours.value) == str(theirs.value)


def test_an_empty_range_is_refused():
    builder = Builder([TensorType((), dtypes.of("int64"))])
    context = Context(builder, [TensorType((4,), dtypes.of("int64"))])
    with pytest.raises(NotLowerable, match="from 5 to below 3"):
        registry.find_lowering("pjrt_bridge.randint.low")(context, builder.parameters[0], 5, 3, [4])


def test_strides_are_those_of_eager():
    x = X.expand(2, 3, 7).transpose(0, 2)
    for name, args in (
        ("rand_like.default", (x,)),
        ("native_dropout.default", (x, 0.5, True)),
        ("normal_functional.default", (x,)),
        ("randn.default", ([4, 5],)),
    ):
        ours = as_list(overload(f"pjrt_bridge.{name}")(KEY, *args))
        theirs = as_list(overload(f"aten.{name}")(*args))
        for one, other in zip(ours, theirs, strict=True):
            assert (one.stride(), one.dtype) == (other.stride(), other.dtype)

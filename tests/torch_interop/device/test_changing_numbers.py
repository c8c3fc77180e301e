"""Operators called with one number after another: what is computed follows each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from pjrt_bridge.errors import PjrtError
from pjrt_bridge.mixed.launchers import BufferLauncher
from pjrt_bridge.torch_interop.device.programs import programs
from pjrt_bridge.torch_interop.ledger import EAGER

X = torch.linspace(0.1, 0.9, 12).reshape(3, 4)
Y = X.flip(0)

OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]] = {
    "addmm": lambda x, y, v: torch.addmm(x[:, :3], x, y.t(), alpha=2.5, beta=v),
    "clamp": lambda x, _, v: x.clamp(v * 0.1, v * 0.5),
    "distances": lambda x, y, v: torch.cdist(x, y, p=v),
    "huber": lambda x, y, v: functional.huber_loss(3 * x, y, delta=v),
    "layer norm": lambda x, _, v: functional.layer_norm(x, (4,), eps=v),
    "logit": lambda x, _, v: torch.logit(x, 0.1 * v),
    "masked dropout": lambda x, y, v: torch.ops.aten.native_dropout_backward(x, y > 0.5, v),
    "norm": lambda x, _, v: x.norm(v),
    "scaled": lambda x, y, v: torch.add(x, y, alpha=v),
    "smooth l1": lambda x, y, v: functional.smooth_l1_loss(x, y, beta=v),
    "power": lambda x, _, v: x**v,
}

NEEDS_POSITIVE = ("huber",)


@pytest.mark.parametrize("name", OPERATORS)
def test_each_number_counts(name: str) -> None:
    operator = OPERATORS[name]
    here = X.to("pjrt"), Y.to("pjrt")
    limits = () if name in NEEDS_POSITIVE else (0.0, math.inf)
    for value in (1.5, 1.0, 2.0, 0.5, 3.25, *limits):
        expected = operator(X, Y, value)
        torch.testing.assert_close(operator(*here, value).cpu(), expected, equal_nan=True)


BESIDE_NUMBERS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "and": lambda x, v: x & v,
    "dividing": lambda x, v: v / (x + 1),
    "exclusive or": lambda x, v: v ^ x,
    "fmod": torch.fmod,
    "left shift": lambda x, v: x << v,
    "maximum": lambda x, v: x.clamp(max=v),
    "or": lambda x, v: x | v,
    "power": lambda x, v: x**v,
    "product": lambda x, v: x * v,
    "remainder": torch.remainder,
    "remainder of a number": lambda x, v: torch.remainder(v, x),
    "right shift": lambda x, v: x >> v,
    "where": lambda x, v: torch.where(x > 1, v, x),
}
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.filterwarnings("ignore:plugin 'cpu' does not run aten.__[lr]shift__.Scalar")
@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("name", BESIDE_NUMBERS)
def test_a_number_makes_no_other_type_of_a_tensor_without_dimensions(
    name: str, dtype: torch.dtype
) -> None:
    operator = BESIDE_NUMBERS[name]
    taken = 0
    for value in (3, 2.5, True):
        for x in (torch.tensor(5), torch.tensor([5, 4])):
            given = x.to(dtype)
            try:
                expected = operator(given, value)
            except (RuntimeError, TypeError):
                # Bits of floats, and remainders of bool.
                continue
            taken += 1
            torch.testing.assert_close(operator(given.to("pjrt"), value).cpu(), expected)
    assert taken or name not in ("product", "where")


LIFTED: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "clamp": lambda x, v: x.clamp(-v, v),
    "clamp max": lambda x, v: x.clamp(max=v),
    "clamp min": lambda x, v: x.clone().clamp_(min=-v),
    "fill": lambda x, v: torch.zeros_like(x, dtype=torch.int8).fill_(int(v * 10)),
    "full": lambda x, v: torch.full((3,), int(v * 10), dtype=torch.int8, device=x.device),
    "hard tanh": lambda x, v: functional.hardtanh(x, -v, v),
    "leaky": functional.leaky_relu,
}


def assert_one_program_serves(
    operator: Callable[[torch.Tensor, float], torch.Tensor], x: torch.Tensor, **tolerance: float
) -> None:
    """An operator gives what it gives on the host, and no programs are made after some numbers."""
    here = x.to("pjrt")
    programs.forget()
    EAGER.forget()
    counts = []
    for value in (0.1, 0.7, 0.3, 1.1, 0.6, 2.3, 0.9, 1.7, 0.2):
        found = operator(here, value).cpu()
        torch.testing.assert_close(found, operator(x, value), equal_nan=True, **tolerance)
        counts.append(len(EAGER.graphs))
    assert counts[5] == counts[-1]


@pytest.mark.parametrize("name", LIFTED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_one_program_serves_numbers_that_change(name: str, dtype: torch.dtype) -> None:
    operator = LIFTED[name]
    x = torch.tensor([-2.0, -0.5, -0.0, 0.25, 0.75, 3.0, math.nan, math.inf], dtype=dtype)
    assert_one_program_serves(operator, x, rtol=0, atol=0)


IN_FLOAT32: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "batch norm": lambda x, v: functional.batch_norm(
        x, x[0], x[0].abs(), x[1], None, False, 0.1, v
    ),
    "batch norm backward": lambda x, v: torch.ops.aten.native_batch_norm_backward(
        x, x, None, x[0], x[0].abs(), None, None, False, v, [True, False, False]
    )[0],
    "distance": lambda x, v: torch.dist(x, x.flip(0), v),
    "distances of pairs": lambda x, v: functional.pdist(x, v),
    "distances of rows": lambda x, v: torch.cdist(x, x.flip(0), v),
    "gradient of distances": lambda x, v: torch.ops.aten._cdist_backward(
        x[:, :3].contiguous(), x, x.flip(0), v, torch.cdist(x, x.flip(0), v)
    ),
    "gradient of pairs": lambda x, v: torch.ops.aten._pdist_backward(
        x[0, :3].contiguous(), x, v, functional.pdist(x, v)
    ),
    "deviation": lambda x, v: x.std(1, correction=v),
    "group norm": lambda x, v: functional.group_norm(x, 2, eps=v),
    "in-place statistics": lambda x, v: _statistics_after(x, v),
    "index add": lambda x, v: x.index_add(0, torch.tensor([1], device=x.device), x[:1], alpha=v),
    "layer norm": lambda x, v: functional.layer_norm(x, (4,), x[0], x[1], v),
    "linspace": lambda x, v: torch.linspace(-v, 3, 7, device=x.device),
    "linspace of integers": lambda x, v: torch.linspace(
        v, 30 * v, 7, device=x.device, dtype=torch.int32
    ),
    "logit": lambda x, v: torch.logit(x.sigmoid(), v / 5),
    "multi margin loss": lambda x, v: functional.multi_margin_loss(
        x, torch.tensor([0, 3, 1], device=x.device), margin=v
    ),
    "numbers for infinity": lambda x, v: torch.nan_to_num(x / x[0, 0].sub(x[0, 0]), v, v + 1, -v),
    "product and sum": lambda x, v: torch.addmm(x[:, :3], x, x.t(), alpha=v, beta=v + 1),
    "product alone": lambda x, v: torch.addmv(x[:, 0] / 0, x, x[0], alpha=v, beta=0.0),
    "norm": lambda x, v: torch.linalg.vector_norm(x, v, dim=1),
    "renormalized": lambda x, v: x.renorm(v, 0, 0.5),
    "renormalized rows": lambda x, v: functional.embedding(
        torch.tensor([0, 2], device=x.device), x.clone(), max_norm=v, norm_type=v + 1
    ),
    "search": lambda x, v: torch.searchsorted(x[0].sort().values, v),
    "variance": lambda x, v: x.var(correction=v),
}


def _statistics_after(x: torch.Tensor, momentum: float) -> torch.Tensor:
    mean, variance = torch.zeros(4, device=x.device), torch.ones(4, device=x.device)
    y = functional.batch_norm(x, mean, variance, None, None, True, momentum, 1e-3)
    return torch.cat([y, mean[None], variance[None]])


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_one_program_serves_floats_that_change(name: str) -> None:
    operator = IN_FLOAT32[name]
    x = X - Y + 0.1
    assert_one_program_serves(operator, x)


ORDERS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "distances of rows": lambda x, v: torch.cdist(x, x.flip(0), v),
    "gradient of distances": lambda x, v: torch.ops.aten._cdist_backward(
        torch.ones(3, 3, device=x.device), x, x.flip(0), v, torch.cdist(x, x.flip(0), v)
    ),
    "norm": lambda x, v: torch.linalg.vector_norm(x, v, dim=1),
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_program_for_all_orders_serves_those_with_forms_of_their_own(name: str) -> None:
    operator, x = ORDERS[name], X - 0.5
    x[0, 0], x[1] = 0, 0
    here = x.to("pjrt")
    programs.forget()
    for order in (1.5, 2.5, 0.0, 0.5, 1.0, 2.0, 3.0, math.inf, -math.inf):
        if order < 0 and name != "norm":
            continue
        torch.testing.assert_close(operator(here, order).cpu(), operator(x, order), equal_nan=True)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_the_host_computes_a_program_whose_numbers_are_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> None:
        raise PjrtError.from_code(13, "broken", plugin="cpu", function="Execute")

    programs.forget()
    x = torch.zeros(3, 4, device="pjrt")
    for value in (1.5, 2.5):
        x.uniform_(value, value + 1)
    monkeypatch.setattr(BufferLauncher, "launch", failing)
    for call in (lambda: x.uniform_(7.0, 8.0), lambda: functional.layer_norm(x, (4,), eps=0.5)):
        found = call().cpu()
        assert found.shape == (3, 4)
    assert (x.cpu() >= 7).all()
    programs.forget()


WHOLE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "clamp": lambda x, n: x.clamp(n, n + 2),
    "clamp max": lambda x, n: x.clamp_max(n),
    "floor division": lambda x, n: x // n,
    "fmod": torch.fmod,
    "left shift": lambda x, n: x << n,
    "remainder": lambda x, n: x % -n,
    "right shift": lambda x, n: x >> n,
    "roll": lambda x, n: x.roll(n),
    "roll rows and columns": lambda x, n: x.reshape(2, -1).roll((n, -n), (0, 1)),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("dtype", [torch.int16, torch.int64])
def test_one_program_serves_integers_that_change(name: str, dtype: torch.dtype) -> None:
    operator = WHOLE[name]
    x = torch.arange(-7, 9, dtype=dtype)
    here = x.to("pjrt")
    programs.forget()
    EAGER.forget()
    counts = []
    for value in range(1, 12):
        found = operator(here, value).cpu()
        torch.testing.assert_close(found, operator(x, value), rtol=0, atol=0)
        counts.append(len(EAGER.graphs))
    assert counts[7] == counts[-1]


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_dividing_by_zero_raises_whatever_was_compiled() -> None:
    x = torch.arange(5, device="pjrt")
    for value in range(1, 9):
        x // value, x % value
    for divide in (torch.floor_divide, torch.remainder, torch.fmod):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide(x, 0)


SCALARS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "dropout backward": lambda x, v: torch.ops.aten.native_dropout_backward(x, x > 0, v),
    "elu": functional.elu,
    "floor division": lambda x, v: x // v,
    "fmod": torch.fmod,
    "remainder": lambda x, v: x % v,
    "zero dimensions": lambda x, v: torch.stack([x[5] * v, x[5] + v, x[5] / v, x[0] - v]),
}


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_program_serves_scalars_that_change(name: str, dtype: torch.dtype) -> None:
    operator = SCALARS[name]
    x = torch.tensor([-2.0, -0.5, -0.0, 0.25, 0.75, 3.0, math.nan], dtype=dtype)
    here = x.to("pjrt")
    programs.forget()
    EAGER.forget()
    counts = []
    for value in (0.1, 0.7, 0.3, 1.1, 0.6, 2.3):
        found = operator(here, value).cpu()
        torch.testing.assert_close(found, operator(x, value), equal_nan=True)
        counts.append(len(EAGER.graphs))
    assert counts[2] == counts[-1]


DRAWN: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "bernoulli": torch.bernoulli,
    "bernoulli_": lambda x, v: x.clone().bernoulli_(v),
    "cauchy_": lambda x, v: x.clone().cauchy_(0.5, v),
    "dropout": functional.dropout,
    "exponential_": lambda x, v: x.clone().exponential_(v),
    "log_normal_": lambda x, v: x.clone().log_normal_(0.5, v),
    "normal": torch.normal,
    "normal_": lambda x, v: x.clone().normal_(v, v),
    "randint": lambda x, v: torch.randint(0, int(v * 100), (40,), device=x.device),
    "randint of many": lambda x, v: torch.randint(-3, int(v * 1e15), (40,), device=x.device),
    "uniform_": lambda x, v: x.clone().uniform_(-v, v),
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_seeds_decide_what_is_drawn_and_not_the_calls_before(name: str, dtype: torch.dtype) -> None:
    operator, x = DRAWN[name], torch.linspace(0.1, 0.9, 200, dtype=dtype).to("pjrt")

    def drawn(value: float) -> torch.Tensor:
        torch.manual_seed(3)
        return operator(x, value).cpu()

    programs.forget()
    EAGER.forget()
    values = [0.1 + 0.07 * step for step in range(12)]
    after_others = [drawn(value) for value in values]
    assert len(EAGER.graphs) <= 7
    for value, expected in zip(values[-2:], after_others[-2:], strict=True):
        programs.forget()
        assert torch.equal(drawn(value), expected)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_numbers_that_torch_refuses_are_refused_whatever_was_compiled() -> None:
    x = torch.ones(5, device="pjrt")
    for value in (0.25, 0.5, 0.75):
        x.normal_(0.0, value).bernoulli_(value).uniform_(0.0, value)
    with pytest.raises(RuntimeError, match=r"std -1\.5"):
        x.normal_(0.0, -1.5)
    with pytest.raises(RuntimeError, match=r"p=1\.5"):
        x.bernoulli_(1.5)
    with pytest.raises(RuntimeError, match=r"from=2 > to=1\.5"):
        x.uniform_(2.0, 1.5)


def test_parameters_of_distributions() -> None:
    for chance in (0.5, 0.25, 0.0, 0.75, 1.0):
        drawn = torch.empty(4000, device="pjrt").bernoulli_(chance)
        assert drawn.mean().item() == pytest.approx(chance, abs=0.05)
        kept = functional.dropout(torch.ones(4000, device="pjrt"), chance)
        assert kept.count_nonzero().item() / 4000 == pytest.approx(1 - chance, abs=0.05)
    for width in (0.5, 0.25, 4.0, 1.0):
        drawn = torch.empty(4000, device="pjrt").normal_(1.0, width)
        assert drawn.std().item() == pytest.approx(width, rel=0.1)
        drawn = torch.empty(4000, device="pjrt").uniform_(-width, width)
        assert drawn.abs().max().item() == pytest.approx(width, rel=0.05)


def test_a_range_has_a_storage_of_its_own_size() -> None:
    sizes = [105, 6, 40, 6, *range(50, 70)]
    found = [torch.arange(float(size), device="pjrt") for size in sizes]
    assert [item.untyped_storage().nbytes() for item in found] == [4 * size for size in sizes]
    assert [item.tolist() for item in found] == [list(range(size)) for size in sizes]


@pytest.mark.parametrize("mode", ["async", "fused"])
def test_results_follow_the_default_element_type(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = torch.arange(1, 4)
    mask = counts > 1

    def results(counts: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        return [counts / 2, counts.sqrt(), torch.where(mask, 1.5, 0.0), counts * 2.5j]

    before = torch.get_default_dtype()
    programs.forget()
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    try:
        # From the third call on the compiled module may find the program.
        for dtype in (torch.float32, torch.float32, torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            found = results(counts.to("pjrt"), mask.to("pjrt"))
            for one, expected in zip(found, results(counts, mask), strict=True):
                assert one.dtype == expected.dtype
                torch.testing.assert_close(one.cpu(), expected)
    finally:
        torch.set_default_dtype(before)
        programs.forget()


def test_the_signs_of_zeros_in_a_complex_number_count() -> None:
    for number in (complex(0.0, 0.0), complex(-0.0, 0.0), complex(0.0, -0.0)):
        full = torch.zeros(2, dtype=torch.complex64, device="pjrt").fill_(number).cpu()
        for part, wanted in ((full.real, number.real), (full.imag, number.imag)):
            assert math.copysign(1, part[0].item()) == math.copysign(1, wanted)

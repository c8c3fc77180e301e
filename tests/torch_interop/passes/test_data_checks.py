"""Indices that are out of range: constants always raise, all others where the user asks for it."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from pjrt_bridge.errors import OptionError
from pjrt_bridge.torch_interop.options import BackendOptions
from tests.torch_interop.helpers import assert_same, compiled, placements

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
]

X = torch.arange(12.0).reshape(4, 3)
INSIDE, ABOVE, BELOW = (torch.tensor([0, last]) for last in (2, 9, -9))


READING: dict[str, Callable[[torch.Tensor], Any]] = {
    "aten.index.Tensor": lambda i: X[i] * 2,
    "aten.index_select.default": lambda i: X.index_select(0, i) * 2,
    "aten.gather.default": lambda i: X.gather(0, i.reshape(1, 2)) * 2,
    "aten.take.default": lambda i: X.take(i * 2) * 2,
    "aten.embedding.default": lambda i: torch.nn.functional.embedding(i, X) * 2,
    "aten.scatter.value": lambda i: X.scatter(0, i.reshape(1, 2), 5.0),
    "aten.scatter_add.default": lambda i: X.scatter_add(0, i.reshape(1, 2), X),
    "aten.index_put.default": lambda i: X.index_put((i,), X[0]),
    "aten.searchsorted.Tensor": lambda i: torch.searchsorted(
        torch.tensor([0.0, 3.0]), X, sorter=i // 2
    ),
    "aten._embedding_bag_forward_only.default": lambda i: torch.nn.functional.embedding_bag(
        torch.tensor([0, 1, 2]), X, i
    ),
    "aten.put.default": lambda i: X.put(i * 2, X[0, :2]),
    "aten.index_copy.default": lambda i: X.index_copy(0, i, X[:2]),
}


@pytest.mark.parametrize("operator", READING)
@pytest.mark.parametrize("index", [ABOVE, BELOW], ids=["above", "below"])
def test_an_index_out_of_range_raises_with_operator_line_and_numbers(
    operator: str, index: torch.Tensor
) -> None:
    function = READING[operator]
    checked = compiled(function, check_indices=True)
    assert_same(checked(INSIDE), function(INSIDE))
    assert placements() == ["device"]
    with pytest.raises(IndexError) as raised:
        checked(index)
    said = str(raised.value)
    assert re.search(
        rf"{re.escape(operator)} at .*{__name__.rpartition('.')[2]}.py:\d+: .*"
        rf"found indices from -?\d+ to -?\d+, expected (0|-\d+) to \d+",
        said,
    ), said
    assert_same(checked(INSIDE), function(INSIDE))


@pytest.mark.parametrize("on_device", [False, True], ids=["graph", "device"])
def test_the_first_bag_begins_with_the_first_index(on_device: bool, pjrt_device: None) -> None:
    def bags(offsets: torch.Tensor) -> Any:
        place = offsets.device
        indices = torch.tensor([0, 1, 2]).to(place)
        return torch.nn.functional.embedding_bag(indices, X.to(place), offsets)

    right, wrong = torch.tensor([0, 1]), torch.tensor([1, 2])
    called = bags if on_device else compiled(bags, check_indices=True)
    place = "pjrt" if on_device else "cpu"
    torch.testing.assert_close(called(right.to(place)).cpu(), bags(right))
    with (
        pytest.raises(RuntimeError, match=r"offsets\[0\] has to be 0")
        if on_device
        else (pytest.raises(IndexError, match="found indices from 1 to 1, expected 0 to 0"))
    ):
        called(wrong.to(place)).cpu()


FROM_THE_END: dict[str, Callable[[torch.Tensor], Any]] = {
    "copied": lambda i: X.index_copy(0, i, X[:2]),
    "copied in place": lambda i: X.clone().index_copy_(0, i, X[:2]),
    "copied into a number": lambda i: X[0, 0].index_copy(0, i[:1], X[0, :1]),
    "added": lambda i: X.index_add(0, i, X[:2]),
    "selected": lambda i: X.index_select(0, i),
}


@pytest.mark.parametrize("kind", FROM_THE_END)
def test_a_negative_position_raises_where_eager_counts_none_from_the_end(kind: str) -> None:
    function = FROM_THE_END[kind]
    for run in (function, compiled(function, check_indices=True)):
        with pytest.raises((IndexError, RuntimeError)):
            run(torch.tensor([-1, 0]))


def test_filling_counts_negative_positions_from_the_end() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.index_fill(0, index, 3.0),
            x.index_fill(-1, index, x.sum()),
            x[0, 0].index_fill(0, index[:1], 2),
            x.t().index_fill(0, index[0], 2),
            x.long().index_fill(1, index, torch.tensor(2.5)),
        )

    checked = compiled(function, check_indices=True)
    index = torch.tensor([-1, -1])
    assert_same(checked(X, index), function(X, index))
    with pytest.raises(IndexError, match="expected -4 to 3"):
        checked(X, torch.tensor([-5, 0]))


def test_arguments_keep_their_values_where_a_check_raises() -> None:
    def function(x: torch.Tensor, index: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total += 1
        x[index] = 5.0
        return x.sum()

    checked = compiled(function, check_indices=True)
    x, total = X.clone(), torch.zeros(1 << 16)
    with pytest.raises(IndexError, match="from 0 to 9, expected -4 to 3"):
        checked(x, ABOVE, total)
    assert torch.equal(x, X)
    assert not total.any()
    checked(x, INSIDE, total)
    assert x[2].tolist() == [5.0] * 3
    assert bool((total == 1).all())
    assert placements() == ["device", "host"]


def test_gradients_pass_a_check() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return (x[index] ** 2).sum()

    checked = compiled(function, check_indices=True)
    expected, found = (X.clone().requires_grad_() for _ in range(2))
    function(expected, INSIDE).backward()
    checked(found, INSIDE).backward()
    assert_same(found.grad, expected.grad)
    assert placements() == ["device", "device"]
    with pytest.raises(IndexError):
        checked(found, ABOVE)


# Few enough for the device to compute all of them: PyTorch has words of its own.
@pytest.mark.parametrize("sizes", [(2, 3), (0, 5)])
def test_sizes_that_change_are_checked_and_no_index_is_none_out_of_range(
    sizes: tuple[int, ...],
) -> None:
    checked = torch.compile(
        lambda x, index: x[index] * 2,
        backend="pjrt",
        dynamic=True,
        options={"check_indices": True},
    )
    for size in sizes:
        index = torch.arange(size) % 3
        assert_same(checked(X, index), X[index] * 2)
        wrong = torch.cat([index, torch.tensor([4])])
        with pytest.raises(IndexError, match="expected -4 to 3"):
            checked(X, wrong)


WITHOUT_ELEMENTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "rows": lambda i: X[:, :0][i],
    "other rows": lambda i: X[:0][:, i],
    "no positions beside": lambda i: X[i[:1], i[:0]],
    "written": lambda i: X[:, :0].index_put((i,), X[0, :1]),
    "added": lambda i: X[:0].index_add(0, i, X[:2]),
    "copied": lambda i: X[:, :0].index_copy(0, i, X[:2, :0]),
    "filled": lambda i: X[:, :0].index_fill(0, i, 1.0),
    "copied to no row of nothing": lambda i: X[:0, :0].index_copy(0, i, X[:2, :0]),
    "no row of nothing filled": lambda i: X[:0, :0].index_fill(0, i, 1.0),
    "no column of nothing filled": lambda i: X[:0, :0].index_fill(1, i, 1.0),
}


@pytest.mark.parametrize("kind", WITHOUT_ELEMENTS)
@pytest.mark.parametrize("index", [INSIDE, ABOVE, BELOW], ids=["inside", "above", "below"])
def test_positions_at_which_nothing_is_read_or_written_are_not_out_of_range(
    kind: str, index: torch.Tensor
) -> None:
    function = WITHOUT_ELEMENTS[kind]
    checked = compiled(function, check_indices=True, fallback="host")
    assert_same(checked(index), function(index))


NO_PLACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "selected": lambda i: X[:0].index_select(0, i),
    "flat": lambda i: X[:0].take(i),
    "added to a line": lambda i: X[:0, 0].index_add(0, i, X[:2, 0]),
    "read of a line": lambda i: X[:0, 0][i],
    "filled": lambda i: X[:0].index_fill(0, i, 1.0),
}


@pytest.mark.parametrize("kind", NO_PLACE)
def test_a_dimension_without_elements_has_no_position(kind: str) -> None:
    function = NO_PLACE[kind]
    for run in (function, compiled(function, check_indices=True, fallback="host")):
        with pytest.raises((IndexError, RuntimeError)):
            run(INSIDE)


def test_rows_of_a_changing_width_have_no_position_where_there_are_none() -> None:
    def function(x: torch.Tensor, first: int) -> torch.Tensor:
        return x[:, first:][4:].index_fill(0, torch.tensor([2]), 1)

    checked = torch.compile(
        function, backend="pjrt", dynamic=True, options={"check_indices": True, "fallback": "host"}
    )
    for run in (function, checked):
        for first in (1, 2):
            with pytest.raises(RuntimeError, match="out of bounds"):
                run(X, first)
        assert tuple(run(X, 3).shape) == (0, 0)


def test_numbers_that_change_come_between_arguments_and_checks() -> None:
    def function(p: torch.Tensor, k: int) -> torch.Tensor:
        return p.index_fill(0, p, k).index_fill(0, torch.tensor([2]), 1)

    checked = compiled(function, check_indices=True)
    for number in (3, 4, 5):
        p = torch.tensor([1, 2, 3, 1, 0, 5])
        assert_same(checked(p, number), function(p, number))
    with pytest.raises(IndexError):
        checked(torch.tensor([1, 2, 3, 1, 0, 6]), 6)


IMPOSSIBLE = {
    "negative": ([-1.0, 2.0], "element < 0"),
    "infinite": ([math.inf, 2.0], "element < 0"),
    "nan": ([1.0, math.nan], "element < 0"),
    "zero": ([0.0, 0.0], "sum of probabilities"),
}


@pytest.mark.parametrize("weights", IMPOSSIBLE)
@pytest.mark.parametrize("draws", [1, 2])
def test_impossible_probabilities_raise_without_being_asked_to(weights: str, draws: int) -> None:
    run = compiled(lambda p: torch.multinomial(p * 1.0, draws, replacement=True) + 0)
    assert run(torch.tensor([[0.0, 1.0]])).tolist() == [[1] * draws]
    values, reason = IMPOSSIBLE[weights]
    with pytest.raises(RuntimeError, match=f"aten.multinomial.*{reason}"):
        run(torch.tensor([values]))
    assert run(torch.tensor([[2.0, 0.0]])).tolist() == [[0] * draws]
    assert placements() == ["device"]


REFUSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "bernoulli": (torch.bernoulli, "p_in >= 0"),
    "bernoulli in place": (lambda p: torch.ones(3).bernoulli_(p), "p_in >= 0"),
    "Bernoulli": (lambda p: torch.distributions.Bernoulli(p).sample(), "probs|p_in >= 0"),
    "deviations": (lambda p: torch.normal(0.0, p), "std >= 0"),
    "means and deviations": (lambda p: torch.normal(p.abs(), p), "std >= 0"),
    "input": (lambda p: functional.binary_cross_entropy(p, p.isfinite() * 0.5), "of input"),
    "target": (lambda p: functional.binary_cross_entropy(p.isfinite() * 0.5, p), "of target"),
    "sum": (lambda p: functional.binary_cross_entropy(p, p * 0, reduction="sum"), "of input"),
}
"""Functions that PyTorch refuses for some values, and what it says."""


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("wrong", [-1.0, math.nan])
@pytest.mark.parametrize("name", REFUSED)
def test_values_that_an_operator_refuses_raise_without_being_asked_to(
    name: str, wrong: float, dynamic: bool
) -> None:
    function, reason = REFUSED[name]
    run = torch.compile(function, backend="pjrt", dynamic=dynamic)
    right = torch.tensor([0.0, 0.5, 1.0])
    assert run(right).shape == function(right).shape
    for either in (function, run):
        with pytest.raises((RuntimeError, ValueError), match=reason):
            either(torch.tensor([0.0, wrong, 1.0]))
    assert run(right).isfinite().all()
    assert set(placements()) == {"device"}


def test_gradients_of_losses_whose_values_are_checked() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy(x, torch.tensor([0.0, 1.0, 1.0]))

    grads = []
    for run in (function, compiled(function)):
        x = torch.tensor([0.25, 0.5, 1.0], requires_grad=True)
        run(x).backward()
        grads.append(x.grad)
        wrong = torch.tensor([0.25, 1.5, 1.0], requires_grad=True)
        with pytest.raises(RuntimeError, match="of input"):
            run(wrong)
    assert_same(*grads)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.histc(x, 4),
        lambda x: torch.histogram(x, 4)[0],
        lambda x: torch.histogramdd(x[:, None], [4])[0],
    ],
)
def test_what_is_counted_between_its_extremes_is_finite(
    function: Callable[[torch.Tensor], torch.Tensor], number: float
) -> None:
    on_device = compiled(function)
    x = torch.tensor([1.0, 2.0, 4.0])
    assert_same(on_device(x), function(x))
    wrong = torch.tensor([1.0, number, 4.0])
    for run in (function, on_device):
        with pytest.raises(RuntimeError, match="not finite"):
            run(wrong)


def test_numbers_outside_of_a_given_range_are_not_counted() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.histc(x, 4, 0, 3) + torch.histogram(x, 4, range=(0.0, 3.0))[0]

    x = torch.tensor([1.0, float("nan"), float("inf")])
    assert_same(compiled(function)(x), function(x))


def test_probabilities_are_checked_after_a_call_that_writes_into_an_argument() -> None:
    def function(p: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(1)
        return torch.multinomial(p * 1.0, 1)

    run, cache = compiled(function), torch.zeros(2)
    assert run(torch.tensor([0.0, 1.0]), cache).tolist() == [1]
    with pytest.raises(RuntimeError, match="sum of probabilities"):
        run(torch.zeros(2), cache)
    assert cache.tolist() == [2, 2]
    assert placements() == ["device"]


def test_what_is_always_checked_divides_no_graph_that_writes_into_an_argument() -> None:
    def written(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.masked_scatter_(mask, values).sum()

    on_device = compiled(written, fallback="error")
    mask, values = torch.tensor([True, False, True]), torch.tensor([3.0, 4.0])
    found, expected = torch.zeros(3), torch.zeros(3)
    assert_same(on_device(found, mask, values), written(expected, mask, values))
    assert_same(found, expected)
    with pytest.raises(RuntimeError, match="source < number of ones in mask"):
        on_device(found, mask, values[:1])


def test_ignored_targets_are_not_out_of_range() -> None:
    def function(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(scores, target)

    checked = compiled(function, check_indices=True)
    target = torch.tensor([0, -100, 2, 1])
    assert_same(checked(X, target), function(X, target))
    with pytest.raises(IndexError, match="from 0 to 3, expected 0 to 2"):
        checked(X, torch.tensor([0, -100, 3, 1]))


CONSTANTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x[[0, 9]] * 2,
    lambda x: x[torch.tensor([0, 9])] * 2,
    lambda x: x.index_select(0, torch.tensor([0, 9])) * 2,
]


@pytest.mark.parametrize("function", CONSTANTS)
def test_constants_raise_without_being_asked_to(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(IndexError):
        function(X)
    with pytest.raises(IndexError):
        compiled(function, fallback="host")(X)


def test_the_user_can_have_nothing_checked() -> None:
    taken = compiled(lambda x, index: x[index] * 2, check_indices=False)
    assert_same(taken(X, ABOVE), X[torch.tensor([0, 3])] * 2)


@pytest.mark.parametrize("value", [1, None, "all"])
def test_the_option_is_true_or_false(value: object) -> None:
    with pytest.raises(OptionError, match=f"check_indices: found {value!r}, expected True"):
        BackendOptions.parse({"check_indices": value}, None)


DIVISIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floor": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "of a number": lambda x, y: 5 % y + x,
}


@pytest.mark.parametrize("division", DIVISIONS)
def test_integers_divided_by_zero_raise_as_in_eager(division: str) -> None:
    function = DIVISIONS[division]
    checked = compiled(function, check_indices=True)
    x, good, bad = torch.arange(4), torch.tensor([1, -2, 3, 4]), torch.tensor([1, 0, 3, 4])
    assert_same(checked(x, good), function(x, good))
    assert placements() == ["device"]
    for run in (function, checked):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            run(x, bad)
    assert_same(checked(x, good), function(x, good))
    real = x.float(), bad.float()
    assert_same(checked(*real), function(*real))


BY_ZERO: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "number": lambda x: x % 0,
    "constant": lambda x: torch.fmod(x, torch.tensor(0)),
    "element of a constant": lambda x: x // torch.tensor([1, 0, 2]),
    "filled": lambda x: torch.div(x, torch.zeros_like(x), rounding_mode="trunc"),
    "in place": lambda x: x.clone().remainder_(0),
}


@pytest.mark.parametrize("function", BY_ZERO.values(), ids=BY_ZERO)
def test_a_division_by_a_zero_that_the_graph_holds_always_raises(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.compile(function, backend="pjrt")(torch.arange(3))


@pytest.mark.parametrize("divide", [torch.remainder, torch.fmod, torch.floor_divide])
def test_a_division_by_the_number_zero_raises_on_the_device(
    divide: Callable[[torch.Tensor, int], torch.Tensor],
) -> None:
    x = torch.arange(4, device="pjrt")
    for by in (0, 3, 0):
        if by:
            assert_same(divide(x, by).cpu(), divide(x.cpu(), by))
            continue
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide(x, by)


@pytest.mark.parametrize("name", ["embedding", "embedding_bag"])
def test_the_first_row_that_a_table_does_not_have(name: str) -> None:
    look_up = getattr(torch.nn.functional, name)
    call = torch.compile(lambda index: look_up(index, X), backend="pjrt")
    last = torch.tensor([[0, 3]])
    torch.testing.assert_close(call(last), look_up(last, X))
    for outside in (4, -1):
        with pytest.raises((IndexError, RuntimeError)) as eager:
            look_up(torch.tensor([[0, outside]]), X)
        with pytest.raises(eager.type):
            call(torch.tensor([[0, outside]]))


def test_as_many_values_are_written_as_a_mask_selects() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        made = x * 2
        made[mask] = values
        return made

    run = compiled(function)
    x, mask = torch.randn(4, 3), torch.tensor([True, False, True, False])
    for values in (torch.randn(2, 3), torch.randn(1, 3), torch.randn(3), torch.tensor(1.0)):
        torch.testing.assert_close(run(x, mask, values), function(x, mask, values))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        function(x, mask, torch.randn(3, 3))
    with pytest.raises(RuntimeError, match=r"index_put.*shape mismatch: the mask selects"):
        run(x, mask, torch.randn(3, 3))


def test_elements_that_a_mask_selects_are_written_with_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        made = x * 2
        made[x[:, 0] > 0] = x[x[:, 0] > 0].sin()
        return made

    run = torch.compile(function, backend="pjrt", options={"fallback": "host"})
    for length in (4, 6, 3, 7, 1, 4):
        for low in (-1, 1, -9):
            x = torch.linspace(low, 2, length * 3).view(-1, 3)
            torch.testing.assert_close(run(x), function(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_mask_takes_no_more_elements_than_there_are(dynamic: bool, in_place: bool) -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        x = x * 2
        return x.masked_scatter_(mask, source) if in_place else x.masked_scatter(mask, source)

    run = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for rows in (3, 5, 4):
        x, mask = torch.ones(rows, 4), torch.arange(4) > 1
        enough = torch.arange(2.0 * rows)
        assert_same(run(x, mask, enough), function(x, mask, enough))
        for one in (function, run):
            with pytest.raises(RuntimeError, match="elements of source < number of ones in mask"):
                one(x, mask, enough[1:])
        assert_same(run(x, mask & False, enough[1:]), x * 2)

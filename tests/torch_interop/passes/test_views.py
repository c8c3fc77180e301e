"""Results that are views of arguments and of intermediates, with sizes that change."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.combinations import combinations
from tests.torch_interop.helpers import leaves

pytestmark = pytest.mark.usefixtures("fresh")

Arguments = tuple[Any, ...]


def geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def memories(tensors: list[torch.Tensor]) -> list[int]:
    """For each tensor the first one in the same memory."""
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [addresses.index(address) for address in addresses]


def assert_as_eager(
    function: Callable[..., Any], calls: list[Callable[[], Arguments]], **kwargs: Any
) -> None:
    """Values, geometry, and who shares memory with whom, arguments included; call after call."""
    run = torch.compile(function, backend="pjrt", **kwargs)
    for arguments in calls:
        ours, theirs = arguments(), arguments()
        found, expected = leaves(run(*ours)), leaves(function(*theirs))
        assert list(map(geometry, found)) == list(map(geometry, expected))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
        given, kept = leaves(ours), leaves(theirs)
        for one, other in zip(given, kept, strict=True):
            assert torch.equal(one, other)
        assert memories(given + found) == memories(kept + expected)


def cached(cache: torch.Tensor, key: torch.Tensor, at: int) -> torch.Tensor:
    cache[:, at : at + 1] = key
    return cache[:, : at + 1]


def chunked(x: torch.Tensor, window: int) -> torch.Tensor:
    """Overlapping windows, as longformer makes them."""
    x = x.view(x.size(0), x.size(1) // (window * 2), window * 2, x.size(2))
    size, stride = list(x.size()), list(x.stride())
    size[1] = size[1] * 2 - 1
    stride[1] = stride[1] // 2
    return x.as_strided(size=size, stride=stride)


def numbers(count: int) -> torch.Tensor:
    return torch.arange(float(count))


def apart(x: torch.Tensor, stride: int) -> Any:
    """Copied into memory with gaps, which are seen in a view of it."""
    made = torch.empty_strided(x.shape, (stride, 1))
    made.copy_(x)
    made[0] = x[1]
    return made, made[1:], made.as_strided((2,), (stride,))


def scaled(x: torch.Tensor, by: float) -> Any:
    """Views of what a number is read for, and views of these; the last is alone in its memory."""
    made = x * by + by
    return made[:], made, made.split(3)[1][1:], (x - by)[4:6]


VIEWS: dict[str, tuple[Callable[..., Any], list[Callable[[], Arguments]]]] = {
    "slice from a number": (
        lambda x, n: x[n:],
        [lambda n=n: (numbers(9), n) for n in (6, 7, 2, 9, 0)],
    ),
    "written through a view": (
        lambda x: x.flatten()[1:].zero_(),
        [lambda n=n: (numbers(3 * n).view(3, n)[2:],) for n in (4, 3, 5)],
    ),
    "elements of another type": (
        lambda x, n: x[n:].view(torch.int32),
        [lambda n=n: (numbers(9), n) for n in (6, 7, 2, 9, 0)],
    ),
    "elements of another type of what was written": (
        lambda x, n: (x.sub_(n)[n:].view(torch.int32), x[1:].view(torch.int32).chunk(2)),
        [lambda n=n: (numbers(9), n) for n in (6, 7, 2, 0)],
    ),
    "chunk": (lambda x: x.chunk(2), [lambda n=n: (numbers(n),) for n in (8, 10, 6, 7, 2)]),
    "half of the columns": (
        lambda x: x[:, : x.shape[1] // 2],
        [lambda n=n: (numbers(3 * n).view(3, n),) for n in (8, 10, 6, 7)],
    ),
    "narrow": (
        lambda x, n: x.narrow(0, n, 2),
        [lambda n=n: (numbers(9), n) for n in (1, 2, 5, 6)],
    ),
    "in place on a slice": (
        lambda x, n: x[n:].add_(1),
        [lambda n=n: (numbers(9), n) for n in (1, 2, 5, 6)],
    ),
    "cache": (
        cached,
        [lambda n=n: (torch.zeros(2, 8, 3), torch.ones(2, 1, 3), n) for n in (1, 2, 3, 6)],
    ),
    "windows": (
        chunked,
        [lambda n=n: (numbers(6 * n).view(2, n, 3), 2) for n in (8, 12, 16, 24)],
    ),
    "argument of a view with an offset": (
        lambda x, n: (x[n:], x.t()),
        [lambda n=n: (numbers(40).view(8, 5)[2:], n) for n in (1, 2, 3, 4)],
    ),
    "slice of an intermediate": (
        lambda x, n: (x + 1)[n:],
        [lambda n=n: (numbers(9), n) for n in (1, 2, 5, 6)],
    ),
    "parts of an intermediate": (
        lambda x: (x * 2).split(3),
        [lambda n=n: (numbers(n),) for n in (9, 10, 11, 3)],
    ),
    "memory with gaps": (
        apart,
        [lambda n=n: (numbers(2 * n).view(n, 2), n) for n in (4, 5, 6)],
    ),
    "conjugated": (
        lambda x: (x.conj(), (x * 2).conj()[1:]),
        [lambda n=n: (torch.complex(numbers(n), numbers(n) + 1),) for n in (3, 4, 5)],
    ),
    "another type": (
        lambda x: (x.view(torch.int32)[1:], (x * 2).view(torch.int32)[1:]),
        [lambda n=n: (numbers(n),) for n in (3, 4, 5)],
    ),
    "expanded": (
        lambda x, n: (x.expand(n, -1), (x + 1).expand(n, -1)),
        [lambda n=n: (numbers(3), n) for n in (2, 3, 4)],
    ),
    "scaled by a number that changes": (
        scaled,
        [lambda by=by, n=n: (numbers(n), by) for by, n in ((1, 9), (-0.5, 9), (2.5, 8), (0.1, 9))],
    ),
    "argument and the old value of a written one": (
        lambda x, y: (x.add_(y), y[1:], x[1:]),
        [lambda n=n: (numbers(n), numbers(n)) for n in (3, 4, 5)],
    ),
}


DYNAMIC = {"automatic": None, "dynamic": True, "static": False}
OPTIONS: dict[str, dict[str, Any]] = {
    "device": {},
    "divided": {"host_ops": ["aten.add", "aten.slice_scatter"]},
    "buckets": {"buckets": [4, 16, 64]},
}


# `make test` has each view with each option, each view with each way, and each of both together.
@pytest.mark.parametrize(
    ("view", "dynamic", "options"),
    combinations({view: view for view in VIEWS}, DYNAMIC, OPTIONS),
)
def test_views_are_those_of_eager(view: str, dynamic: bool | None, options: dict[str, Any]) -> None:
    function, calls = VIEWS[view]
    assert_as_eager(function, calls, dynamic=dynamic, options=options)


def test_views_of_arguments_that_require_gradients() -> None:
    run = torch.compile(lambda x, n: x[n:], backend="pjrt")
    for start in (1, 2, 3, 6):
        x = numbers(9).requires_grad_()
        found = run(x, start)
        assert torch.equal(found, x[start:])
        (found * found.detach()).sum().backward()
        expected = torch.cat([torch.zeros(start), x.detach()[start:]])
        assert x.grad is not None
        assert torch.equal(x.grad, expected)


def test_a_view_before_a_graph_break() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        part = x[:, n:]
        torch._dynamo.graph_break()
        return part + 1

    assert_as_eager(function, [lambda n=n: (numbers(24).view(3, 8), n) for n in (1, 2, 3, 6)])


def test_arguments_that_overlap_and_are_written_into() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y.sum())
        return x

    def overlapping() -> Arguments:
        whole = numbers(9)
        return whole[2:8], whole[:6]

    assert_as_eager(function, [overlapping, overlapping])


def test_a_copy_that_tracing_drops_keeps_the_value_before_a_write() -> None:
    # With one group the decomposition of the operator is a chain of views of its argument.
    def function(x: torch.Tensor) -> torch.Tensor:
        before = torch.channel_shuffle(x, 1)
        x.add_(1)
        return before

    assert_as_eager(function, [lambda: (numbers(24).view(2, 3, 4),)] * 2)


def test_a_result_that_backward_needs_knows_writes_through_its_views() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x.exp()
        return y.sum(), y.detach().view(-1)[:3]

    x = numbers(4).requires_grad_()
    total, view = torch.compile(function, backend="pjrt")(x)
    view.mul_(100)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_views_of_arguments_alone_start_no_program() -> None:
    x = numbers(4)
    part, same = torch.compile(lambda x: (x[1:], x), backend="pjrt")(x)
    assert same is x
    assert part.data_ptr() == x.data_ptr() + 4
    (graph,) = compiled_graphs()
    assert (graph.on_device, graph.operations, graph.fallback_reasons) == (0, 0, ())


def test_the_same_view_twice_is_one_tensor() -> None:
    def function(x: torch.Tensor) -> Any:
        part = (x + 1)[1:]
        return part, part

    one, other = torch.compile(function, backend="pjrt")(numbers(4))
    assert one is other


def a_base_and_a_row(x: torch.Tensor) -> list[torch.Tensor]:
    made = torch.zeros_like(x)
    return [made, made[0], made[1:].t()]


def rows_without_their_base(x: torch.Tensor) -> list[torch.Tensor]:
    made = x + 1
    return [made[0], made[1:].t(), made[0]]


def rows_of_two_bases(x: torch.Tensor) -> list[torch.Tensor]:
    return [(x + 1)[:1], (x + 1)[1:]]


def parts(x: torch.Tensor) -> list[torch.Tensor]:
    return [*(x + 1).split(2)]


def parts_of_numbers(x: torch.Tensor) -> list[torch.Tensor]:
    made = torch.complex(x, x + 1)
    return [made, made.conj(), torch.view_as_real(made)[0], made.view(-1)[1:]]


def relations(results: list[torch.Tensor], weight: torch.Tensor) -> list[Any]:
    """Which results are views of which, and what becomes of them when one is written into."""
    bases = [item._base for item in results]
    found: list[Any] = [
        (item._is_view(), [base is other for other in (*results, *bases)])
        for item, base in zip(results, bases, strict=True)
    ]
    before = [item._version for item in results]
    try:
        results[0].mul_(weight)
        total = sum((item.abs().sum() for item in results if item.requires_grad), weight)
    except RuntimeError as error:
        return [*found, type(error)]
    states = [
        (item.requires_grad, item._version - version)
        for item, version in zip(results, before, strict=True)
    ]
    return [*found, *states, *torch.autograd.grad(total, weight)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.view_as_real(torch.complex(x, x))[:0, :, 1].clone(),
        lambda x: torch.empty_strided((0, 3), (6, 2)),
        lambda x: x[:0].t().clone(),
    ],
    ids=["with gaps", "made with gaps", "transposed"],
)
def test_results_without_elements_have_strides(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    run = torch.compile(function, backend="pjrt")
    for rows in (3, 1, 2):
        x = numbers(3 * rows).view(rows, 3)
        assert geometry(run(x)) == geometry(function(x))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [a_base_and_a_row, rows_without_their_base, rows_of_two_bases, parts, parts_of_numbers],
)
def test_autograd_knows_the_views_that_it_knows_in_eager(
    function: Callable[[torch.Tensor], list[torch.Tensor]], dynamic: bool, training: bool
) -> None:
    def both(x: torch.Tensor, trained: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        return function(x), trained * 2

    run = torch.compile(both, backend="pjrt", dynamic=dynamic)
    for rows in (4, 5):
        x, trained = numbers(3 * rows).view(rows, 3), torch.ones(2, requires_grad=training)
        weight = torch.tensor(3.0, requires_grad=True)
        found = relations(run(x, trained)[0], weight)
        expected = relations(both(x, trained)[0], weight)
        # Autograd refuses writes with gradients into views that a function of its own returns.
        if training and found[-1] is RuntimeError:
            expected = [*expected[: len(found) - 1], RuntimeError]
        assert found == expected


def test_views_are_known_to_graphs_that_are_given_them() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = torch.zeros_like(x)
        row = made[0]
        torch._dynamo.graph_break()
        row.view(-1)[1:].fill_(2)
        rows = made[1:]
        torch._dynamo.graph_break()
        rows.add_(y)
        return made

    x, y = numbers(12).view(4, 3), numbers(9).view(3, 3)
    torch.testing.assert_close(torch.compile(function, backend="pjrt")(x, y), function(x, y))


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_without_gradients_of_results_that_have_them(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y, z = torch.fmod(x, 3), x.exp().view(-1)
        lone = y.data.permute(1, 0)
        return [lone, y, z[..., :].detach(), z, lone[1:], z.view(torch.int32)[:1]]

    run = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for rows in (3, 4):
        given, kept = (torch.ones(rows, 2, requires_grad=True) for _ in range(2))
        found, expected = run(given), function(kept)
        assert memories(found) == memories(expected)
        for one, other in zip(found, expected, strict=True):
            assert one.requires_grad == other.requires_grad
            assert geometry(one) == geometry(other)
            torch.testing.assert_close(one, other)
        for results in (found, expected):
            results[0].fill_(2)
            torch.stack([item.sum() for item in results if item.requires_grad]).sum().backward()
        assert torch.equal(found[1], expected[1])
        torch.testing.assert_close(given.grad, kept.grad)

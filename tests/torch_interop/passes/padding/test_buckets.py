"""Sizes that only a call knows share compilations with options={"buckets": [...]}."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch._dynamo.decorators import mark_unbacked
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.errors import OptionError, ResourceExhausted
from pjrt_bridge.report.data import GraphReport
from pjrt_bridge.runtime import Executable
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.options import BackendOptions
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.rows import STEPS, chain
from tests.torch_interop.passes.padding.support import BUCKETS, assert_equal, bucketed

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
]


@pytest.fixture(autouse=True)
def sizes_that_depend_on_data() -> Iterator[None]:
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        yield


def parts() -> list[GraphReport]:
    """Compilations of parts of graphs for sizes that data decided."""
    return [graph for graph in compiled_graphs() if graph.within is not None]


W = torch.randn(4, 4)
TABLE = torch.randn(10, 3)


def rows(count: int, among: int = 20) -> torch.Tensor:
    """Random rows, of which so many begin with distinct positive numbers, in any places."""
    x = torch.randn(among, 4)
    x[:, 0] = -1
    x[torch.randperm(among)[:count], 0] = torch.arange(count) + 1.0
    return x


def by_nonzero(x: torch.Tensor) -> Any:
    index = (x[:, 0] > 0).nonzero().squeeze(1)
    y = F.layer_norm(x[index] @ W, (4,))
    return y.softmax(-1) * 2, index, y.abs().sum(1)


def by_boolean_index(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return (y.relu() @ W).sort(1), y.shape[0], y.to(torch.float64)


def by_masked_select(x: torch.Tensor) -> Any:
    return x[:, 0].masked_select(x[:, 0] > 0).sqrt() + 1


def by_unique(x: torch.Tensor) -> Any:
    values, inverse = torch.unique(x[:, 0].relu(), return_inverse=True)
    return values.sin() * 2, inverse + 1


def transposed(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0].t() * 3
    return y.contiguous(), W @ y, y.unsqueeze(0)


def pairs(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return y @ y.t() + torch.eye(y.shape[0])


def own_memory(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0] + 1
    return y, y[:, 1:], y.view(-1, 2, 2)


DATA = [by_nonzero, by_boolean_index, by_masked_select, by_unique, transposed, pairs, own_memory]


@pytest.mark.parametrize("function", DATA)
def test_sizes_up_to_a_bucket_share_a_compilation(function: Callable[..., Any]) -> None:
    run = bucketed(function)
    for size in (*range(9), 3, 8, 0):
        x = rows(size - 1 if function is by_unique and size else size)
        assert_equal(run(x), function(x))
    assert len(parts()) == len(BUCKETS)
    assert all(graph.on_device == len(graph.segments) for graph in parts())


def test_sizes_beyond_the_last_bucket_are_compiled_as_they_are() -> None:
    run = bucketed(by_nonzero)
    for size in (5, 9, 8, 10, 16, 9, 7):
        x = rows(size)
        assert_equal(run(x), by_nonzero(x))
    assert len(parts()) == 1 + len({9, 10, 16})


def test_a_size_that_an_element_cannot_hold_wraps() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + x.shape[0]

    options = {"buckets": [256, 512]}
    on_device = torch.compile(function, backend="pjrt", dynamic=True, options=options)
    for size in (100, 300, 301):
        x = torch.arange(size).to(torch.int8)
        assert torch.equal(on_device(x), function(x))


def test_without_buckets_every_size_is_compiled() -> None:
    run = torch.compile(by_nonzero, backend="pjrt", fullgraph=True, options={"buckets": []})
    for size in (2, 3, 4):
        x = rows(size)
        assert_equal(run(x), by_nonzero(x))
    assert len(parts()) == 3


def test_two_sizes_at_once() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        one, other = x[x[:, 0] > 0], y[y[:, 0] > 0]
        return one @ other.t(), one.exp(), other.shape[0]

    run = bucketed(function)
    for first in (0, 1, 4, 5, 8):
        for second in (0, 2, 7, 9):
            x, y = rows(first), rows(second)
            assert_equal(run(x, y), function(x, y))
    # Each of two buckets with two buckets, and with 9.
    assert len(parts()) == 6


def test_a_number_that_data_decides() -> None:
    def function(x: torch.Tensor) -> Any:
        size = x.sum().item()
        return torch.arange(size)[:, None] * torch.ones(size, 3), size

    run = bucketed(function)
    for size in range(9):
        x = torch.tensor([size - 2, 2])
        assert_equal(run(x), function(x))
    assert len(parts()) == len(BUCKETS)


# -- sizes of arguments ----------------------------------------------------------------------------


def test_results_of_no_repetitions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.expand(0, -1, -1).clone()

    run = bucketed(function, dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, 3)
        assert_equal(run(x), function(x))


def test_other_arguments_are_written_into() -> None:
    def function(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(1)
        return x * total

    run = bucketed(function)
    expected, found = torch.zeros(4), torch.zeros(4)
    for size in (3, 5, 6):
        x = torch.randn(size, 4)
        torch._dynamo.mark_dynamic(x, 0)
        assert_equal(run(x, found), function(x, expected))
        assert torch.equal(found, expected)
    assert len(compiled_graphs()) == len(BUCKETS)


def test_results_are_the_users_to_write_into() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[x[:, 0] > 0] * 2

    x = rows(3).requires_grad_()
    found = bucketed(function)(x)
    found.mul_(3)
    found.sum().backward()
    assert torch.equal(x.grad, (x[:, :1] > 0).expand(-1, 4) * 6.0)


def test_results_that_share_memory_share_it() -> None:
    run = bucketed(own_memory)
    for size in (3, 6):
        whole, tail, square = run(rows(size))
        whole.zero_()
        assert not tail.any()
        assert not square.any()


def test_checks_of_sizes_see_the_true_ones() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] <= 7)
        torch._check(x.shape[0] != 2)
        return x.exp()

    run = bucketed(function)

    def call(size: int) -> None:
        x = torch.full((size, 4), 2.0)
        mark_unbacked(x, 0)
        assert_equal(run(x), x.exp())

    for size in (5, 6, 7):
        call(size)
    (graph,) = compiled_graphs()
    assert graph.on_device == 1
    with pytest.raises(RuntimeError, match=r"Runtime assertion failed .* Ne\(u0, 2\)"):
        call(2)
    call(3)


def test_copies_are_counted() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x[x[:, 0] > 0]
        return y.exp(), y.t() + 1

    run = bucketed(function)
    full = 8 * 4 * 4
    copied = []
    for size in (8, 6):
        run(rows(size))
        (graph,) = parts()
        copied.append(sum(segment.bytes_copied for segment in graph.segments))
        whole = compiled_graphs()[0]
        assert sum(segment.bytes_copied for segment in whole.segments) == copied[-1]
    assert copied == [0, full]


def test_what_the_device_fails_at_pytorch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> Any:
        index = (x[:, 0] > 0).nonzero()[:, 0]
        return TABLE[index % 2 + 0 * index], x[index].exp(), index // 3

    run = bucketed(function)
    run(rows(3))

    def fails(self: Executable, arguments: Any) -> Any:
        raise ResourceExhausted("full", code=8, plugin="cpu", function="Execute")

    monkeypatch.setattr(Executable, "submit", fails)
    for size in (0, 1, 2):
        x = rows(size)
        assert_equal(run(x), function(x))


# -- what is not padded ----------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "bins": (
        lambda y: torch.histc(y, 3),
        "aten.histc.default: its bins are between the extremes of the dimension",
    ),
    "vectors": (
        lambda y: torch.linalg.svd(y, full_matrices=True)[1],
        "aten._linalg_svd.default: it works along the dimension",
    ),
    "count": (
        lambda y: torch.arange(y.shape[0], dtype=torch.int8) + y.sum(),
        "aten.arange.start_step: it may count further than the element type can in the padding",
    ),
}


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_padded_is_compiled_as_it_is_and_says_why(name: str, dynamic: bool) -> None:
    function, reason = REFUSED[name]

    def by_data(x: torch.Tensor) -> Any:
        return function(x[x[:, 0] > 0])

    candidate = function if dynamic else by_data
    run = bucketed(candidate)
    for size in (3, 5, 2):
        x = rows(size, size if dynamic else 20)
        expected = candidate(x.clone())
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        assert_equal(run(x), expected)
    graphs = compiled_graphs() if dynamic else parts()
    assert len(graphs) == 3
    triggers = [graph.trigger or "" for graph in graphs[1:]]
    assert all(f"not padded to a bucket because of {reason}" in text for text in triggers)
    assert all(f"{__file__}:" in text for text in triggers)


def test_a_size_that_is_not_padded_keeps_no_other_from_it() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x[x[:, 0] > 0].exp(), torch.histc(y[y[:, 0] > 0], 3)

    run = bucketed(function)
    for first, second in ((1, 3), (2, 3), (4, 3), (4, 2)):
        x, y = rows(first), rows(second)
        assert_equal(run(x, y), function(x, y))
    graphs = parts()
    assert len(graphs) == 2
    assert "aten.histc.default" in (graphs[1].trigger or "")


@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(["marked"], [0, 5])
@example(["nearest"], [0, 2, 0, 1])
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    st.lists(st.integers(0, 10), min_size=2, max_size=4),
)
def test_random_graphs_compute_what_eager_does(steps: list[str], sizes: list[int]) -> None:
    torch.compiler.reset()
    steps_of = chain(steps)

    def function(x: torch.Tensor) -> Any:
        return steps_of(x[x[:, 0] > 0])

    run = bucketed(function)
    for size in sizes:
        x = rows(size)
        assert_same(run(x), function(x))
    # Some steps leave calls without rows as they are, and some divide the graph into parts.
    buckets = {next((bucket for bucket in BUCKETS if size <= bucket), size) for size in sizes}
    for count in Counter(part.name for part in parts()).values():
        assert count <= len(buckets) + (0 in sizes)


@pytest.mark.parametrize("buckets", [5, "64", [0], [-1, 2], [4, 4], [8, 4], [4.0], [True], {4}])
def test_impossible_buckets_are_refused(buckets: Any) -> None:
    with pytest.raises(OptionError, match=r"option buckets: found .*, expected 'auto'"):
        BackendOptions.parse({"buckets": buckets}, None)


def test_sizes_are_chosen_by_default() -> None:
    assert BackendOptions().buckets == "auto"
    assert BackendOptions.parse({"buckets": []}, None).buckets == ()
    assert BackendOptions.parse({"buckets": [1, 2]}, None).buckets == (1, 2)


POSITIONS: list[Callable[[torch.Tensor, int], Any]] = [
    lambda x, at: (x + 1)[at:] * 2,
    lambda x, at: (x + 1)[at],
    lambda x, at: torch.slice_scatter(x, x[:2] * 2, 0, at, at + 2),
    lambda x, at: torch.select_scatter(x * 2, x[1], 0, at),
]


@pytest.mark.parametrize("function", POSITIONS)
def test_positions_that_change_count_from_either_end(function: Callable[..., Any]) -> None:
    on_device = bucketed(function)
    for size, at in [(5, -3), (6, -4), (7, 2), (7, 1), (5, -130), (6, -131)]:
        x = torch.arange(3.0 * size).reshape(size, 3)
        if at >= -size or function is POSITIONS[0]:
            assert_same(on_device(x, at), function(x, at))

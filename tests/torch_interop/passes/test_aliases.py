"""Results that share memory with each other, as they do in eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")


def a_base_and_views(x: torch.Tensor) -> Any:
    y = x.exp()
    return y, y.t(), y[1], y.view(-1)[3:7:2], y.unsqueeze(0).expand(2, -1, -1)


def views_without_their_base(x: torch.Tensor) -> Any:
    y = x.exp()
    return y[0], y[1:], x + 1


def two_bases(x: torch.Tensor) -> Any:
    y, z = x.exp(), x.sin().t()
    return z[0], y[0], y[1], z[1], (x + 2)[1]


def a_view_of_another_type(x: torch.Tensor) -> Any:
    # In any other way of computing it the last bit may be another.
    y = x * 2
    return y, y.view(torch.int32)


def a_view_that_conjugates(x: torch.Tensor) -> Any:
    y = torch.complex(x, x + 1) * 2
    return y, y.conj(), y.conj().t(), y.t()


def the_same_twice(x: torch.Tensor) -> Any:
    y = x.exp()
    return y, y, y.t(), 1, True, None


FUNCTIONS = [
    a_base_and_views,
    views_without_their_base,
    two_bases,
    a_view_of_another_type,
    a_view_that_conjugates,
    the_same_twice,
]


def groups(results: Any) -> list[int]:
    """For each tensor the first result that shares its memory."""
    starts = [
        item.untyped_storage().data_ptr() if isinstance(item, torch.Tensor) else index
        for index, item in enumerate(results)
    ]
    return [starts.index(start) for start in starts]


@pytest.mark.parametrize("host_ops", [[], ["aten.exp"]], ids=["device", "host"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_share_what_they_share_in_eager(
    function: Callable[[torch.Tensor], Any], host_ops: list[str]
) -> None:
    x = torch.randn(4, 5)
    found, expected = compiled(function, host_ops=host_ops)(x), function(x)
    assert len(found) == len(expected)
    tensors = [item for item in found if isinstance(item, torch.Tensor)]
    assert_same(tensors, [item for item in expected if isinstance(item, torch.Tensor)])
    # Views that are more than an order of the same numbers are results of their own here.
    if function not in (a_view_of_another_type, a_view_that_conjugates):
        assert groups(found) == groups(expected)
    for item, other in zip(found, expected, strict=True):
        if not isinstance(item, torch.Tensor):
            assert item is other


def test_a_write_into_one_is_seen_in_the_others() -> None:
    y, transposed, row, *_ = compiled(a_base_and_views)(torch.randn(4, 5))
    y.fill_(3)
    assert bool((transposed == 3).all())
    row.add_(1)
    assert bool((transposed[:, 1] == 4).all())


def test_views_of_results_are_not_computed() -> None:
    compiled(a_base_and_views)(torch.randn(4, 5))
    (graph,) = compiled_graphs()
    assert dict(graph.segments[0].operators) == {"aten.exp.default": 1}


def test_a_part_with_all_elements_is_no_view() -> None:
    """So that nothing is left to do after the program."""

    def parts(x: torch.Tensor) -> Any:
        return (x + 1)[..., 0], (x * 2)[:, 0], (x * 3)[0]

    x = torch.randn(6, 4, 1)
    for given, views in ((x, [False, True, True]), (x[:1], [False, True, False])):
        found = compiled(parts)(given)
        assert_same(found, parts(given))
        assert [result._is_view() for result in found] == views


def test_a_base_that_is_saved_for_backward_with_its_view() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x.exp()
        return y, (y.t() * y.t()).sum()

    x = torch.randn(4, 5, requires_grad=True)
    total = compiled(function)(x)[1]
    total.backward()
    gradient, x.grad = x.grad, None
    function(x)[1].backward()
    assert_same(gradient, x.grad)


def test_results_live_as_long_as_one_of_them() -> None:
    run = compiled(views_without_their_base)
    x = torch.randn(4, 5)
    row = run(x)[0]
    for _ in range(20):
        run(torch.randn(4, 5))
    assert_same(row, x.exp()[0])


@torch.library.custom_op("pjrt_bridge_tests::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    """Its strides are others than its fake has, as those of some kernels are."""
    return x.t().contiguous().t() + 1


@turned.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@turned.register_autograd
def _(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient


@pytest.mark.parametrize("shape", [(3, 4), (1, 4)])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_views_of_what_has_other_strides_than_promised_share_memory(
    shape: tuple[int, int], requires_grad: bool
) -> None:
    def function(x: torch.Tensor) -> Any:
        y = turned(x)
        return y[:, 1:], y, y[0], y.view(-1), torch.complex(y, y).conj()[1:]

    x = torch.arange(float(shape[0] * shape[1])).view(shape).requires_grad_(requires_grad)
    options = {"host_ops": ["pjrt_bridge_tests.turned"]}
    found = torch.compile(function, backend="pjrt", options=options)(x)
    assert groups(found) == [0, 0, 0, 0, 4]
    with torch.no_grad():
        found[0].fill_(7)
    expected = (x + 1).detach()
    expected[:, 1:] = 7
    for view, same in zip(
        found, (expected[:, 1:], expected, expected[0], expected.view(-1)), strict=False
    ):
        assert torch.equal(view, same)


def test_calls_of_one_subgraph_do_not_share_memory() -> None:
    # Torch hands the fakes of the first call out again for the second.
    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2

    def function(x: torch.Tensor) -> torch.Tensor:
        return block(block(x))

    ours, theirs = (torch.arange(4.0, requires_grad=True) for _ in range(2))
    torch.compile(function, backend="pjrt", fullgraph=True)(ours).exp().sum().backward()
    function(theirs).exp().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)

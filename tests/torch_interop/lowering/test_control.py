"""Control flow runs on the device, as one program, forward and backward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.experimental.control_flow import map as torch_map
from torch._dynamo import config as dynamo_config
from torch._higher_order_ops import scan, while_loop

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.mixed import operators

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
    # Torch's own, while it traces scans.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]


def on_device(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    options = {"options": {"fallback": "error"}, **options}
    return torch.compile(function, backend="pjrt", fullgraph=True, **options)


def check(function: Callable[..., Any], *arguments: torch.Tensor, **options: Any) -> None:
    """Results and gradients are eager's."""
    ours = [item.clone().requires_grad_(item.is_floating_point()) for item in arguments]
    theirs = [item.clone().requires_grad_(item.is_floating_point()) for item in arguments]
    found, expected = on_device(function, **options)(*ours), function(*theirs)
    assert_same(found, expected)
    roots = [item for item in torch.utils._pytree.tree_leaves(expected) if item.requires_grad]
    if roots:
        sum(item.sin().sum() for item in roots).backward()
        leaves = torch.utils._pytree.tree_leaves(found)
        sum(item.sin().sum() for item in leaves if item.requires_grad).backward()
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one.grad, other.grad)


def branches(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x, y: x.sin() * y, lambda x, y: x.cos(), (x, y))


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign: int) -> None:
    check(branches, sign * torch.rand(4, 3), torch.randn(4, 3))


def test_the_branch_is_chosen_in_each_call() -> None:
    run = on_device(branches)
    for sign in (1, -1, 1):
        x, y = sign * torch.rand(4), torch.randn(4)
        assert_same(run(x, y), branches(x, y))
    assert [graph.name for graph in compiled_graphs()] == ["inference"]


def test_conds_with_other_branches_are_told_apart() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        a = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return a + torch.cond(x.sum() > 0, lambda x: x.exp(), lambda x: x.tanh(), (x,))

    check(function, torch.rand(3))


def test_cond_in_cond() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.max() > 0.5, lambda x: x * 2, lambda x: x * 3, (x,))

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, inner, lambda x: x.exp(), (x,))

    for values in ([0.9, 0.1], [0.2, 0.1], [-0.9, 0.1]):
        check(function, torch.tensor(values))


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_while_loop(turns: int) -> None:
    def function(n: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        return while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * 0.5 + y), (n, x))

    with torch.no_grad():
        arguments = torch.tensor(turns), torch.randn(3), torch.randn(3)
        assert_same(on_device(function)(*arguments), function(*arguments))


def test_a_loop_until_the_data_says_so() -> None:
    def function(x: torch.Tensor) -> Any:
        return while_loop(
            lambda x, n: x.norm() < 100, lambda x, n: (x * 2, n + 1), (x, torch.zeros(()).long())
        )

    run = on_device(function)
    with torch.no_grad():
        for scale in (1, 10, 1000):
            x = torch.ones(4) * scale
            assert_same(run(x), function(x))


def test_scan() -> None:
    def function(init: torch.Tensor, xs: torch.Tensor, w: torch.Tensor) -> Any:
        def step(carry: torch.Tensor, x: torch.Tensor) -> Any:
            new = torch.sin(carry) * w + x
            return new, new * 2

        return scan(step, init, xs)

    check(function, torch.randn(2, 3), torch.randn(5, 2, 3), torch.randn(2, 3))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [torch.tanh, torch.sigmoid, torch.exp])
def test_scan_whose_results_are_needed_for_gradients(
    function: Callable[[torch.Tensor], torch.Tensor], dynamic: bool
) -> None:
    def combine(carry: torch.Tensor, x: torch.Tensor) -> Any:
        following = function(carry - x)
        return following, following * 1

    check(lambda x, y: scan(combine, x, y), torch.randn(3), torch.randn(5, 3), dynamic=dynamic)


def test_scan_from_the_end_over_another_dimension() -> None:
    def function(xs: torch.Tensor) -> Any:
        return scan(lambda c, x: (c + x, c * x), torch.zeros(3), xs, dim=1, reverse=True)

    with torch.no_grad():
        xs = torch.randn(3, 4)
        assert_same(on_device(function)(xs), function(xs))


@pytest.mark.parametrize("length", [1, 4])
def test_map(length: int) -> None:
    check(
        lambda xs, w: torch_map(lambda x, w: (x @ w).sin(), xs, w),
        torch.randn(length, 2, 3),
        torch.randn(3, 3),
    )


def test_a_subgraph_that_is_compiled_once() -> None:
    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2

    check(lambda x: block(block(x)), torch.randn(4))


def test_sizes_that_differ_from_call_to_call() -> None:
    run = on_device(branches, dynamic=True)
    for size in (3, 5, 4):
        x, y = torch.randn(size, 2), torch.randn(size, 2)
        assert_same(run(x, y), branches(x, y))


def reasons(function: Callable[..., Any], x: torch.Tensor, **options: Any) -> dict[str, str]:
    run = torch.compile(function, backend="pjrt", fullgraph=True, options=options)
    assert_same(run(x), function(x))
    return {
        item.operator: item.reason for graph in compiled_graphs() for item in graph.fallback_reasons
    }


def test_an_operator_within_that_does_not_lower_is_named() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(
            x.sum() > 0, lambda x: operators.squared(x).sum(0), lambda x: x.sum(0), (x,)
        )

    found = reasons(function, torch.ones(3, 3))
    assert found["higher_order.cond"] == (
        "pjrt_test.squared.default within it: no lowering to StableHLO exists for this operator"
    )


@pytest.mark.parametrize("kind", ["map", "scan", "while_loop"])
def test_a_check_of_linear_algebra_within(kind: str) -> None:
    # Torch makes the token of its own tracing a constant of the graph.
    def step(y: torch.Tensor) -> torch.Tensor:
        return operators.squared(torch.linalg.inv(y).contiguous())

    def function(xs: torch.Tensor) -> Any:
        if kind == "map":
            return torch_map(step, xs)
        if kind == "scan":
            return scan(lambda carry, y: ((carry + 1).clone(), step(y)), xs[0], xs)[1]
        return while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, step(y)), (xs.new_zeros(()), xs))

    assert len(reasons(function, torch.eye(3).repeat(2, 1, 1) * 2)) == 1


def test_an_operator_within_that_the_user_wants_on_the_host() -> None:
    found = reasons(
        lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).exp(),
        torch.ones(3),
        host_ops=["aten.sin"],
    )
    assert found == {"higher_order.cond": "options={'host_ops': ...} names it"}


def test_a_carried_number_that_depends_on_data_stays_on_the_host() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x[x > 0].sum(), lambda x: x.sum(), (x,))

    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
        found = reasons(function, torch.ones(3))
    assert "higher_order.cond" in found

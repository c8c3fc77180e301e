"""Custom operators, which stay in PyTorch, between work on the device."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same, custom_operators
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import check, device_segments, mixed

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


@pytest.fixture(scope="module", autouse=True)
def plain_operators() -> Iterator[None]:
    """Operators that `custom_op` cannot define."""
    made = {
        "maybe(Tensor x, bool second) -> (Tensor, Tensor?)": (
            lambda x, second: (x + 1, x + 2 if second else None),
            lambda x, second: (torch.empty_like(x), torch.empty_like(x) if second else None),
        ),
        "nothing(Tensor x) -> ()": (lambda x: None, lambda x: None),
        "keyed(Tensor x, *, Tensor other, int[2] shift, ScalarType dtype) -> Tensor": (
            lambda x, *, other, shift, dtype: (x.roll(shift, (0, 1)) - other).to(dtype),
            lambda x, *, other, shift, dtype: torch.empty_like(x, dtype=dtype),
        ),
        "one_of(Tensor[] xs, int index) -> Tensor": (
            lambda xs, index: xs[index] * 1,
            lambda xs, index: torch.empty_like(xs[index]),
        ),
    }
    with custom_operators("pjrt_plain", made):
        yield


def test_functional() -> None:
    check(lambda x: ops.twice(x.exp()).sin() + x, torch.randn(4, 3), segments=2)


def test_the_only_operator() -> None:
    run = mixed(lambda x: ops.twice(x))
    assert_same(run(torch.ones(3)), torch.full((3,), 2.0))
    assert sum(device_segments()) == 0


MEMORIES = [ops.turned, ops.misaligned, ops.gappy, ops.spread]


@pytest.mark.parametrize("shape", [(3, 4), (17, 16), (0, 4)])
def test_memory_of_every_kind(shape: tuple[int, int]) -> None:
    def of(y: Tensor) -> list[Tensor]:
        return [y.cos(), y @ y.mT, y.sum(0), y.t() + 1]

    def function(x: Tensor) -> list[Tensor]:
        found = [result for operator in MEMORIES for result in of(operator(x.exp()))]
        # What is made of these lies as it was promised, and in eager as they lie.
        unlike = of(ops.unlike_its_promise(x.exp()))
        return [*found, *(result.contiguous() for result in unlike)]

    # Of no elements only the sums are worth a launch.
    check(function, torch.randn(shape), segments=2 if 0 not in shape else 1)


def test_memory_of_every_kind_that_is_returned() -> None:
    def function(x: Tensor) -> list[Tensor]:
        return [x.cos(), *(operator(x.exp()) for operator in MEMORIES)]

    check(function, torch.randn(3, 4), memory=True)


VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.t(),
    lambda x: x[:, 1:3],
    lambda x: x[1:],
    lambda x: x[::2, ::2],
    lambda x: x[:, :1].expand(-1, 5),
    lambda x: x.diagonal(),
    lambda x: x.reshape(-1)[3:],
    lambda x: x.unfold(0, 2, 1),
    lambda x: x[0, 0],
]


@pytest.mark.parametrize("on_device", [True, False])
def test_operators_see_the_strides_that_eager_shows(on_device: bool) -> None:
    def function(x: Tensor) -> list[Tensor]:
        y = x.exp() if on_device else x
        seen = [ops.strides(view(y)) for view in VIEWS]
        return [*seen, *(ops.twice(view(y)) + 1 for view in VIEWS)]

    check(function, torch.randn(4, 6))


def test_several_results_lists_and_plain_arguments() -> None:
    def function(x: Tensor, extra: Tensor) -> list[Tensor]:
        first, second = ops.pieces(x.exp(), [1, 3], 0.5, False, None)
        third, fourth = ops.pieces(x.cos(), [2, 2], -1.5, True, extra * 2)
        return [first + 1, second.sum(0) * third, fourth]

    check(function, torch.randn(4, 3), torch.randn(3), segments=2)


def test_results_of_which_some_are_used() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        _, variance, place = ops.moments(x.exp())
        unused = ops.moments(x.cos())
        return variance * 2, x.flatten()[place], unused[0]

    check(function, torch.randn(4, 3), segments=1)


def test_a_result_that_is_none() -> None:
    def function(x: Tensor) -> tuple[Any, ...]:
        one, none = torch.ops.pjrt_plain.maybe(x.exp(), False)
        two, some = torch.ops.pjrt_plain.maybe(x.cos(), True)
        return one.sin(), none, two.sin(), some.sin()

    check(function, torch.randn(4, 3), segments=2)


def test_keyword_arguments_and_tensor_lists() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.ops.pjrt_plain.keyed(x.exp(), other=x.cos(), shift=[1, 2], dtype=torch.float64)
        return torch.ops.pjrt_plain.one_of([y * 2, y.sin(), y], 1) + 1

    check(function, torch.randn(4, 3), segments=2)


def test_an_operator_that_counts() -> None:
    def function(x: Tensor) -> Tensor:
        return x.cos() * ops.count(x.exp() - 1)

    check(function, torch.randn(4, 3))


@pytest.mark.parametrize("source", ["argument", "device", "view"])
def test_an_operator_that_writes(source: str) -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        target = {"argument": x, "device": x.exp(), "view": x[1:3]}[source]
        before = target * 2
        ops.add_into(target, y[: target.shape[0]].sin())
        return [before, target.cos(), x + 1]

    check(function, torch.randn(4, 3), torch.randn(4, 3), segments=2, memory=True)


def test_an_operator_that_writes_into_two() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        ops.swap(x, y)
        z = x - y
        ops.swap(y, z)
        return z.cos()

    check(function, torch.randn(4, 3), torch.randn(4, 3), segments=2)


def test_an_operator_that_writes_and_returns() -> None:
    def function(x: Tensor, seen: Tensor) -> Tensor:
        seen.add_(x.sum())
        total = ops.pop(x)
        return total.cos() + x.exp() + ops.pop(seen)

    check(function, torch.randn(4, 3), torch.zeros(1), segments=1)


def test_an_operator_that_writes_into_a_list() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        z = x.exp()
        ops.fill_all([x, z, y[0]], 3.0)
        return [x.cos() + z, y.sin()]

    check(function, torch.randn(3), torch.randn(2, 3))


def test_an_unused_operator_that_writes() -> None:
    """Its effect remains though nothing reads a result of it."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        ops.add_into(y, x.exp())
        return x.cos()

    check(function, torch.randn(4, 3), torch.randn(4, 3))


def test_gradients_through_the_formulas_of_operators() -> None:
    def step(run: Callable[..., Tensor]) -> list[Any]:
        torch.manual_seed(1)
        x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        loss = run(x, w)
        loss.backward()
        return [loss, x.grad, w.grad]

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (ops.squared((ops.twice(x) @ w).tanh()) + w.sum()).mean()

    run = mixed(function)
    for _ in range(2):
        assert_same(step(run), step(function))
    assert len(device_segments()) == 2
    assert all(device_segments())


def test_an_operator_without_a_formula_cuts_the_gradient() -> None:
    def step(run: Callable[..., Tensor]) -> Any:
        torch.manual_seed(1)
        x = torch.randn(5, 4, requires_grad=True)
        result = run(x)
        result.sum().backward()
        return [result, x.grad]

    def function(x: Tensor) -> Tensor:
        return x.exp() * ops.misaligned(x.detach()).cos()

    assert_same(step(mixed(function)), step(function))


def test_calls_keep_their_order() -> None:
    def function(x: Tensor) -> Tensor:
        a = ops.noted(x.exp(), "a")
        b = ops.noted(x, "b")
        c = ops.noted(a.cos(), "c")
        return a + b + c

    check(function, torch.randn(3), calls=1)
    assert sorted(ops.order) == ["a", "a", "b", "b", "c", "c"]


def test_what_writes_into_its_arguments_has_its_own_name() -> None:
    """Functionalization wraps such an operator into one of torch's."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x = x.exp()
        ops.add_into(x, y)
        return x.sin()

    run = mixed(function)
    args = torch.randn(3), torch.randn(3)
    with pytest.warns(HostFallbackWarning, match="pjrt_test.add_into"):
        assert_same(run(*args), function(*args))
    (graph,) = compiled_graphs()
    assert {reason.operator for reason in graph.fallback_reasons} == {"pjrt_test.add_into.default"}
    used = Counter(name for segment in graph.segments for name in segment.operators)
    assert "pjrt_test.add_into.default" in used
    assert not any("auto_functionalized" in name for name in used)
    torch.compiler.reset()
    mixed(function, options={"host_ops": ["pjrt_test.add_into"]})(*args)
    (graph,) = compiled_graphs()
    assert [reason.kind for reason in graph.fallback_reasons] == ["requested"]

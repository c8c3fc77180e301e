"""Functions that users mark as composites: in eager, and compiled for plugins with and without."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pjrt_bridge.errors import ArgumentError, BridgeWarning, HostFallbackWarning
from pjrt_bridge.registry import brought
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.builder.values import Body
from pjrt_bridge.stablehlo.composites import Composite
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop import composite
from tests.torch_interop.helpers import custom_operators, placements

pytestmark = pytest.mark.usefixtures("fresh")

Seen = list[tuple[str, int, dict[str, Any], list[tuple[int, ...]]]]


class Taking(Kernels):
    """A target whose compiler takes some composites; it notes them."""

    composites = {
        "my.inner": (0,),
        "my.rope": (2,),
        "aten.gelu.default": (1,),
        "aten.native_layer_norm.default": (1,),
    }

    def __init__(self) -> None:
        self.seen: Seen = []

    def composite(
        self, b: Builder, composite: Composite, operands: Sequence[Value], decomposition: Body
    ) -> Value | Sequence[Value]:
        shapes = [operand.shape for operand in operands]
        self.seen.append((composite.name, composite.version, dict(composite.attributes), shapes))
        return super().composite(b, composite, operands, decomposition)

    @property
    def names(self) -> list[str]:
        """Of what was taken, each once."""
        return sorted({name for name, *_ in self.seen})


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Taking:
    """The kernels of the plugin that graphs are compiled for."""
    kernels = Taking()
    monkeypatch.setattr(brought, "kernels", lambda client: kernels)
    return kernels


@composite("my.inner", attributes={"parts": [1, 2]})
def inner(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + torch.arange(x.shape[-1])


@composite("my.rope", version=2, attributes={"interleaved": True})
def rope(
    x: torch.Tensor, y: torch.Tensor, *, theta: float = 0.5, way: str = "a"
) -> tuple[torch.Tensor, torch.Tensor]:
    return inner(x) * y * theta, x


@composite("my.rope", version=2)
def scaled(x: torch.Tensor, *, by: float) -> torch.Tensor:
    return x * by


def both(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    first, same = rope(x, y, theta=0.25)
    normal = torch.nn.functional.layer_norm(
        torch.nn.functional.gelu(first + same), x.shape[-1:], weight
    )
    return rope(normal, normal)[0].sum(-1)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(function, backend="pjrt", fullgraph=True, **options)
    return made


def tensors(rows: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(rows)
    return [torch.randn(rows, 4), torch.randn(rows, 4), torch.randn(4)]


ROPE = {"interleaved": True, "theta": 0.25, "way": "a"}


def test_a_target_gets_what_it_takes_with_attributes_of_the_call(taking: Taking) -> None:
    x, y, weight = tensors()
    torch.testing.assert_close(compiled(both)(x, y, weight), both(x, y, weight))
    assert ("my.rope", 2, ROPE, [(3, 4), (3, 4)]) in taking.seen
    assert ("my.rope", 2, {**ROPE, "theta": 0.5}, [(3, 4), (3, 4)]) in taking.seen
    assert ("my.inner", 0, {"parts": (1, 2)}, [(3, 4)]) in taking.seen
    gelu = {"approximate": "none", "operand_names": ("self",)}
    assert ("aten.gelu.default", 1, gelu, [(3, 4)]) in taking.seen
    norm = {"eps": 1e-5, "normalized_shape": (4,), "operand_names": ("input", "weight")}
    assert ("aten.native_layer_norm.default", 1, norm, [(3, 4), (4,)]) in taking.seen


@pytest.mark.parametrize("takes", [True, False])
def test_sizes_that_change(takes: bool, request: pytest.FixtureRequest) -> None:
    kernels = request.getfixturevalue("taking") if takes else None
    function = compiled(both, dynamic=True)
    for rows in (3, 5, 3):
        torch.testing.assert_close(function(*tensors(rows)), both(*tensors(rows)))
    if kernels is not None:
        assert {shapes[0][0] for name, _, _, shapes in kernels.seen if name == "my.rope"} == {3, 5}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("values", [(1, 2, 3), (0.5, 1.5, 2.5)])
def test_numbers_of_a_call_are_attributes(
    taking: Taking, values: tuple[float, ...], dynamic: bool | None
) -> None:
    x = tensors()[0]
    function = compiled(lambda x, by: scaled(x, by=by), dynamic=dynamic)
    for by in values:
        torch.testing.assert_close(function(x, by), x * by)
    found = [attributes["by"] for _, _, attributes, _ in taking.seen]
    assert sorted(set(found)) == list(values)
    assert {type(by) for by in found} == {type(values[0])}


def gradients(function: Callable[..., Any], arguments: list[torch.Tensor]) -> list[Any]:
    given = [x.clone().requires_grad_() for x in arguments]
    result = function(*given)
    result.square().sum().backward()
    return [result.detach(), *(x.grad for x in given)]


def test_training_without_composites() -> None:
    with warnings.catch_warnings(action="error"):
        found = gradients(compiled(both), tensors())
    torch.testing.assert_close(found, gradients(both, tensors()))


def test_values_that_gradients_need_keep_a_composite_from_being_one(taking: Taking) -> None:
    with pytest.warns(BridgeWarning, match=r"'my.rope' stays .*: gradients read .* computed in it"):
        found = gradients(compiled(both), tensors())
    torch.testing.assert_close(found, gradients(both, tensors()))
    # Its input and its result are all that the gradient of this one needs.
    assert "aten.native_layer_norm.default" in taking.names


def test_a_tensor_that_is_no_argument_is_told(taking: Taking) -> None:
    x, y, _ = tensors()

    closed = composite("my.rope", version=2)(lambda x: x * y)
    with pytest.warns(BridgeWarning, match="which is no argument of it"):
        found = compiled(lambda x: closed(x) + 1)(x)
    torch.testing.assert_close(found, x * y + 1)
    assert not taking.seen


def test_random_numbers_are_told(taking: Taking) -> None:
    dropped = composite("my.rope", version=2)(lambda x: torch.nn.functional.dropout(x, 0.5))
    with pytest.warns(BridgeWarning, match="effect, or draws random numbers"):
        compiled(lambda x: dropped(x))(torch.ones(100))
    assert not taking.seen


@pytest.mark.parametrize("takes", [True, False])
def test_writes_and_shared_memory_are_those_of_the_function(
    takes: bool, request: pytest.FixtureRequest
) -> None:
    if takes:
        request.getfixturevalue("taking")

    @composite("my.rope", version=2)
    def changed(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.view(-1)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = changed(x)
        flat.mul_(2)
        return x + 1, flat

    x = tensors()[0]
    mine, theirs = x.clone(), x.clone()
    with warnings.catch_warnings(action="ignore", category=BridgeWarning):
        torch.testing.assert_close(compiled(function)(mine), function(theirs))
    torch.testing.assert_close(mine, theirs)


def test_transforms_of_torch_func(taking: Taking) -> None:
    x = tensors()[0]

    def mapped(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: scaled(row, by=2.0))(x)

    def slopes(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: scaled(x, by=2.0).square().sum())(x)

    for function in (mapped, slopes):
        torch.testing.assert_close(compiled(function)(x), function(x))
    # What the name means over one more dimension is not known.
    assert all(shapes == [(3, 4)] for _, _, _, shapes in taking.seen)


def test_what_does_not_lower_runs_in_pytorch_as_a_whole(taking: Taking) -> None:
    operators = {"strange(Tensor x) -> Tensor": (lambda x: x * 3, torch.empty_like)}
    x = tensors()[0]
    with custom_operators("composite_tests", operators):
        mixed = composite("my.rope", version=2)(
            lambda x: torch.ops.composite_tests.strange(x).sin() + 1
        )
        function = torch.compile(lambda x: mixed(x * 2) + 1, backend="pjrt")
        with pytest.warns(HostFallbackWarning, match=r"my.rope: .*composite_tests.strange"):
            found = function(x)
    torch.testing.assert_close(found, (x * 6).sin() + 2)
    assert "host" in placements()


@pytest.mark.parametrize("takes", [True, False])
def test_in_branches_and_loops(takes: bool, request: pytest.FixtureRequest) -> None:
    kernels = request.getfixturevalue("taking") if takes else None
    x, y, _ = tensors()

    def branches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.cond(
            x.sum() > 0, lambda x, y: rope(x, y)[0] + 1, lambda x, y: x - y, (x, y)
        )
        return found

    with warnings.catch_warnings(action="error"):
        torch.testing.assert_close(compiled(branches)(x, y), branches(x, y))
    assert kernels is None or kernels.names == ["my.inner", "my.rope"]


def test_recomputed_in_backward(taking: Taking) -> None:
    def saved(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        def part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return scaled(x, by=0.5).cos() * y

        found: torch.Tensor = checkpoint(part, x, y, use_reentrant=False)
        return found @ weight

    found = gradients(compiled(saved), tensors())
    torch.testing.assert_close(found, gradients(saved, tensors()))
    assert taking.names == ["my.rope"]


def test_another_version_is_not_taken(taking: Taking) -> None:
    old = composite("my.rope", version=1)(lambda x: x * 2)
    x = tensors()[0]
    torch.testing.assert_close(compiled(lambda x: old(x))(x), x * 2)
    assert not taking.seen


def test_other_backends_compute_the_function() -> None:
    x, y, weight = tensors()
    function = torch.compile(both, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(function(x, y, weight), both(x, y, weight))


def test_in_eager_it_is_the_function() -> None:
    x, y, _ = tensors()
    assert rope(x, y)[1] is x
    assert rope.__name__ == "rope"
    torch.testing.assert_close(rope(x, y, theta=2.0)[0], inner(x) * y * 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: rope(x, 2.0), "argument 1: found float, expected a tensor; attributes are"),
        (lambda x: inner(), "found no arguments"),
        (lambda x: rope(x, x, theta=None), "attribute 'theta': found None"),
        (lambda x: rope(x, x, theta=x), "attribute 'theta': found a Tensor"),
        (lambda x: composite("my.op")(lambda x: None)(x), "result 0: found NoneType"),
        (lambda x: composite("my.op")(lambda x: ())(x), "found no results"),
        (lambda x: composite("my.op")(3), "found 3, expected a function"),
        (lambda x: composite("op"), "'namespace.operation'"),
        (lambda x: composite("aten.op"), "a namespace of your own"),
        (lambda x: composite("my.op", version=-1), "version"),
        (lambda x: composite("my.op", attributes={"a": x}), "found a Tensor"),
        (lambda x: composite("my.op", attributes=["a"]), "attributes"),
    ],
)
def test_what_no_composite_can_be_is_refused(call: Callable[..., Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call(torch.ones(2))

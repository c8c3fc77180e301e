"""Constraints within models: what they change, their gradients, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pjrt_bridge import errors
from pjrt_bridge.torch_interop.sharding import (
    OPEN,
    Mesh,
    full,
    mark_sharding,
    shard_constraint,
    sharding_of,
)
from tests.torch_interop.sharding.test_marking import spec_of

pytestmark = pytest.mark.usefixtures("fresh")


def test_a_tensor_of_the_host_stays_as_it_is(mesh: Mesh) -> None:
    x = torch.randn(4, 4)
    assert shard_constraint(x, mesh, ("dp",)) is x
    compiled = torch.compile(lambda x: shard_constraint(x, mesh, ("dp",)) * 2, backend="pjrt")
    assert torch.equal(compiled(x), x * 2)


def test_a_tensor_of_the_device_is_divided_at_once(mesh: Mesh) -> None:
    x = torch.randn(4, 4)
    given = x.to("pjrt")
    y = shard_constraint(given, mesh, ("dp",))
    assert spec_of(y) == "[dp, -]"
    assert sharding_of(given) is None
    assert spec_of(shard_constraint(y, mesh, (OPEN, "tp"))) == "[dp, tp]"
    assert spec_of(shard_constraint(y, mesh, (OPEN, "tp"), replicated=("dp",))) == "[-, tp]"
    assert spec_of(shard_constraint(y.t(), mesh, ("tp", OPEN))) == "[tp, dp]"
    assert torch.equal(full(y), x)


@pytest.mark.parametrize("stated", [True, False])
def test_values_and_gradients_are_divided_as_it_says(mesh: Mesh, stated: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return shard_constraint(x.sin(), mesh, (None, "tp")).cos()

    options: dict[str, Any] = {"fallback": "error", **({"mesh": mesh} if stated else {})}
    compiled = torch.compile(function, backend="pjrt", fullgraph=True, options=options)
    x = torch.randn(4, 4)
    given = x.to("pjrt").requires_grad_()
    expected = x.clone().requires_grad_()
    found = compiled(given)
    assert spec_of(found) == "[-, tp]"
    found.square().sum().backward()
    expected.sin().cos().square().sum().backward()
    assert given.grad is not None
    torch.testing.assert_close(full(given.grad), expected.grad)
    eager = shard_constraint(given, mesh, (None, "tp"))
    eager.sum().backward()
    torch.testing.assert_close(full(given.grad), expected.grad + 1)


def test_what_is_open_is_left_to_the_partitioner(mesh: Mesh) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return shard_constraint(x * 2, mesh, (OPEN, OPEN), replicated=("tp",)) + 1

    compiled = torch.compile(function, backend="pjrt", fullgraph=True)
    x = torch.randn(4, 4)
    found = compiled(mark_sharding(x, mesh, ("dp", "tp")))
    assert spec_of(found) == "[dp, -]"
    torch.testing.assert_close(full(found), x * 2 + 1)


def test_sizes_of_calls(mesh: Mesh) -> None:
    """A dimension that does not divide in a call is whole."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return shard_constraint(x * 2, mesh, ("dp",)) + 1

    compiled = torch.compile(function, backend="pjrt", fullgraph=True, dynamic=True)
    for rows, spec in ((4, "[dp, -]"), (5, "[-, -]"), (6, "[dp, -]")):
        x = torch.randn(rows, 3)
        found = compiled(x.to("pjrt"))
        assert spec_of(found) == spec
        torch.testing.assert_close(full(found), x * 2 + 1)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "replicated", "message"),
    [
        (("pp",), (), r"names the axis 'pp', Mesh\(dp=2, tp=2\) has dp, tp"),
        (("dp", ("tp", "dp")), (), "uses the axis 'dp' twice"),
        (("dp", None, "tp"), (), "found 3 entries in .*, the array has 2 dimensions"),
        ((OPEN, "tp"), (), "dimension 1 of shape .* has 3 elements, which do not divide into 2"),
        (("dp",), ("x",), r"found 'x' among the axes that divide nothing, Mesh\(dp=2, tp=2\) has"),
        (("dp",), ("dp",), "'dp' divides a dimension, and nothing"),
    ],
)
@pytest.mark.parametrize("where", ["cpu", "pjrt"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_wrong_spec_names_what_is_wrong(
    mesh: Mesh, spec: Any, replicated: Any, message: str, where: str, compiled: bool
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return shard_constraint(x + 1, mesh, spec, replicated=replicated)

    called = torch.compile(function, backend="pjrt", fullgraph=True) if compiled else function
    with pytest.raises(Exception, match=message) as raised:
        called(torch.zeros(8, 3).to(where))
    assert compiled or isinstance(raised.value, errors.ProgramError)


def test_constraints_over_several_meshes(mesh: Mesh) -> None:
    other = Mesh(x=4)

    def function(x: torch.Tensor) -> torch.Tensor:
        x = shard_constraint(x + 1, mesh, ("dp",))
        return shard_constraint(x + 1, other, ("x",))

    x = torch.zeros(8, 3).to("pjrt")
    with pytest.raises(Exception, match=r"several meshes, expected one: Mesh\(dp=2, tp=2\).*x=4"):
        torch.compile(function, backend="pjrt", fullgraph=True)(x)
    options = {"mesh": other}

    def single(x: torch.Tensor) -> torch.Tensor:
        return shard_constraint(x + 1, mesh, ("dp",))

    with pytest.raises(Exception, match=r"is over Mesh\(dp=2, tp=2\), expected Mesh\(x=4\)"):
        torch.compile(single, backend="pjrt", fullgraph=True, options=options)(x)
    divided = mark_sharding(torch.zeros(8, 3), other, ("x",))
    expected = r"found values over Mesh\(x=4\), expected Mesh\(dp=2, tp=2\)"
    with pytest.raises(errors.DataError, match=expected):
        torch.compile(single, backend="pjrt", fullgraph=True)(divided)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_torch_func(mesh: Mesh, compiles: bool) -> None:
    def over(x: torch.Tensor) -> torch.Tensor:
        return shard_constraint(x.sin(), mesh, ("tp",)).square().sum()

    def gradients(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.func.grad(over)(x), torch.func.vmap(torch.func.grad(over))(x)

    x = torch.randn(4, 2)
    options = {"mesh": mesh, "fallback": "error"}
    run = torch.compile(gradients, backend="pjrt", options=options) if compiles else gradients
    whole, by_row = run(x.to("pjrt"))
    expected = (2 * x).sin()
    torch.testing.assert_close(full(whole), expected)
    torch.testing.assert_close(full(by_row), expected)

"""Tensors that are divided over a mesh: made, read, copied, and used by operators."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel

from pjrt_bridge import errors
from pjrt_bridge.torch_interop import device
from pjrt_bridge.torch_interop.resident.client import chosen
from pjrt_bridge.torch_interop.sharding import (
    Mesh,
    full,
    fully_shard,
    mark_sharding,
    parallelize,
    sharding_of,
    shards,
)


def spec_of(tensor: torch.Tensor) -> str:
    return str(sharding_of(tensor)).partition(" over ")[0]


@pytest.mark.parametrize("where", ["cpu", "pjrt"])
@pytest.mark.parametrize(
    ("spec", "shape"), [(("dp", "tp"), (4, 3)), ((("dp", "tp"),), (2, 6)), ((), (8, 6))]
)
def test_a_tensor_is_divided(mesh: Mesh, where: str, spec: tuple[str, ...], shape: object) -> None:
    x = torch.randn(8, 6)
    y = mark_sharding(x.to(where), mesh, spec)
    assert y.device.type == "pjrt"
    assert y.shape == (8, 6)
    assert all(part.shape == shape for part in shards(y))
    assert torch.equal(full(y), x)
    assert torch.equal(y.cpu(), x)


def test_the_layout_of_a_tensor_stays(mesh: Mesh) -> None:
    x = torch.randn(4, 8).t()
    y = mark_sharding(x, mesh, ("dp",))
    assert y.stride() == x.stride()
    assert spec_of(y) == "[dp, -]"
    assert torch.equal(full(y), x)
    assert torch.equal(shards(y)[3], x[4:])


def test_a_parameter_is_divided_in_place(mesh: Mesh) -> None:
    layer = nn.Linear(4, 8)
    optimizer = torch.optim.SGD(layer.parameters())
    before, values = layer.weight, layer.weight.detach().clone()
    assert mark_sharding(layer.weight, mesh, ("tp",)) is before
    assert layer.weight is before
    assert optimizer.param_groups[0]["params"][0] is before
    assert isinstance(before, nn.Parameter)
    assert before.requires_grad
    assert torch.equal(full(before), values)


def test_a_view_sees_the_division_of_its_base(mesh: Mesh) -> None:
    x = torch.randn(8, 4).to("pjrt")
    view = x.detach()
    mark_sharding(x, mesh, ("dp",))
    assert spec_of(view) == "[dp, -]"
    assert torch.equal(full(x[2:5]), full(x)[2:5])


def test_a_tensor_is_divided_again(mesh: Mesh) -> None:
    x = torch.randn(8, 4)
    y = mark_sharding(x, mesh, ("dp",))
    mark_sharding(y, mesh, (None, "dp"))
    assert spec_of(y) == "[-, dp]"
    assert torch.equal(full(y), x)


def test_a_tensor_moves_to_another_mesh(mesh: Mesh) -> None:
    x = torch.randn(4, 8)
    given = mark_sharding(x, mesh, ("dp", "tp"))
    view = given[1:3]
    assert mark_sharding(given, Mesh(tp=4), (None, "tp")) is given
    assert spec_of(given) == "[-, tp]"
    assert [part.shape for part in shards(given)] == [(4, 2)] * 4
    assert torch.equal(full(view + given[:2]), x[1:3] + x[:2])
    other = mark_sharding(x.clone(), Mesh(tp=4), sharding_of(given))
    assert torch.equal(full(other - given), torch.zeros(4, 8))
    with pytest.raises(
        errors.ProgramError, match=r"over Mesh\(tp=4\), expected Mesh\(dp=2, tp=2\)"
    ):
        mark_sharding(x, mesh, sharding_of(given))


@pytest.mark.parametrize("where", ["cpu", "pjrt"])
def test_a_gradient_goes_with_its_parameter(mesh: Mesh, where: str) -> None:
    parameter = nn.Parameter(torch.ones(4, device=where))
    (parameter * 2).sum().backward()
    mark_sharding(parameter, mesh, ("tp",))
    assert parameter.grad is not None
    assert spec_of(parameter.grad) == "[tp]"
    (parameter * 3).sum().backward()
    assert full(parameter.grad).tolist() == [5] * 4
    parameter.grad = torch.ones(1, 4, device="pjrt")[0]
    mark_sharding(parameter, mesh, ("dp",))
    assert spec_of(parameter.grad) == "[dp]"


def test_operators_run_where_the_tensors_are(mesh: Mesh) -> None:
    x, w = torch.randn(8, 4), torch.randn(4, 6)
    y, v = mark_sharding(x, mesh, ("dp",)), mark_sharding(w, mesh, (None, "tp"))
    product = y @ v
    assert spec_of(product) == "[dp, tp]"
    torch.testing.assert_close(full(product), x @ w)
    other = torch.randn(8, 4)
    total = y + other.to("pjrt")
    assert spec_of(total) == "[dp, -]"
    assert torch.equal(full(total), x + other)
    assert repr(total) == repr((x + other).to("pjrt"))
    assert y.sum().item() == pytest.approx(x.sum().item(), rel=1e-5)


def test_writing_keeps_the_division(mesh: Mesh) -> None:
    x, other = torch.randn(8, 4), torch.randn(8, 4)
    y = mark_sharding(x, mesh, ("dp",))
    y.add_(mark_sharding(other, mesh, (None, "tp")))
    assert spec_of(y) == "[dp, -]"
    assert torch.equal(full(y), x + other)
    y[1:3] = 0
    assert spec_of(y) == "[dp, -]"
    assert not full(y)[1:3].any()
    y.copy_(other)
    assert spec_of(y) == "[dp, -]"
    assert torch.equal(full(y), other)


def test_what_pytorch_computes_keeps_the_division(mesh: Mesh) -> None:
    y = mark_sharding(torch.zeros(8, 4), mesh, ("dp",))
    before = device_bytes()
    with pytest.warns(errors.HostFallbackWarning, match="a generator was given"):
        y.normal_(generator=torch.Generator().manual_seed(1))
    expected = torch.zeros(8, 4).normal_(generator=torch.Generator().manual_seed(1))
    assert torch.equal(full(y), expected)
    assert spec_of(y) == "[dp, -]"
    assert device_bytes() > before


def device_bytes() -> int:
    from pjrt_bridge.torch_interop.resident.storages.transfer import COUNTS

    return COUNTS.to_device + COUNTS.to_host


def test_copies_between_meshes(mesh: Mesh) -> None:
    """A copy is the only operator over several meshes: states of models are loaded by copies."""
    other = Mesh(rows=2, client=mesh.client)
    host = torch.arange(32.0).reshape(8, 4)

    def pair() -> tuple[torch.Tensor, torch.Tensor]:
        target = mark_sharding(torch.zeros(8, 4), other, ("rows",))
        return target, mark_sharding(host, mesh, ("dp", "tp"))

    for view in (lambda x: x, lambda x: x.t(), lambda x: x[2:5, 1:]):
        target, source = pair()
        view(target).copy_(view(source))
        expected = torch.zeros(8, 4)
        view(expected).copy_(view(host))
        assert torch.equal(full(target), expected)
        assert str(sharding_of(target)) == "[rows, -] over Mesh(rows=2)"
    target, source = pair()
    target.copy_(source.double().add(1))
    assert torch.equal(full(target), host + 1)
    target, source = pair()
    torch._foreach_copy_([target], [source])
    assert torch.equal(full(target), host)

    layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
    fully_shard(layers[0], Mesh(fsdp=4, client=mesh.client))
    parallelize(layers[1], other, ColwiseParallel())
    layers[1].load_state_dict(layers[0].state_dict())
    assert torch.equal(full(layers[1].weight), full(layers[0].weight))
    assert str(sharding_of(layers[1].weight)) == "[rows, -] over Mesh(rows=2)"


def test_states_are_saved_and_loaded(mesh: Mesh) -> None:
    layer, other = nn.Linear(4, 8), nn.Linear(4, 8)
    values = copy.deepcopy(layer.state_dict())
    mark_sharding(layer.weight, mesh, ("tp",))
    mark_sharding(other.weight, mesh, (None, "dp"))
    other.bias.data = other.bias.data.clone()
    file = io.BytesIO()
    torch.save(
        {
            name: full(value) if name == "weight" else value
            for name, value in layer.state_dict().items()
        },
        file,
    )
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert spec_of(other.weight) == "[-, dp]"
    assert torch.equal(full(other.weight), values["weight"])
    third = nn.Linear(4, 8)
    mark_sharding(third.weight, mesh, (("dp", "tp"),))
    third.load_state_dict(other.state_dict())
    assert spec_of(third.weight) == "[dp+tp, -]"
    assert torch.equal(full(third.weight), values["weight"])


def test_a_divided_tensor_moves_to_one_device(mesh: Mesh) -> None:
    x = torch.randn(8, 4)
    y = mark_sharding(x, mesh, ("dp", "tp")).to("pjrt:1")
    assert sharding_of(y) is None
    assert torch.equal(y.cpu(), x)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (("pp",), r"names the axis 'pp', Mesh\(dp=2, tp=2\) has dp, tp"),
        (("dp", "dp"), "uses the axis 'dp' twice"),
        (("dp", None, "tp"), "found 3 entries in .*, the array has 2 dimensions"),
        ((None, "tp"), "dimension 1 of shape .8, 3. has 3 elements, which do not divide into 2"),
        ("dp", "expected a tuple with an axis, several or None"),
        ((None, 0), r"found 0 for dimension 1 in \(None, 0\), expected an axis, several or None"),
        ((("dp", None),), r"found \('dp', None\) for dimension 0"),
    ],
)
@pytest.mark.parametrize("where", ["cpu", "pjrt"])
def test_a_wrong_spec_names_what_is_wrong(
    mesh: Mesh, spec: tuple[str, ...], message: str, where: str
) -> None:
    x = torch.zeros(8, 3).to(where)
    with pytest.raises(errors.ProgramError, match=message):
        mark_sharding(x, mesh, spec)
    assert torch.equal(x.cpu(), torch.zeros(8, 3))


def test_a_mesh_that_is_too_large() -> None:
    with pytest.raises(errors.OptionError, match=r"Mesh\(dp=4, tp=2\) needs 8 devices, .* has 4"):
        Mesh(dp=4, tp=2)


def test_a_mesh_of_another_client(mesh: Mesh) -> None:
    import pjrt_bridge

    other = pjrt_bridge.client("cpu", cpu_device_count=2)
    with pytest.raises(errors.DeviceError, match=r"cpu_device_count=4.* expected that client"):
        Mesh(dp=2, client=other)
    assert Mesh(dp=2, client=chosen.client()).size == 2


def test_tensors_of_two_meshes(mesh: Mesh) -> None:
    x = mark_sharding(torch.zeros(8), mesh, ("dp",))
    y = mark_sharding(torch.zeros(8), Mesh(x=4), ("x",))
    with pytest.raises(errors.DataError, match=r"several meshes.*dp=2, tp=2.*x=4"):
        x + y


def test_a_view_of_a_part_cannot_be_marked(mesh: Mesh) -> None:
    x = torch.zeros(8, 4).to("pjrt")
    with pytest.raises(errors.DeviceError, match=r"a view of shape \(2, 4\)"):
        mark_sharding(x[2:4], mesh, ("dp",))


def test_a_sparse_tensor_cannot_be_marked(mesh: Mesh) -> None:
    with pytest.raises(errors.DeviceError, match=r"shape \(4,\) with the layout torch.sparse_coo"):
        mark_sharding(torch.ones(4).to_sparse(), mesh, ("dp",))


def test_what_is_not_divided_has_no_shards(mesh: Mesh) -> None:
    with pytest.raises(errors.DeviceError, match="expected one that is divided"):
        shards(torch.zeros(2).to("pjrt"))
    with pytest.raises(errors.DeviceError, match="expected one of device 'pjrt'"):
        full(torch.zeros(2))
    with pytest.raises(errors.DeviceError, match=r"expected one on one device; sharding\.shards"):
        device.buffer_of(mark_sharding(torch.zeros(2), mesh, ("dp",)))


def test_a_parameter_that_a_graph_of_autograd_has(mesh: Mesh) -> None:
    layer = nn.Linear(4, 8)
    y = layer(torch.zeros(2, 4, requires_grad=True))
    with pytest.raises(errors.DeviceError, match=r"shape \(8, 4\).*used by results.*drop these"):
        mark_sharding(layer.weight, mesh, ("tp",))
    assert layer.weight.device.type == "cpu"
    del y
    assert spec_of(mark_sharding(layer.weight, mesh, ("tp",))) == "[tp, -]"

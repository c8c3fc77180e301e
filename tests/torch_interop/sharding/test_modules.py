"""Models that are divided by plans of torch's parallel styles, and by the rule of FSDP."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

from pjrt_bridge import errors
from pjrt_bridge.torch_interop.sharding import (
    Mesh,
    full,
    fully_shard,
    mark_sharding,
    parallelize,
    sharding_of,
)
from tests.torch_interop.sharding.models import Gpt, Mlp
from tests.torch_interop.sharding.test_marking import spec_of

pytestmark = pytest.mark.usefixtures("fresh")

MLP = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def compiled(model: nn.Module, mesh: Mesh) -> Any:
    options = {"mesh": mesh, "fallback": "error"}
    return torch.compile(model, backend="pjrt", fullgraph=True, options=options)


def test_a_plan_divides_parameters_and_gradients(mesh: Mesh) -> None:
    model = Mlp()
    expected = copy.deepcopy(model)
    assert parallelize(model, mesh, MLP) is model
    assert [spec_of(one) for one in model.parameters()] == ["[tp, -]", "[tp]", "[-, tp]", "[-]"]
    x = torch.randn(8, 8)
    found = compiled(model, mesh)(x.to("pjrt"))
    assert spec_of(found) == "[dp, -]"
    torch.testing.assert_close(full(found), expected(x))
    found.square().sum().backward()
    expected(x).square().sum().backward()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert sharding_of(one.grad) == sharding_of(one)
        torch.testing.assert_close(full(one.grad), other.grad)


def test_a_model_is_computed_without_compiling(mesh: Mesh) -> None:
    model = Mlp()
    x = torch.randn(8, 8)
    expected = model(x).detach()
    parallelize(model, mesh, MLP)
    torch.testing.assert_close(full(model(x.to("pjrt"))), expected)


@pytest.mark.parametrize(
    ("style", "spec"),
    [
        (ColwiseParallel(), "[dp, -, tp]"),
        (ColwiseParallel(output_layouts=Replicate()), "[dp, -, -]"),
        (ColwiseParallel(output_layouts=Shard(1)), "[dp, tp, -]"),
        (RowwiseParallel(), "[dp, -, -]"),
        (RowwiseParallel(output_layouts=Shard(1)), "[dp, tp, -]"),
        (SequenceParallel(), "[dp, tp, -]"),
        (SequenceParallel(sequence_dim=2), "[dp, -, tp]"),
        (
            PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1)),
            "[dp, tp, -]",
        ),
        (
            PrepareModuleInputOutput(
                input_layouts=Shard(1),
                desired_input_layouts=Replicate(),
                output_layouts=Replicate(),
                desired_output_layouts=Shard(2),
            ),
            "[dp, -, tp]",
        ),
    ],
    ids=str,
)
def test_styles_say_how_outputs_lie(mesh: Mesh, style: Any, spec: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8))
    x = torch.randn(2, 6, 4)
    expected = model(x).detach()
    parallelize(model, mesh, {"0": style})
    with torch.no_grad():
        found = compiled(model, mesh)(x.to("pjrt"))
    assert spec_of(found) == spec
    torch.testing.assert_close(full(found), expected)


class Named(nn.Module):
    """Gives what it is given, by position and by name."""

    def forward(
        self, x: torch.Tensor, scale: float, *, mask: torch.Tensor
    ) -> tuple[torch.Tensor, float, torch.Tensor]:
        return x * scale, scale, mask * 1


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Named()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        given, _, other = self.inner(x, 2.0, mask=mask)
        return given, other


def test_inputs_and_outputs_by_position_and_by_name(mesh: Mesh) -> None:
    x, mask = torch.randn(2, 4), torch.randn(2, 4)
    taking = PrepareModuleInput(
        input_layouts=(Replicate(), None),
        desired_input_layouts=(Shard(1), None),
        input_kwarg_layouts={"mask": Replicate()},
        desired_input_kwarg_layouts={"mask": Shard(-1)},
    )
    giving = PrepareModuleOutput(
        output_layouts=(Shard(1), None, None), desired_output_layouts=(Replicate(), None, Shard(1))
    )
    model = parallelize(Outer(), mesh, {"inner": taking})
    found = compiled(model, mesh)(x.to("pjrt"), mask.to("pjrt"))
    assert [spec_of(item) for item in found] == ["[dp, tp]", "[dp, tp]"]
    torch.compiler.reset()
    parallelize(model.inner, mesh, giving)
    found = compiled(model, mesh)(x.to("pjrt"), mask.to("pjrt"))
    assert [spec_of(item) for item in found] == ["[dp, -]", "[dp, tp]"]
    assert torch.equal(full(found[0]), x * 2)


class Experts(nn.Module):
    """A layer of its own kind: an expert for each row, by what a router says."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, 8, 16) / 4)
        self.lists = nn.ParameterList([torch.randn(4, 16, 8) / 4])
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = self.router(x).softmax(-1)
        hidden = torch.einsum("nd,edf->nef", x, self.up).relu()
        return torch.einsum("nef,efd,ne->nd", hidden, self.lists[0], share) * self.scale


@pytest.mark.parametrize(
    ("plan", "specs"),
    [
        (
            {"*.up": Shard(0), "*.lists.*": Shard(-2), "*.scale": Replicate()},
            ["[tp, -, -]", "[-]", "[-, -]", "[-, tp, -]"],
        ),
        (
            {"0.up": ("dp", None, "tp"), "0.lists.0": [["dp", "tp"]]},
            ["[dp, -, tp]", "[-]", "[-, -]", "[dp+tp, -, -]"],
        ),
        (
            {"0.[ul]*": Shard(2), "0.router": ColwiseParallel(output_layouts=Replicate())},
            ["[-, -, tp]", "[-]", "[tp, -]", "[-, -, -]"],
        ),
    ],
)
def test_parameters_of_any_module(mesh: Mesh, plan: Any, specs: list[str]) -> None:
    model = nn.Sequential(Experts())
    expected = copy.deepcopy(model)
    parallelize(model, mesh, plan)
    assert [spec_of(one) for one in model.parameters()] == specs
    x = torch.randn(8, 8)
    compiled(model, mesh)(x.to("pjrt")).square().sum().backward()
    expected(x).square().sum().backward()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert one.grad is not None
        assert sharding_of(one.grad) == sharding_of(one)
        torch.testing.assert_close(full(one.grad), other.grad, rtol=1e-4, atol=1e-5)


def test_specs_alone_need_no_axis() -> None:
    model = nn.Sequential(Experts())
    parallelize(model, Mesh(dp=2, ep=2), {"0.up": ("ep",)})
    assert spec_of(model[0].up) == "[ep, -, -]"


def test_a_name_may_stand_for_several_modules(mesh: Mesh) -> None:
    model = Gpt(blocks=2)
    words = {"embedding": RowwiseParallel(output_layouts=Shard(1)), "last": SequenceParallel()}
    parallelize(model, mesh, {"blocks.*.up": ColwiseParallel(), **words})
    assert [spec_of(block.up.weight) for block in model.blocks] == ["[tp, -]", "[tp, -]"]
    assert spec_of(model.embedding.weight) == "[tp, -]"
    assert spec_of(model.last.weight) == "[-]"
    assert spec_of(model.head.weight) == "[-, -]"


def test_buffers_and_shared_parameters(mesh: Mesh) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    parallelize(model, mesh, {"0": ColwiseParallel()})
    assert model[2].weight is model[0].weight
    assert spec_of(model[2].weight) == "[tp, -]"
    assert {spec_of(one) for one in model.buffers()} == {"[-]", "[]"}
    assert set(model.state_dict()) >= {"1.running_mean", "1.num_batches_tracked"}


def test_states_over_an_axis(mesh: Mesh) -> None:
    model = Mlp()
    parallelize(model, mesh, MLP)
    fully_shard(model, mesh)
    specs = ["[tp, dp]", "[tp+dp]", "[dp, tp]", "[dp]"]
    assert [spec_of(one) for one in model.parameters()] == specs
    fully_shard(model, mesh)
    assert [spec_of(one) for one in model.parameters()] == specs
    other = nn.Linear(3, 7)
    fully_shard(other, mesh, axis="tp")
    assert [spec_of(one) for one in other.parameters()] == ["[-, -]", "[-]"]
    assert spec_of(fully_shard(nn.Linear(4, 8), Mesh(dp=1, fsdp=4)).weight) == "[fsdp, -]"


def test_a_model_moves_to_another_mesh(mesh: Mesh) -> None:
    """In the midst of training: parameters, gradients, buffers, optimizer states, constraints."""
    model = nn.Sequential(nn.BatchNorm1d(8), Mlp())
    expected = copy.deepcopy(model)
    plan = {f"1.{name}": style for name, style in MLP.items()}
    parallelize(model, mesh, plan)
    x = torch.randn(8, 8)

    def step(net: Any, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        net(x).square().sum().backward()
        optimizer.step()

    kinds = [torch.optim.AdamW(net.parameters(), lr=0.01) for net in (model, expected)]
    moves: list[tuple[Mesh, Any]] = [
        (Mesh(tp=4), lambda mesh: parallelize(model, mesh, plan)),
        (Mesh(fsdp=2), lambda mesh: fully_shard(model, mesh)),
    ]
    for other, move in [(mesh, None), *moves]:
        if move is not None:
            move(other)
            for parameter, state in kinds[0].state.items():
                for value in state.values():
                    if value.shape == parameter.shape:
                        mark_sharding(value, other, sharding_of(parameter))
            torch.compiler.reset()
        step(compiled(model, other), kinds[0], x.to("pjrt"))
        step(expected, kinds[1], x)
        for found in (*model.parameters(), *model.buffers()):
            divided = sharding_of(found)
            assert divided is not None
            assert divided.mesh == other.grid
        for one, right in zip(model.parameters(), expected.parameters(), strict=True):
            assert one.grad is not None
            assert sharding_of(one.grad) == sharding_of(one)
            torch.testing.assert_close(full(one.grad), right.grad)
            torch.testing.assert_close(full(one), right.detach(), atol=1e-4, rtol=1e-4)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        (
            {"left": ColwiseParallel()},
            errors.OptionError,
            "no module matches 'left' of 'left'; found there: up, down",
        ),
        (
            {"up.*": ColwiseParallel()},
            errors.OptionError,
            r"no module matches '\*' of 'up\.\*'; found there: nothing",
        ),
        (
            {"": ColwiseParallel()},
            errors.OptionError,
            "ColwiseParallel for '': found a module Mlp, expected nn.Linear or nn.Embedding",
        ),
        (
            {"up": ColwiseParallel(output_layouts=Partial())},
            errors.OptionError,
            r"for 'up': found the placement .*expected Shard or Replicate",
        ),
        (
            {"up": "columns"},
            errors.OptionError,
            "found 'columns' for 'up', expected a parallel style for modules; Shard, Replicate or",
        ),
        (
            {"up": Partial()},
            errors.OptionError,
            "found .* for 'up', expected a parallel style for modules; Shard, Replicate or",
        ),
        (
            {"up": Shard(0)},
            errors.OptionError,
            "no parameter matches 'up' of 'up'; found there: nothing",
        ),
        (
            {"up.wait": Shard(0)},
            errors.OptionError,
            "no parameter matches 'wait' of 'up.wait'; found there: weight, bias",
        ),
        (
            {"up.bias": Shard(1)},
            errors.OptionError,
            r"found S\(1\) for 'up.bias', whose shape is \[16\]",
        ),
        (
            {"up.bias": ("tp", None)},
            errors.OptionError,
            r"found 2 entries in \('tp', None\) for 'up.bias', whose shape is \[16\]",
        ),
        (
            {"up.bias": (0,)},
            errors.OptionError,
            r"found 0 in \(0,\) for 'up.bias', expected an axis, several or None",
        ),
        (
            {"up.bias": ("ep",)},
            errors.ProgramError,
            r"parameter 'up.bias': .*names the axis 'ep'",
        ),
        ("columns", errors.OptionError, "found 'columns', expected a parallel style"),
    ],
)
def test_a_wrong_plan_changes_nothing(
    mesh: Mesh, plan: Any, error: type[Exception], message: str
) -> None:
    model = Mlp()
    with pytest.raises(error, match=message):
        parallelize(model, mesh, plan)
    assert all(one.device.type == "cpu" for one in model.parameters())
    assert torch.equal(model(torch.zeros(1, 8)), model(torch.zeros(1, 8)))


def test_what_does_not_divide_changes_nothing(mesh: Mesh) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    plan = {"0": ColwiseParallel(), "1": ColwiseParallel()}
    message = r"parameter '1.weight': .* dimension 0 of shape \[3, 8\] has 3 elements, .* 2 equal"
    with pytest.raises(errors.ProgramError, match=message):
        parallelize(model, mesh, plan)
    assert all(one.device.type == "cpu" for one in model.parameters())
    sequence = parallelize(nn.Sequential(nn.LayerNorm(4)), mesh, {"0": SequenceParallel()})
    with pytest.raises(Exception, match=r"dimension 1 of shape \[2, 5, 4\] has 5 elements"):
        compiled(sequence, mesh)(torch.zeros(2, 5, 4).to("pjrt"))


def test_a_mesh_without_the_axis(mesh: Mesh) -> None:
    plan = {"up": ColwiseParallel()}
    for other, axis in ((Mesh(dp=4), None), (Mesh(x=2, y=2), None), (mesh, "pp")):
        with pytest.raises(
            errors.OptionError, match=r"parallelize: Mesh\(.*\) has no axis .*axis="
        ):
            parallelize(Mlp(), other, plan, axis=axis)
    assert spec_of(parallelize(Mlp(), Mesh(dp=2, x=2), plan).up.bias) == "[x]"
    with pytest.raises(errors.OptionError, match=r"found Mesh\(tp=4\), expected .* 'dp' or 'fsdp'"):
        fully_shard(Mlp(), Mesh(tp=4))

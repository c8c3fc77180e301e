"""Models without weights over meshes of devices that are not there."""

from __future__ import annotations

import cProfile
import math
import pstats
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
)
from torch.utils import _pytree as pytree

import pjrt_bridge
from pjrt_bridge.errors import NotExportable, OptionError, PluginNotFound, ProgramError
from pjrt_bridge.registry import DeviceFigures
from pjrt_bridge.stablehlo import Mesh, Sharding
from pjrt_bridge.torch_interop.planning import compile_for, trace
from pjrt_bridge.torch_interop.sharding import shard_constraint

WIDTH, HIDDEN, BATCH = 64, 128, 8
F32 = 4


class Network(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.norm(x * self.scale)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


PLAN = {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
PARAMETERS = 96 * WIDTH + 2 * (2 * WIDTH * HIDDEN + WIDTH + HIDDEN) + 2 * WIDTH


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def meta(layers: int = 2) -> Network:
    with torch.device("meta"):
        return Network(layers)


def tokens() -> torch.Tensor:
    return torch.empty(BATCH, 4, dtype=torch.int64, device="meta")


def shardings(traced: Any, mesh: Mesh) -> dict[tuple[int, ...], set[str]]:
    """By whole shapes of parameters how these are divided."""
    program = traced.over(mesh)
    found: dict[tuple[int, ...], set[str]] = {}
    for parameter, sharding in zip(
        program.program.signature.parameters, program.parameters, strict=True
    ):
        found.setdefault(parameter.type.shape, set()).add(str(sharding).partition(" over")[0])
    return found


def test_a_plan_divides_parameters_and_what_an_optimizer_keeps() -> None:
    model = meta()
    optimizer = torch.optim.AdamW(model.parameters())
    traced = trace(model, [tokens()], plan=PLAN, training=True, loss=loss, optimizer=optimizer)
    assert traced.parameters == PARAMETERS
    assert shardings(traced, Mesh.of({"dp": 2, "tp": 2})) == {
        (96, WIDTH): {"[-, -]"},
        (HIDDEN, WIDTH): {"[tp, -]"},
        (HIDDEN,): {"[tp]"},
        (WIDTH, HIDDEN): {"[-, tp]"},
        (WIDTH,): {"[-]"},
        (BATCH, 4): {"[dp, -]"},
        (): {"[]"},
    }
    assert shardings(traced, Mesh.of({"fsdp": 2, "tp": 2})) == {
        (96, WIDTH): {"[fsdp, -]"},
        (HIDDEN, WIDTH): {"[tp, fsdp]"},
        (HIDDEN,): {"[tp+fsdp]"},
        (WIDTH, HIDDEN): {"[fsdp, tp]"},
        # Parameters, and the buffer.
        (WIDTH,): {"[fsdp]", "[-]"},
        (BATCH, 4): {"[fsdp, -]"},
        (): {"[]"},
    }
    # The same graph without the axis that the plan divides over.
    assert shardings(traced, Mesh.of({"dp": 4}))[HIDDEN, WIDTH] == {"[-, -]"}


class Experts(nn.Module):
    """A layer with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, WIDTH, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nd,edf->nef", x, self.weight)


@pytest.mark.parametrize("training", [False, True])
def test_parameters_of_any_module(training: bool) -> None:
    with torch.device("meta"):
        model, x = nn.Sequential(Experts()), torch.empty(BATCH, WIDTH)
    entries = {Shard(2): "[-, -, tp]", ("ep", None, "tp"): "[ep, -, tp]"}
    for entry, spec in entries.items():
        plan = {"0.weight": entry}
        traced = trace(model, [x], plan=plan, training=training, loss=loss if training else None)
        found = shardings(traced, Mesh.of({"ep": 2, "tp": 2}))
        assert found[8, WIDTH, HIDDEN] == {spec}
        found = shardings(traced, Mesh.of({"dp": 2, "tp": 2}))
        assert found[8, WIDTH, HIDDEN] == {"[-, -, tp]"}
        assert not traced.over(Mesh.of({"dp": 2, "tp": 2})).idle_axes


def test_new_values_lie_as_what_they_replace() -> None:
    model = meta()
    optimizer = torch.optim.AdamW(model.parameters())
    traced = trace(model, [tokens()], plan=PLAN, training=True, loss=loss, optimizer=optimizer)
    program = traced.over(Mesh.of({"fsdp": 2, "tp": 2}))
    signature = program.program.signature
    donated = [
        (at, parameter.alias)
        for at, parameter in enumerate(signature.parameters)
        if parameter.alias is not None
    ]
    for at, result in donated:
        assert program.results[result] == program.parameters[at]
    # Three values for each of two parameters, and the embedding's: small ones are not donated.
    of_shape = [
        str(sharding).partition(" over")[0]
        for result, sharding in zip(signature.results, program.results, strict=True)
        if result.type.shape == (HIDDEN, WIDTH)
    ]
    assert of_shape == ["[tp, fsdp]"] * 6


def test_gradients_lie_as_their_parameters() -> None:
    traced = trace(meta(), [tokens()], plan=PLAN, training=True, loss=loss)
    program = traced.over(Mesh.of({"dp": 2, "tp": 2}))
    found = [
        str(sharding).partition(" over")[0]
        for result, sharding in zip(program.program.signature.results, program.results, strict=True)
        if result.type.shape in ((HIDDEN, WIDTH), (WIDTH, HIDDEN))
    ]
    assert sorted(found) == ["[-, tp]"] * 2 + ["[tp, -]"] * 2


def test_the_reference_plugin_compiles_for_devices_that_are_not_there() -> None:
    found = compile_for(
        meta(),
        [tokens()],
        plan=PLAN,
        mesh={"dp": 2, "tp": 4},
        topology="reference:8",
        plugin="reference",
    )
    assert not found.is_estimate
    assert found.source == "the compiler of plugin 'reference'"
    assert (found.compiled is not None, found.fits, found.bound) == (True, None, None)
    whole = 96 * WIDTH + 2 * WIDTH + 2 * WIDTH + WIDTH
    divided = 2 * (2 * WIDTH * HIDDEN + HIDDEN) // 4
    arguments = F32 * (whole + divided) + 8 * (BATCH // 2) * 4
    assert found.memory.arguments == arguments
    assert found.memory.outputs == F32 * (BATCH // 2) * 4 * WIDTH
    # One sum for each layer, of the part of the batch.
    names = {one.operation: (one.count, one.nbytes) for one in found.collectives}
    assert names["all-reduce"] == (2, 2 * F32 * (BATCH // 2) * 4 * WIDTH)


def test_estimates_count_what_each_device_does() -> None:
    traced = trace(meta(), [tokens()], plan=PLAN)
    one, four = (
        compile_for(traced, mesh=mesh) for mesh in ({"dp": 1, "tp": 1}, {"dp": 2, "tp": 2})
    )
    assert one.is_estimate
    assert "no topology is given" in one.source
    assert not one.collectives
    products = 2 * 2 * 2 * (BATCH * 4) * WIDTH * HIDDEN
    assert one.flops is not None
    assert products < one.flops < 1.5 * products
    assert four.flops is not None
    assert products / 4 < four.flops < 1.5 * products / 4
    assert four.memory.arguments < one.memory.arguments
    assert four.exchanged > 0


def test_what_fits_and_what_bounds_it() -> None:
    traced = trace(meta(), [tokens()], plan=PLAN)
    plenty = DeviceFigures(flops=1.0, bandwidth=1e12, links=1e12, memory=10**9)
    found = compile_for(traced, mesh={"tp": 2}, figures=plenty)
    assert (found.fits, found.bound) == (True, "compute")
    assert found.times["compute"] == found.flops
    slow_links = DeviceFigures(flops=1e15, bandwidth=1e12, links=1.0, memory=1000)
    found = compile_for(traced, mesh={"tp": 2}, figures=slow_links)
    assert (found.fits, found.bound) == (False, "communication")
    assert found.times["communication"] == found.exchanged
    slow_memory = DeviceFigures(flops=1e15, bandwidth=1.0, links=1e12, memory=10**9)
    assert compile_for(traced, mesh={"tp": 2}, figures=slow_memory).bound == "memory"


def test_names_of_topologies_bring_figures() -> None:
    traced = trace(meta(), [tokens()], plan=PLAN)
    for name, memory in (("v5e:4x4", 16 * 10**9), ("h100:8", 81_559 << 20)):
        found = compile_for(traced, mesh={"tp": 4}, topology=name, only_estimate=True)
        assert found.fits
        assert found.memory_limit is not None
        assert found.memory_limit <= memory
        assert found.bound is not None


def test_a_model_of_billions_of_parameters_takes_no_memory() -> None:
    """40 billion parameters in double precision, which no machine of the tests has memory for."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(200_000, 100_000, bias=False), nn.ReLU()).double()
        model.append(nn.Linear(100_000, 200_000, bias=False).double())
        x = torch.empty(16, 200_000, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters())
    found = compile_for(
        model, [x], mesh={"fsdp": 16}, training=True, loss=loss, optimizer=optimizer
    )
    count = 2 * 200_000 * 100_000
    assert found.memory.arguments > 3 * 8 * count / 16
    assert found.memory.arguments < 3.1 * 8 * count / 16


def test_the_model_and_its_optimizer_are_not_changed() -> None:
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(BATCH, 4, dtype=torch.int64)).sum().backward()
    optimizer.step()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps = [state["step"].clone() for state in optimizer.state.values()]
    compile_for(
        model,
        [torch.zeros(BATCH, 4, dtype=torch.int64)],
        mesh={"tp": 2},
        plan=PLAN,
        training=True,
        loss=loss,
        optimizer=optimizer,
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert steps == [state["step"] for state in optimizer.state.values()]
    assert not any(module._forward_hooks for module in model.modules())


def test_axes_that_divide_nothing() -> None:
    traced = trace(meta(), [tokens()], plan=PLAN)
    for mesh, idle in (
        ({"dp": 2, "tp": 2}, ()),
        ({"tp": 2, "xx": 2, "one": 1}, ("xx",)),
        ({"dp": 16, "fsdp": 2}, ("dp",)),  # 8 rows do not divide into 16 parts
    ):
        found = compile_for(traced, mesh=mesh)
        assert found.idle_axes == idle
    assert compile_for(trace(meta(), [tokens()]), mesh={"tp": 2}).idle_axes == ("tp",)
    there = {"topology": "reference:2", "plugin": "reference"}
    assert compile_for(traced, mesh={"xx": 2}, **there).idle_axes == ("xx",)

    class Constrained(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return shard_constraint(x * 2, Mesh.of({"sp": 1}), (None, "sp")).sum()

    x = torch.empty(3, 16, device="meta")
    assert compile_for(Constrained(), [x], mesh={"sp": 2}).idle_axes == ()


def test_recurrent_layers_are_loops_whose_turns_count() -> None:
    """The nodes of a graph do not grow with the number of steps, its arithmetic does."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)[0]

    found = []
    for steps in (8, 80):
        with torch.device("meta"):
            model, x = Recurrent(), torch.empty(BATCH, steps, WIDTH)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        traced = trace(model, [x], training=True, loss=loss, optimizer=optimizer)
        found.append((len(traced.captured.module.graph.nodes), compile_for(traced, mesh={"dp": 1})))
    (few, short), (many, long) = found
    assert many == few
    # Two layers multiply input and state, forward and twice in backward; x needs no gradient.
    products = (3 * 2 * 2 - 1) * 2 * 4 * WIDTH * WIDTH * BATCH
    assert short.flops is not None
    assert long.flops is not None
    assert 80 * products < long.flops < 1.2 * 80 * products
    assert 9 < long.flops / short.flops < 10.1


def test_tied_weights_count_once() -> None:
    with torch.device("meta"):
        tied = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
        tied[1].weight = tied[0].weight
        x = torch.empty(8, 64)
    found = compile_for(tied, [x], mesh={"dp": 2}, training=True, loss=loss)
    assert found.memory.arguments == F32 * (64 * 64 + 8 * 64 // 2)


def test_constraints_of_the_model_and_sequences() -> None:
    class Constrained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = shard_constraint(x, Mesh.of({"dp": 1, "tp": 1}), ("dp", "tp"))
            return self.norm(y) * 2

    with torch.device("meta"):
        model, x = Constrained(), torch.empty(8, 16, WIDTH)
    traced = trace(model, [x], plan={"norm": SequenceParallel()})
    mesh = Mesh.of({"dp": 2, "tp": 2})
    (result,) = traced.over(mesh).results
    assert result == Sharding.of(mesh, ("dp", "tp", None), 3)
    (result,) = traced.over(Mesh.of({"dp": 2})).results
    assert result == Sharding.of(Mesh.of({"dp": 2}), ("dp", None, None), 3)


def test_random_numbers() -> None:
    with torch.device("meta"):
        model, x = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)), torch.empty(8, 64)
    found = compile_for(model.train(), [x], mesh={"dp": 2}, training=True, loss=loss)
    assert found.flops


def test_bad_input_is_named() -> None:
    traced = trace(meta(), [tokens()], plan=PLAN)
    with pytest.raises(ProgramError, match=r"parameter 'layers.0.up.weight': .* 3 equal parts"):
        compile_for(traced, mesh={"tp": 3})
    with pytest.raises(OptionError, match="no module matches 'gone'"):
        trace(meta(), [tokens()], plan={"gone": ColwiseParallel()})
    with pytest.raises(OptionError, match="divides batches"):
        trace(meta(), [tokens()], plan=PLAN, axis="dp")
    with pytest.raises(OptionError, match="belong to training"):
        trace(meta(), [tokens()], loss=loss)
    with pytest.raises(OptionError, match="traced already"):
        compile_for(traced, [tokens()], mesh={"tp": 2})
    with pytest.raises(OptionError, match=r"needs 4 devices, the topology 'reference:2' has 2"):
        compile_for(traced, mesh={"tp": 4}, topology="reference:2", plugin="reference")
    with pytest.raises(PluginNotFound, match="knows the topology"):
        compile_for(traced, mesh={"tp": 4}, topology="nowhere:4", only_estimate=False)
    with pytest.raises(OptionError, match="bandwidth: found 0"):
        DeviceFigures(flops=1.0, bandwidth=0, links=1.0, memory=1)


def test_what_does_not_lower_is_listed() -> None:
    """Adagrad reads its counter of steps as a number."""
    model = meta(1)
    optimizer = torch.optim.Adagrad(model.parameters())
    traced = trace(model, [tokens()], training=True, loss=loss, optimizer=optimizer)
    with pytest.raises(NotExportable, match=r"aten\._local_scalar_dense.* depends on data"):
        compile_for(traced, mesh={"dp": 2})


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adamax])
def test_optimizers(optimizer: type[torch.optim.Optimizer]) -> None:
    model = meta(1)
    made = optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    found = compile_for(
        model, [tokens()], mesh={"fsdp": 2}, training=True, loss=loss, optimizer=made
    )
    assert math.isfinite(found.flops or math.nan)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(torch.optim.SGD, {"lr": 0.125}), (torch.optim.AdamW, {"betas": (0.75, 0.875)})],
)
def test_options_that_are_tensors_are_their_numbers(
    optimizer: Callable[..., torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    def text(given: dict[str, Any]) -> str:
        model = meta(2)
        made = optimizer(model.parameters(), **given)
        traced = trace(model, [tokens()], training=True, loss=loss, optimizer=made)
        return traced.over(Mesh.of({"fsdp": 2})).program.text

    tensors = {key: pytree.tree_map(torch.tensor, option) for key, option in options.items()}
    assert text(tensors) == text(options)


def test_what_was_compiled_runs_where_the_devices_are() -> None:
    """The bytes of a program that was compiled for a topology, on a client with the devices."""
    with torch.device("meta"):
        model, x = nn.Linear(8, 4, bias=False), torch.empty(2, 8)
    found = compile_for(model, [x], mesh={"dp": 1}, topology="reference:1", plugin="reference")
    assert found.compiled is not None
    client = pjrt_bridge.client("reference")
    loaded = client.deserialize(found.compiled.serialize())
    weight, given = torch.randn(4, 8), torch.randn(2, 8)
    (result,) = loaded(weight.numpy(), given.numpy())
    torch.testing.assert_close(torch.tensor(result.to_numpy()), given @ weight.T)


@pytest.mark.slow
def test_the_work_of_planning_grows_with_the_layers_no_faster() -> None:
    """No function of Python is called more than in proportion to what is added to a model."""
    # Torch's verifier asks for all outputs at each of them, which takes a few seconds of minutes.
    verifier = "graph_signature.py"

    def calls(layers: int) -> Counter[tuple[str, int, str]]:
        model = meta(layers)
        profile = cProfile.Profile()
        profile.enable()
        traced = trace(
            model,
            [tokens()],
            plan=PLAN,
            training=True,
            loss=loss,
            optimizer=torch.optim.AdamW(model.parameters()),
        )
        compile_for(traced, mesh={"fsdp": 2, "tp": 2}, only_estimate=True)
        profile.disable()
        stats: Any = pstats.Stats(profile)
        return Counter({function: count for function, (_, count, *_) in stats.stats.items()})

    calls(1)  # caches are filled once
    few, more, many = map(calls, (1, 2, 4))
    added = {function: count - more[function] for function, count in many.items()}
    too_many = {
        function: (few[function], more[function], count)
        for function, count in many.items()
        if not function[0].endswith(verifier)
        and count > 1000
        and added[function] > 2.5 * (more[function] - few[function])
    }
    assert too_many == {}

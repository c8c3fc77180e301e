"""`pjrt-bridge plan`: over which meshes of devices that are not there a model fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from pjrt_bridge.cli.console import calling, columns, note, out, print_json
from pjrt_bridge.cli.frameworks import need_torch
from pjrt_bridge.cli.plugins import AsJson
from pjrt_bridge.errors import (
    OptionError,
    PjrtError,
    PluginNotFound,
    ProgramError,
    Unimplemented,
)
from pjrt_bridge.registry import topology as describe
from pjrt_bridge.report.wording import byte_size, duration, large_count, magnitude
from pjrt_bridge.runtime.compile.progress import working
from pjrt_bridge.stablehlo import Mesh

if TYPE_CHECKING:
    from pjrt_bridge.registry import Budget
    from pjrt_bridge.torch_interop.planning import TracedModel

_AXIS = "tp"


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="A module class, or a function that makes the model, or the model and its plan "
            "(torch's parallel styles by names of modules), as package.module:name or "
            "path/to/file.py:name. It is called under torch.device('meta'), so no weights are "
            "made.",
            metavar="MODULE:CALLABLE",
        ),
    ],
    mesh: Annotated[
        list[str],
        typer.Option(
            "--mesh",
            "-m",
            metavar="AXIS=N,...",
            help="Axes of a mesh: batches are divided over dp and fsdp, parameters over fsdp, and "
            "over --axis as the plan states. Repeatable; each mesh gives one line.",
        ),
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="[NAME=]INPUT",
            help="An argument, in order or by name: f32[8,64], labels=i64[4,128].",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option("--topology", "-t", help="The devices, such as v5e:4x4 or h100:8."),
    ] = None,
    plugin: Annotated[
        str | None,
        typer.Option(
            "--plugin",
            "-p",
            help="A plugin's name; by default the one whose package knows the topology.",
        ),
    ] = None,
    training: Annotated[
        bool,
        typer.Option("--training", help="Plan loss and gradients; the model returns its loss."),
    ] = False,
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            help="Plan a whole training step with this class of torch.optim, such as AdamW.",
        ),
    ] = None,
    axis: Annotated[
        str, typer.Option("--axis", help="The mesh axis that the plan divides over.")
    ] = _AXIS,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Estimate instead of compiling, which may take minutes."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the memory and cost of a model on each device of a mesh, without the devices.

    Memory, cost and collective operations come from the topology's compiler. If there is none, the
    bridge divides the program with Shardy and estimates them. The time "at best" is the longest of
    the times for computing, memory traffic and communication at the device's peak figures.
    """
    meshes = [Mesh.read(text) for text in mesh]
    if axis != _AXIS and not any(axis in one.sizes for one in meshes):
        names = ", ".join(map(str, meshes))
        raise OptionError(f"--axis: found {axis!r}, expected an axis of a mesh; found {names}")
    if topology is not None and not estimate:
        _need_devices(topology, plugin)
    need_torch("plan")
    with working(f"tracing {model}", in_files=True, delay=0):
        from pjrt_bridge.torch_interop.planning.named import traced_model

        with calling(model):
            traced = traced_model(model, input or (), axis, optimizer, training=training)
    found: list[Budget | str] = []
    for one in meshes:
        with working(f"planning {one.listed}", in_files=True, delay=0):
            found.append(_budget(traced, one, topology, plugin, only_estimate=estimate))
    if all(isinstance(one, str) for one in found):
        raise OptionError("plan: " + "; ".join(map(str, found)))
    if as_json:
        rows = [_data(one, budget) for one, budget in zip(meshes, found, strict=True)]
        count = traced.parameters
        print_json({"name": traced.name, "parameters": count, "topology": topology, "meshes": rows})
        return
    console = out()
    # Folded cells would be harder to read than lines that the terminal wraps.
    console.width = max(console.width, 120)
    console.print(Text(f"{traced.name}, {large_count(traced.parameters)} parameters", "bold"))
    console.print(_table(meshes, found))
    budgets = [one for one in found if not isinstance(one, str)]
    for source in dict.fromkeys(one.source for one in budgets):
        console.print(f"  by {source}", markup=False)
    console.print(f"  {_verdict(budgets)}", markup=False)
    for one, account in zip(meshes, found, strict=True):
        if isinstance(account, str):
            note(f"{one}: {account}")
        elif account.idle_axes:
            note(f"{one}: {_idle(account, axis)}")


def _need_devices(topology: str, plugin: str | None) -> None:
    """Tracing takes minutes, so a plugin that is missing is an error before it."""
    try:
        describe(topology, plugin)
    except PluginNotFound as error:
        raise PluginNotFound(f"{error}; --estimate asks no compiler") from error
    except Unimplemented:
        return  # what the topology's package knows is enough for an estimate


def _budget(
    traced: TracedModel,
    mesh: Mesh,
    topology: str | None,
    plugin: str | None,
    *,
    only_estimate: bool,
) -> Budget | str:
    """The budget of one mesh, or why there is none."""
    from pjrt_bridge.torch_interop.planning import compile_for

    try:
        return compile_for(
            traced, mesh=mesh, topology=topology, plugin=plugin, only_estimate=only_estimate
        )
    except (OptionError, ProgramError, PjrtError) as error:
        return str(error)


def _idle(budget: Budget, axis: str) -> str:
    """That axes divide nothing, and what would be divided over which."""
    names = ", ".join(budget.idle_axes)
    return (
        f"nothing is divided over {names}: devices along such an axis do the same work. Arguments "
        "are divided over dp and fsdp, where these divide the first dimension; parameters over "
        f"fsdp, and over {axis} (--axis) as the plan states"
    )


def _table(meshes: Sequence[Mesh], found: Sequence[Budget | str]) -> Table:
    memory_of = ("needed", "arguments", "results", "temporaries")
    table = columns("mesh", "fits", *memory_of, "flops", "traffic", "exchanged", "bound", "at best")
    for mesh, budget in zip(meshes, found, strict=True):
        if isinstance(budget, str):
            table.add_row(mesh.listed, "-", *[""] * 9)
            continue
        memory = budget.memory
        table.add_row(
            mesh.listed,
            {True: "yes", False: "NO", None: "?"}[budget.fits],
            byte_size(memory.needed),
            byte_size(memory.arguments),
            byte_size(memory.outputs - memory.aliased),
            byte_size(memory.temporaries),
            "?" if budget.flops is None else magnitude(budget.flops),
            "?" if budget.bytes_accessed is None else byte_size(int(budget.bytes_accessed)),
            byte_size(budget.exchanged),
            budget.bound or "?",
            duration(max(budget.times.values())) if budget.times else "?",
        )
    return table


def _verdict(budgets: Sequence[Budget]) -> str:
    """Which of the meshes fit, and which of these is fastest at best."""
    limit = next((one.memory_limit for one in budgets if one.memory_limit is not None), None)
    if limit is None:
        return "the memory of the devices is not known: name a topology that a package knows"
    fitting = [one for one in budgets if one.fits]
    if not fitting:
        least = min(budgets, key=lambda one: one.memory.needed)
        return (
            f"none fits {byte_size(limit)}; {least.mesh.listed} needs least, "
            f"{byte_size(least.memory.needed)}"
        )
    told = [one for one in fitting if one.times]
    if not told:
        return f"{len(fitting)} of {len(budgets)} fit {byte_size(limit)}"
    best = min(told, key=lambda one: max(one.times.values()))
    return (
        f"{len(fitting)} of {len(budgets)} fit {byte_size(limit)}; fastest at best: "
        f"{best.mesh.listed}, bound by {best.bound}"
    )


def _data(mesh: Mesh, budget: Budget | str) -> dict[str, Any]:
    if isinstance(budget, str):
        return {"mesh": mesh.sizes, "problem": budget}
    return {
        "mesh": mesh.sizes,
        "source": budget.source,
        "estimate": budget.is_estimate,
        "fits": budget.fits,
        "refused": budget.refused,
        "memory": {**asdict(budget.memory), "needed": budget.memory.needed},
        "memory_limit": budget.memory_limit,
        "flops": budget.flops,
        "bytes_accessed": budget.bytes_accessed,
        "collectives": [asdict(one) for one in budget.collectives],
        "times": budget.times,
        "bound": budget.bound,
        "idle_axes": budget.idle_axes,
        "seconds": budget.seconds,
    }

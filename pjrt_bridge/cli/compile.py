"""`pjrt-bridge compile`: a program for devices that need not be there, its cost and its memory."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pjrt_bridge import registry
from pjrt_bridge.cli.console import facts, out, parse_options, print_json
from pjrt_bridge.cli.opening import Choice, known_sizes, open_model
from pjrt_bridge.cli.plugins import AsJson
from pjrt_bridge.errors import OptionError, PjrtError
from pjrt_bridge.mixed.wording import byte_size

if TYPE_CHECKING:
    from pjrt_bridge.abi.values import NamedValue
    from pjrt_bridge.exported import ExportedModel
    from pjrt_bridge.runtime import Client, Compiled, MemoryStats, Topology
    from pjrt_bridge.stablehlo import Program


def compile(
    model: Annotated[
        Path,
        typer.Argument(
            help="A saved model, a bundle of PyTorch/XLA, StableHLO (text, bytecode or a portable "
            "artifact), or what jax.export wrote.",
            metavar="DIR|FILE",
        ),
    ],
    plugin: Annotated[
        str | None,
        typer.Option(
            "--plugin",
            "-p",
            help="A plugin's name, a library, or name:library; by default the one that knows the "
            "topology.",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            "-t",
            help="The devices to compile for, such as v5e:2x2, h100 or h100:8; by default those "
            "of this machine.",
        ),
    ] = None,
    target_config: Annotated[
        Path | None,
        typer.Option(
            "--target-config", help="A GpuTargetConfigProto as text, for a GPU without a name."
        ),
    ] = None,
    function: Annotated[
        str | None, typer.Option("--function", help="Of a bundle that holds several.")
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(
            "--platform",
            help="Of what jax.export wrote for several: cpu, cuda, tpu; by default the target's.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=N",
            help="Of a model with programs for several, or of what jax.export left symbolic.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="A create option of the topology. Repeatable."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the compiled program there."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model or a program ahead of time, and tell its cost and the memory it needs.

    The devices need not be there. What is written is loaded with `Client.deserialize` on a machine
    that has them and the same version of the plugin.
    """
    options = parse_options(option or ())
    if target_config is not None:
        options["target_config"] = target_config.read_text(encoding="utf-8")

    @cache
    def target() -> Client | Topology:
        if topology is None and not options:
            return registry.client(plugin)
        return registry.topology(topology or "", plugin, **options)

    choice = Choice(function, platform, size or (), default_platform=lambda: target().platform_name)
    program = _program(model, open_model(model, choice))
    started = time.perf_counter()
    compiled = target().compile(program)
    seconds = time.perf_counter() - started
    data = compiled.serialize() if output is not None else None
    if output is not None and data is not None:
        output.write_bytes(data)
    account = _account(compiled)
    if as_json:
        print_json({**account, "seconds": seconds, "output": output and str(output)})
        return
    console = out()
    console.print(Text(compiled.name, "bold"))
    console.print(facts(_rows(compiled, account, seconds)))
    if output is not None and data is not None:
        console.print(f"wrote {output} ({byte_size(len(data))})", markup=False)


def _program(path: Path, model: ExportedModel) -> Program:
    """The one program of a model.

    Raises:
        OptionError: there are several.
    """
    if len(model.specializations) > 1:
        raise OptionError(
            f"--size: {path} has {len(model.specializations)} programs; choose one, their sizes "
            f"are: {known_sizes(model)}"
        )
    return model.program


def _account(compiled: Compiled) -> dict[str, Any]:
    """What the compiler tells; None for what it does not."""
    cost: dict[str, NamedValue] | None = None
    memory: MemoryStats | None = None
    fingerprint: str | None = None
    with suppress(PjrtError):
        cost = compiled.cost()
    with suppress(PjrtError):
        memory = compiled.memory_stats()
    with suppress(PjrtError):
        fingerprint = compiled.fingerprint()
    limit = compiled.memory_limit
    return {
        "name": compiled.name,
        "plugin": compiled.api.plugin,
        "platform": compiled.platform,
        "topology": compiled.target,
        "fingerprint": fingerprint,
        "cost": cost,
        "memory": None if memory is None else {**asdict(memory), "needed": memory.needed},
        "memory_limit": limit,
        "fits": None if memory is None or limit is None else memory.needed <= limit,
    }


def _rows(compiled: Compiled, account: dict[str, Any], seconds: float) -> dict[str, object]:
    where = compiled.target or "this machine"
    rows: dict[str, object] = {
        "compiled": f"for {where}, plugin {account['plugin']}, in {seconds:.1f} s",
        "platform": " ".join(account["platform"].split()),
    }
    cost = account["cost"] or {}
    # Whole-program figures; the others are for single operands.
    for name in ("flops", "transcendentals", "bytes accessed"):
        if isinstance(cost.get(name), float):
            rows[name] = _count(cost[name])
    if isinstance(cost.get("optimal_seconds"), float) and cost["optimal_seconds"] > 0:
        rows["at best"] = f"{cost['optimal_seconds'] * 1e3:,.3f} ms"
    if not cost:
        rows["cost"] = "the plugin does not tell"
    memory = account["memory"]
    if memory is None:
        rows["memory"] = "the plugin does not tell"
        return rows
    for name in ("arguments", "outputs", "aliased", "temporaries", "generated_code"):
        rows[name.replace("_", " ")] = byte_size(memory[name])
    rows["needed"] = f"{byte_size(memory['needed'])} on each device"
    limit = account["memory_limit"]
    if limit is not None:
        share = f"{100 * memory['needed'] / limit:.1f} % of {byte_size(limit)}"
        rows["fits"] = f"yes, {share}" if account["fits"] else f"NO, {share}"
    return rows


def _count(number: float) -> str:
    for power, unit in ((1e12, "tera"), (1e9, "giga"), (1e6, "mega")):
        if number >= power:
            return f"{number / power:,.2f} {unit}"
    return f"{number:,.0f}"

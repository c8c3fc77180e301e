"""`pjrt-bridge bench`: a function of PyTorch eagerly, with Inductor, and on a plugin."""

from __future__ import annotations

from typing import Annotated

import typer

from pjrt_bridge.cli.console import out
from pjrt_bridge.cli.frameworks import need_torch
from pjrt_bridge.cli.plugins import AsJson, PluginName
from pjrt_bridge.cli.turns import EAGER, OURS, compare
from pjrt_bridge.errors import OptionError
from pjrt_bridge.runtime.compile.progress import working

INDUCTOR = "inductor"


def bench(
    target: Annotated[
        str,
        typer.Argument(
            help="A function or module, as package.module:name or path/to/file.py:name; a function "
            "without arguments may return (model, args) or (model, args, kwargs).",
            metavar="MODULE:CALLABLE",
        ),
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="INPUT",
            help="An argument, in order: f32[8,64], i64[4,128]<1000 (random numbers), FILE.npy.",
        ),
    ] = None,
    plugin: PluginName = None,
    train: Annotated[
        bool, typer.Option("--train", help="Also compute gradients of the result.")
    ] = False,
    generate: Annotated[
        int | None,
        typer.Option(
            "--generate",
            min=2,
            metavar="TOKENS",
            help="Measure model.generate of this many tokens.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="WAY", help="Do not run eager, or inductor."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Samples of each, at most.")] = 15,
    budget: Annotated[
        float, typer.Option("--budget", min=0.0, help="Seconds for all rounds, about.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Compare a function run eagerly, compiled by Inductor, and compiled for a plugin.

    Each runs in its own process. The processes take turns, and the medians are compared. The
    results of the first calls are compared with eager's. Without --train no gradients are computed.
    """
    need_torch("bench")
    unknown = sorted(set(without or ()) - {EAGER, INDUCTOR})
    if unknown:
        raise OptionError(f"--without {unknown[0]}: expected {EAGER} or {INDUCTOR}")
    if train and generate is not None:
        raise OptionError("found --train and --generate, expected one of them")
    case = {
        "inputs": input or [],
        "options": {} if plugin is None else {"plugin": plugin},
        "train": train,
        "new_tokens": generate,
    }
    ways = [way for way in (EAGER, INDUCTOR, OURS) if way not in (without or ())]
    with working(f"measuring {target}", delay=0) as say:
        found = compare(target, ways, case, rounds=rounds, budget=budget, note=say)
    if as_json:
        print(found.to_json())
    else:
        out().print(found)
    if all(not item.samples for item in found.timings):
        raise OptionError(f"{target}: {found.timings[-1].failed}")

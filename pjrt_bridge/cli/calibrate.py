"""`pjrt-bridge calibrate`: measure what PyTorch computes faster than a plugin."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Annotated

import typer

from pjrt_bridge import registry
from pjrt_bridge.cli.console import columns, out, print_json
from pjrt_bridge.cli.frameworks import need_torch
from pjrt_bridge.cli.plugins import AsJson
from pjrt_bridge.report.wording import duration
from pjrt_bridge.runtime.compile.progress import working


def calibrate(
    name: Annotated[
        str | None, typer.Argument(help="A plugin's name; by default the one that is used.")
    ] = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(
            "--operator", metavar="OPERATOR", help="Measure only this one, such as aten.sort."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do not save the result.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure which operators PyTorch computes faster than a plugin, and from which size on.

    Afterwards, with `torch.compile(backend="pjrt")`, PyTorch runs these operators at such sizes, on
    this machine and with this build of the plugin, unless options={"placement": "device"} is given.
    The measurement takes some minutes, in which no other program should run.
    """
    need_torch("calibrate")
    from pjrt_bridge.torch_interop.placement import calibration

    info = registry.select(name)
    client = registry.client(info)
    if not dry_run:
        # Before the minutes that it takes.
        calibration.check_can_save(client)
    reference = info.name if info.library is None else f"{info.name}:{info.library}"
    found = []
    with working("calibrating", in_files=True, delay=0) as say, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for item in calibration.measure(reference, operator):
            found.append(item)
            say(f"calibrating: {item.operator}, {item.elements:,} elements")
    limits = calibration.thresholds(found)
    path = None if dry_run else calibration.save(client, found)
    if as_json:
        print_json(
            {
                "plugin": info.name,
                "file": None if path is None else str(path),
                "slower": limits,
                "measured": [asdict(item) for item in found],
            }
        )
        return
    table = columns("operator", "elements", info.name, "PyTorch", "ratio", "")
    for item in found:
        limit = limits.get(item.operator)
        table.add_row(
            item.operator,
            f"{item.elements:,}",
            duration(item.device),
            duration(item.host),
            f"{item.device / item.host:.2f}",
            "PyTorch" if limit is not None and item.elements >= limit else "",
        )
    out().print(table)
    if path is not None:
        out().print(f"kept in {path}", soft_wrap=True)

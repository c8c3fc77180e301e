"""Outcomes of trials that the package ships, so that known builds need no trial.

`outcomes.json` has what `probe` found for a build of the plugin, a build of PyTorch and a set of
vector instructions. It holds only where all three are the same and `XLA_FLAGS` is not set. Where
operators were added since, the trial is made, and what is shipped holds until it has ended.

`python -m pjrt_bridge_cpu.aten.outcomes --write` runs the trial here and adds or replaces the
entry of this machine; without `--write` it compares, and ends with status 1 where they differ.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pjrt_bridge import registry
from pjrt_bridge.runtime.compile.identity import library_hash
from pjrt_bridge_cpu.aten import library as torch_library
from pjrt_bridge_cpu.aten import probe
from pjrt_bridge_cpu.aten.operators import OPERATORS
from pjrt_bridge_cpu.aten.probe import Findings
from pjrt_bridge_cpu.aten.processor import instructions

FILE = Path(__file__).with_name("outcomes.json")

Key = tuple[str, str, str]
"""Hash of the plugin's library, build of PyTorch, vector instructions."""

_ASSIGNED = re.compile(r"^(__version__|git_version)\b[^=\n]*= *['\"]([^'\"]+)['\"]", re.MULTILINE)


def shipped(library: Path) -> Findings | None:
    """The findings that the package ships for a build of the plugin here; None if it has none."""
    if os.environ.get("XLA_FLAGS"):
        return None
    key = key_of(library)
    return None if key is None else entries().get(key)


def is_of_all_uses(findings: Findings) -> bool:
    """Whether findings are of every operator that programs call."""
    return {use.partition(" ")[0] for use in findings} >= set(map(str, OPERATORS))


def key_of(library: Path) -> Key | None:
    """Under which an outcome of this machine would be shipped; None without PyTorch's library."""
    torch = _torch_build()
    return None if torch is None else (library_hash(library), torch, instructions())


@cache
def entries() -> dict[Key, Findings]:
    """All that is shipped."""
    try:
        found = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {
        (one["plugin"], one["torch"], one["instructions"]): {
            **dict.fromkeys(one["right"], ""),
            **one["wrong"],
        }
        for one in found
    }


def _torch_build() -> str | None:
    """Version and commit of the PyTorch that is installed, without importing it."""
    library = torch_library.library()
    if library is None:
        return None
    try:
        text = (library.parent.parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = dict(_ASSIGNED.findall(text))
    return " ".join(found.values()) if len(found) == 2 else None


def main(arguments: Sequence[str]) -> int:
    """Run the trial here, and compare or write what it found."""
    parser = argparse.ArgumentParser(
        prog="python -m pjrt_bridge_cpu.aten.outcomes", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="add or replace this machine's entry")
    options = parser.parse_args(arguments)
    library = registry.load("cpu").library
    key = None if library is None else key_of(library)
    if library is None or key is None:
        parser.error("expected the CPU plugin's library and PyTorch, found one of them missing")
    probed = probe.probe(library, seconds=600)
    if not probed.final:
        parser.error("the trial did not come to an end; try again on a machine with less work")
    print(f"{library}\nPyTorch {key[1]}\n{key[2]}")
    wrong = {use: reason for use, reason in probed.findings.items() if reason}
    print(f"{len(probed.findings) - len(wrong)} uses are right, {len(wrong)} are not:", *wrong)
    if options.write:
        _write({**entries(), key: probed.findings})
        return 0
    same = _verdicts(entries().get(key, {})) == _verdicts(probed.findings)
    print("as shipped" if same else "not as shipped: run it with --write")
    return 0 if same else 1


def _verdicts(findings: Findings) -> dict[str, bool]:
    return {use: not reason for use, reason in findings.items()}


def _write(found: dict[Key, Findings]) -> None:
    data = [
        {
            "plugin": plugin,
            "torch": torch,
            "instructions": instructions,
            "wrong": {use: reason for use, reason in findings.items() if reason},
            "right": sorted(use for use, reason in findings.items() if not reason),
        }
        for (plugin, torch, instructions), findings in sorted(found.items())
    ]
    FILE.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

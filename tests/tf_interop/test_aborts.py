"""What could kill the process does not, and bad input is told: each trigger, in other processes."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRIGGERS = [
    node.name
    for module in sorted((Path(__file__).parent / "triggers").glob("*.py"))
    for node in ast.parse(module.read_text()).body
    if isinstance(node, ast.FunctionDef)
    if any(isinstance(one, ast.Name) and one.id == "trigger" for one in node.decorator_list)
]


def outcomes() -> Mapping[str, str]:
    """What became of each; a process that died is followed by one for the rest."""
    found: dict[str, str] = {}
    while rest := [name for name in TRIGGERS if name not in found]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.tf_interop.triggers", *rest],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=os.environ | {"PJRT_BRIDGE_CACHE": "off", "TF_CPP_MIN_LOG_LEVEL": "3"},
            timeout=250,
        )
        lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
        found |= {line[1]: line[2] for line in lines if line[0] == "end"}
        begun = [line[1] for line in lines if line[0] == "begin" and line[1] not in found]
        if done.returncode != 0:
            # After the last one it died at its exit.
            died = begun[0] if begun else rest[-1]
            found[died] = json.dumps(f"exit status {done.returncode}\n{done.stderr[-3000:]}")
    return found


def test_no_trigger_kills_the_process_and_each_is_answered() -> None:
    assert len(TRIGGERS) >= 30
    failed = {name: json.loads(text) for name, text in outcomes().items() if text != "ok"}
    assert not failed, "\n\n".join(f"{name}: {text}" for name, text in failed.items())

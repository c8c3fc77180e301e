"""What could kill the process does not, and bad input is told: each trigger, in other processes."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRIGGERS = [
    node.name
    for node in ast.parse((Path(__file__).parent / "triggers.py").read_text()).body
    if isinstance(node, ast.FunctionDef)
    if any(isinstance(one, ast.Name) and one.id == "trigger" for one in node.decorator_list)
]


@pytest.fixture(scope="module")
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
        open_ones = [line[1] for line in lines if line[0] == "begin" and line[1] not in found]
        if done.returncode != 0:
            died = open_ones[0] if open_ones else rest[-1]
            found[died] = json.dumps(f"exit status {done.returncode}\n{done.stderr[-3000:]}")
    return found


@pytest.mark.parametrize("name", TRIGGERS)
def test_the_process_lives_and_the_bridge_does_right(
    outcomes: Mapping[str, str], name: str
) -> None:
    outcome = outcomes[name]
    assert outcome == "ok", json.loads(outcome)

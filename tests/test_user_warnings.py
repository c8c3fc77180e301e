"""Warnings name the line of the user's that led to them."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pjrt_bridge import user_warnings
from pjrt_bridge.errors import BridgeWarning, HostFallbackWarning


def test_the_line_is_that_of_the_caller() -> None:
    with pytest.warns(BridgeWarning, match="text") as caught:
        user_warnings.warn("text")
    assert (caught[0].filename, caught[0].category) == (__file__, BridgeWarning)


def test_lines_of_the_bridge_and_of_frameworks_are_passed_over(tmp_path: Path) -> None:
    inner = {"__name__": "pjrt_bridge.somewhere", "warn": user_warnings.warn, "text": "text"}
    exec("def call(): warn(text)", inner)
    outer = {"__name__": "torch.nn.somewhere", "call": inner["call"]}
    exec("def run(function): function()", outer)
    with pytest.warns(BridgeWarning, match="text") as caught:
        outer["run"](inner["call"])  # type: ignore[operator]
    assert caught[0].filename == __file__


def test_without_a_line_of_the_user_there_is_a_warning_all_the_same() -> None:
    here = {"__name__": "pjrt_bridge.somewhere", "warn": user_warnings.warn}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import threading

        thread = threading.Thread(target=here["warn"], args=("text", HostFallbackWarning))
        thread.start()
        thread.join()
    assert [item.category for item in caught] == [HostFallbackWarning]


def test_a_fallback_names_the_users_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "torch.library.define('t::twice', '(Tensor x) -> Tensor')\n"
        "torch.library.impl('t::twice', 'CPU', lambda x: x * 2)\n"
        "torch.library.register_fake('t::twice', torch.empty_like)\n"
        "inner = torch.compile(torch.ops.t.twice, backend='pjrt')\n"
        "class Outer(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return inner(x)\n"
        "Outer()(torch.ones(4))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=True
    )
    (line,) = (line for line in done.stderr.splitlines() if "HostFallbackWarning" in line)
    assert line.startswith(f"{script}:8: ")

"""New processes find modules where this one does, and not in the working directory."""

import os
import subprocess
import sys
from pathlib import Path

from pjrt_bridge import child_processes

HARMFUL = """
import pathlib
pathlib.Path(__file__).with_name("was_run").touch()
"""

READ = """
import sys
from pjrt_bridge.stablehlo import Program
print(Program.from_file(sys.argv[1]).name)
"""


def test_a_folder_that_is_worked_in_runs_nothing(tmp_path: Path) -> None:
    from pjrt_bridge.stablehlo import Program

    program = Program.parse("module @kept { func.func @main() { return } }")
    (tmp_path / "program.mlirbc").write_bytes(program.bytecode())
    for name in ("select", "contextlib", "jaxlib", "json"):
        (tmp_path / f"{name}.py").write_text(HARMFUL)
    done = subprocess.run(
        [sys.executable, "-P", "-c", READ, "program.mlirbc"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.strip() == "kept", done.stderr
    assert not (tmp_path / "was_run").exists()


def test_a_new_process_finds_what_this_one_finds(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "found_beside.py").write_text("import sys\nprint(sys.argv[1])")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = subprocess.run(
        child_processes.command("found_beside", "here"),
        env=child_processes.environment({"MORE": "1"}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "here"

"""New processes find modules where this one does, and not in the working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("one\ntwo\n", "two"),
        (
            "12:00 | info | UMD | opened\n"
            "12:00 | critical |  Always | TT_FATAL: No chips detected (assert.hpp:104)\n"
            "terminate called after throwing an instance of 'std::runtime_error'\n"
            "  what():  TT_FATAL @ a/b.cpp:129: num_chips > 0\nbacktrace:\n --- /lib/x.so(+0x3)",
            "No chips detected",
        ),
        ("noise\n  what():  no device\n --- frame\nlast", "no device"),
        (
            "W0000 00:00:1.2 7 a.cc:1] beware\n"
            "F0000 00:00:1.2 7 b.cc:22] Check failed: n > 0 \n*** Check failure stack trace: ***\n"
            "    @     0x7ffe5c169110  (unknown)\n",
            "Check failed: n > 0",
        ),
        ("\x1b[31mred\x1b[0m\n", "red"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_last_words_say_why_a_process_died(text: str, words: str) -> None:
    assert child_processes.last_words(text) == words


def test_how_a_process_ended() -> None:
    assert child_processes.ended(3) == "ended the process with status 3"
    assert child_processes.ended(-6) == "crashed (SIGABRT)"
    assert child_processes.ended(-99) == "crashed (signal 99)"


SERVED = """
import warnings
from pjrt_bridge.child_processes import serve


def answer(request):
    print("what libraries print")
    warnings.warn("not shown")
    return {"twice": 2 * request["number"]}


serve(answer)
"""


def test_answers_are_all_that_is_on_standard_output() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVED],
        input='{"number": 1}\n{"number": 2}\n',
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == '{"twice": 2}\n{"twice": 4}\n'
    assert done.stderr == "what libraries print\n" * 2

"""Attacks by command lines: arguments that are none, in every combination."""

from __future__ import annotations

import contextlib
import io
import random
import sys
from pathlib import Path

import numpy as np

from pjrt_bridge.cli.main import main
from tests import programs
from tests.attacks.registry import subject
from tests.exported.models import by_size, scaled

_PATHS = (
    "add.mlir", "model", "sizes", "empty", "text", "x.npy", "add.exe", "nowhere", "", "/", ".",
    "a\nb", "ünïcode", "-", "--", "x" * 5000, "/dev/null", "/proc/self/mem", "nowhere/below",
    "/dev/zero",
)  # fmt: skip
_INPUTS = (
    "x.npy", "y.npy", "objects.npy", "f32[4]", "f32[", "x=y.npy", "=", "", "add.mlir", "arg0=x.npy",
    "str[a]", "f99[2]", "f32[99999999999999999999]", "i32[2]<0", "nowhere.npy", "x.npz",
)  # fmt: skip
_OPTIONS = (
    ("--plugin", ("cpu", "reference", "nope", "", "cpu:/nowhere", "/etc/passwd", ":", "cuda")),
    ("--input", _INPUTS),
    ("--size", ("n=2", "n", "=2", "n=-1", "n=999999999999999999999", "")),
    ("--function", ("forward", "", "nope")),
    ("--platform", ("cpu", "tpu", "nope", "")),
    ("--option", ("cpu_device_count=2", "x", "=", "cpu_device_count=[", "cpu_device_count=true")),
    ("--output-dir", ("out", "add.mlir", "/proc/out")),
    ("--output", ("out.exe", "empty", "/proc/out", "nowhere/out")),
    ("--topology", ("reference:2", "nope", "", "v5e:2x2", "reference:-1", "reference:99999999")),
    ("--target-config", ("nowhere", "add.mlir", "/", "/dev/zero")),
)
_COMMANDS = (*("run",) * 4, *("compile",) * 2, "inspect", "explain", "cache", "plugins", "nope")
_TARGETS = ("x.py:f", "nowhere.py:f", "json:nope", "json", ":", "broken.py:f", "a.b.c:d", "")


def _folder() -> None:
    if Path("add.mlir").exists():
        return
    Path("add.mlir").write_text(programs.ADD)
    Path("text").write_text("neither")
    Path("empty").mkdir()
    Path("broken.py").write_text("1 / 0\n")
    np.save("x.npy", np.ones(64, np.float32))
    np.save("y.npy", np.ones((2, 3), np.int8))
    np.savez("x.npz", a=np.ones(3))
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    scaled().save("model")
    by_size().save("sizes")


@subject(250)
def command_lines(number: int) -> None:
    """One message and an exit status, whatever is typed."""
    _folder()
    chance = random.Random(number)
    name = chance.choice(_COMMANDS)
    arguments = [name]
    if name != "cache" or chance.random() < 0.2:
        arguments.append(chance.choice(_TARGETS if name == "explain" else _PATHS))
    for _ in range(chance.randrange(4)):
        option, values = chance.choice(_OPTIONS)
        arguments += [option, chance.choice(values)]
    if chance.random() < 0.1:
        arguments.append(chance.choice(("--json", "--trusted", "--nope", "--clear")))
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv, list(sys.path)
    sys.argv = ["pjrt-bridge", *arguments]
    code: object = "none"
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.argv, sys.path[:] = before
    text = err.getvalue()
    assert code in (0, 1, 2), f"{arguments}: exit status {code}"
    assert "internal error" not in text, f"{arguments}: {text}"
    assert "Traceback" not in text, f"{arguments}: {text}"
    assert code == 0 or text.strip(), f"{arguments}: no message"

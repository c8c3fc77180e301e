"""docs/process.md lists every environment variable, and what else the code changes in a process."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "process.md").read_text()
SOURCES = [
    path
    for folder in ("pjrt_bridge", "conformance", "plugins")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".c", ".h") and "build" not in path.relative_to(ROOT).parts
]
FIRST_COLUMN = {
    name
    for line in PAGE.splitlines()
    if line.startswith("| `")
    for name in re.findall(r"`([A-Z_]+)`", line.split("|")[1])
}
"""Variables that have a row of their own."""


def found(pattern: str) -> dict[str, list[str]]:
    """What a pattern's group matches in the sources, with the modules."""
    names: dict[str, list[str]] = {}
    for path in SOURCES:
        for name in re.findall(pattern, path.read_text()):
            names.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    return names


def test_every_variable_of_the_bridge_has_a_row() -> None:
    names = found(r"\b(PJRT_BRIDGE_[A-Z_]+[A-Z])\b(?<!_H)")
    assert len(names) >= 8
    assert {name: where for name, where in names.items() if name not in FIRST_COLUMN} == {}
    # And none that is read no more.
    assert {name for name in FIRST_COLUMN if name.startswith("PJRT_BRIDGE_")} == names.keys()


def test_every_other_variable_that_is_read_or_set_is_named() -> None:
    reading = r"""(?:environ\.get|environ\.setdefault|environ\[|getenv)\(?["']([A-Z_]+)["']"""
    names = {**found(reading), **found(r'["\'](TF_CPP_[A-Z_]+|TPU_[A-Z_]+|PJRT_[A-Z_]+)["\']')}
    assert {"XLA_FLAGS", "PJRT_DEVICE", "TF_CPP_MIN_LOG_LEVEL"} <= names.keys()
    assert {name: where for name, where in names.items() if f"`{name}" not in PAGE} == {}


HANDLERS = {
    "atexit.register": {
        "pjrt_bridge/runtime/ownership/exit.py",
        "pjrt_bridge/stablehlo/program/probe.py",
        "plugins/cpu/pjrt_bridge_cpu/aten/findings.py",
        "plugins/reference/pjrt_bridge_reference/table.py",
    },
    "os.register_at_fork": {
        "pjrt_bridge/abi/api.py",
        "pjrt_bridge/runtime/objects/plugin.py",
        "pjrt_bridge/runtime/ownership/deferred.py",
        "pjrt_bridge/runtime/ownership/exit.py",
        "pjrt_bridge/runtime/ownership/process.py",
        "pjrt_bridge/stablehlo/program/probe.py",
    },
    "signal.signal": set(),
    "signal.pthread_kill": {"pjrt_bridge/jax_interop/tables.py"},
    "sys.setdlopenflags": set(),
    "sys.path.insert": {"pjrt_bridge/named_functions.py"},
    "os.environ.setdefault": {
        "pjrt_bridge/cli/conformance.py",
        "pjrt_bridge/cli/frameworks.py",
        "pjrt_bridge/registry/opening.py",
        "pjrt_bridge/torch_interop/exporting/torch_xla.py",
    },
    "omp_pause_resource_all": {
        "pjrt_bridge/runtime/dispatch/idle_threads.h",
        "pjrt_bridge/torch_interop/bind/threads.py",
    },
    "functorch_config": {"pjrt_bridge/torch_interop/compat/aot/autograd.py"},
    "ctypes.pythonapi.": {
        "pjrt_bridge/runtime/ownership/exit.py",
        "plugins/reference/pjrt_bridge_reference/table.py",
    },
    "threading.Thread(": {
        "pjrt_bridge/mixed/background.py",
        "pjrt_bridge/runtime/compile/interruptible.py",
        # In a process of its own.
        "pjrt_bridge/stablehlo/program/probe.py",
        "pjrt_bridge/torch_interop/compat/process_groups.py",
        "plugins/cpu/pjrt_bridge_cpu/aten/findings.py",
        "plugins/reference/pjrt_bridge_reference/worker.py",
    },
    "RTLD_GLOBAL": set(),
}
"""What changes a process, and the modules that the page speaks of where it says so."""


def test_what_changes_a_process_is_where_the_page_says() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in SOURCES}
    for what, modules in HANDLERS.items():
        assert {name for name, text in texts.items() if what in text} == modules, what


def test_warnings_are_filtered_for_a_while_alone() -> None:
    for path in SOURCES:
        lines = path.read_text().splitlines()
        for at, line in enumerate(lines):
            if re.search(r"warnings\.(simplefilter|filterwarnings)\(", line):
                before = "\n".join(lines[max(0, at - 6) : at])
                assert "catch_warnings(" in before, f"{path}:{at + 1}"

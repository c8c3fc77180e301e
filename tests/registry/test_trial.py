"""Plugins that nobody vouches for are tried in another process, and what ends it ends not this one.

The library is the real plugin's with another function in its table, made by a C compiler.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pjrt_bridge import registry
from pjrt_bridge.abi.functions import offset_of
from pjrt_bridge.errors import OptionError, PluginLoadError, PluginNotFound
from pjrt_bridge.jax_interop import register
from pjrt_bridge.registry import PluginSpec, client, load, plugins, select, trial
from pjrt_bridge.runtime.compile import progress
from tests.plugins import cpu_library
from tests.registry.conftest import Site, compile_library

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

SHIM = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char table[4096];
static void *(*create)(void *);

static void *replaced(void *args) {
    FILE *log = fopen("LOG", "a");
    fputs("client\\n", log);
    fclose(log);
    fputs("an ordinary line\\n", stderr);
    puts("{\\"stage\\": \\"done\\"}");
    DO
    return create(args);
}

START

void *GetPjrtApi(void) {
    void *real = dlopen("REAL", RTLD_NOW | RTLD_LOCAL);
    char *(*get)(void) = (char *(*)(void))dlsym(real, "GetPjrtApi");
    char *found = get();
    memcpy(table, found, *(size_t *)found);
    create = *(void *(**)(void *))(table + OFFSET);
    *(void **)(table + OFFSET) = (void *)replaced;
    return table;
}
"""
DIE = """
    fputs("2026-11-23 14:29:59 | critical | Always | TT_FATAL: No chips detected (a.hpp:104)\\n",
          stderr);
    abort();
"""
HANG = "sleep(600);"
DIE_AT_START = """
__attribute__((constructor)) static void start(void) {
    fputs("no driver\\n", stderr);
    abort();
}
"""


class Chip:
    """A vendor's library, and how often a client of it was asked for."""

    def __init__(self, folder: Path, name: str, do: str, start: str) -> None:
        self.log = folder / f"{name}.log"
        self.log.touch()
        text = {
            "LOG": str(self.log),
            "REAL": str(cpu_library()),
            "OFFSET": str(offset_of("Client_Create")),
            "DO": do,
            "START": start,
        }
        source = SHIM
        for word, value in text.items():
            source = source.replace(word, value)
        self.path = compile_library(folder / f"{name}.so", source)

    @property
    def clients(self) -> int:
        return len(self.log.read_text().splitlines())


Make = Callable[..., Chip]


@pytest.fixture
def chip(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes libraries; trials are on, and kept in a folder of this test's."""
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(trial.VARIABLE)
    trial.forget()

    def make(do: str = "", start: str = "", name: str = "chip") -> Chip:
        made = Chip(tmp_path, name, do, start)
        monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"{name}:{made.path}")
        registry.refresh()
        return made

    return make


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one: the child process needs what is installed."""
    for variable in ("PJRT_BRIDGE_PLUGIN", "PJRT_NAMES_AND_LIBRARY_PATHS"):
        monkeypatch.delenv(variable, raising=False)


def test_a_client_that_ends_its_process_is_an_error_here(chip: Make) -> None:
    made = chip(DIE)
    with pytest.raises(PluginNotFound) as raised:
        client("chip")
    text = str(raised.value)
    assert text.startswith(
        "plugin 'chip' is not used on this machine: No chips detected. It crashed (SIGABRT) when a "
        "client was made, in a trial in a process of its own; "
    )
    assert str(made.path) in text
    assert "PJRT_BRIDGE_TRIAL=off" in text
    # The library can be loaded nevertheless.
    assert load("chip").api_version[0] == 0
    with pytest.raises(PluginNotFound, match="No chips detected"):
        client(f"other:{made.path}")
    assert made.clients == 1


def test_it_is_listed_with_the_vendors_words_and_never_the_default(chip: Make) -> None:
    made = chip(DIE)
    (untried,) = [info for info in plugins() if info.name == "chip"]
    assert (untried.no_device, made.clients) == (None, 0)
    assert plugins()[0] == untried
    assert select().name != "chip"
    assert made.clients == 1
    (info,) = [info for info in plugins() if info.name == "chip"]
    assert (info.available, info.no_device) == (True, "No chips detected")
    assert "chip: no device: No chips detected (from" in str(info)
    assert plugins(try_unknown=True) == plugins()
    assert made.clients == 1


def test_what_was_found_is_kept_for_later_processes(
    chip: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = chip(DIE)
    plugins(try_unknown=True)
    trial.forget()
    plugins(try_unknown=True)
    assert made.clients == 1
    # Another library at the same place, another environment, and later.
    os.utime(made.path, ns=(0, 0))
    trial.forget()
    plugins(try_unknown=True)
    assert made.clients == 1, "the same contents"
    monkeypatch.setenv("CHIP_VISIBLE_DEVICES", "1")
    plugins(try_unknown=True)
    assert made.clients == 2
    later = trial.time.time() + 3600
    monkeypatch.setattr(trial.time, "time", lambda: later)
    plugins(try_unknown=True)
    assert made.clients == 3


def test_a_client_that_never_comes(chip: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SECONDS", 15.0)
    chip(HANG)
    with pytest.raises(PluginNotFound, match=r"did not come to an end in 15 s when a client was"):
        client("chip")


def test_a_library_that_ends_the_process_when_it_is_loaded(chip: Make) -> None:
    chip(start=DIE_AT_START)
    with pytest.raises(PluginNotFound, match=r"no driver. It crashed \(SIGABRT\) when it was load"):
        load("chip")
    (info,) = [info for info in plugins() if info.name == "chip"]
    assert (info.available, info.reason) == (False, "no driver")


def test_a_good_plugin_is_tried_once(chip: Make) -> None:
    made = chip()
    assert len(client("chip").devices) == 4
    assert made.clients == 2
    assert len(client("chip", cpu_device_count=2).devices) == 2
    assert made.clients == 3, "what gave a client needs no further trial"
    trial.forget()
    assert [info.no_device for info in plugins(try_unknown=True) if info.name == "chip"] == [None]
    assert made.clients == 3


def test_what_the_bridge_refuses_it_refuses_itself(chip: Make, tmp_path: Path) -> None:
    chip()
    with pytest.raises(OptionError, match="expected 1 to 4096"):
        client("chip", cpu_device_count=0)
    text = tmp_path / "text.so"
    text.write_text("not a library")
    with pytest.raises(PluginLoadError, match="cannot be loaded"):
        client(f"text:{text}")


REFUSE = """
    sleep(1);
    ((size_t *)args)[0] = 1;
"""


def test_a_refusal_that_takes_long_is_had_once(
    chip: Make, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "_COSTLY", 0.5)
    monkeypatch.setattr(progress, "DELAY", 0.2)
    made = chip(REFUSE)
    for _ in range(2):
        with pytest.raises(PluginNotFound, match=r"It was refused after \d+ s when a client was "):
            client("chip")
        trial.forget()
    assert made.clients == 1
    assert capfd.readouterr().err.splitlines() == [
        "pjrt_bridge: trying plugin 'chip' in a process of its own, once for its library, "
        "for 120 s at most"
    ]


def test_what_a_package_brings_is_not_tried(chip: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("a trial")

    monkeypatch.setattr(trial, "outcome", never)
    client("cpu")
    client(f"mine:{cpu_library()}", cpu_device_count=1)


def test_trials_are_turned_off(chip: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = chip()
    monkeypatch.setenv("PJRT_BRIDGE_TRIAL", "off")
    client(PluginSpec("chip", made.path))
    assert made.clients == 1


def test_jax_is_not_given_what_would_end_the_process(chip: Make) -> None:
    chip(DIE)
    with pytest.raises(PluginNotFound, match="No chips detected"):
        register(["chip"])

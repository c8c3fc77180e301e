"""The commands as a user runs them, with what they print and their exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import typer

from pjrt_bridge import registry
from pjrt_bridge.cli.console import parse_options
from pjrt_bridge.cli.main import app, main
from pjrt_bridge.errors import OptionError
from pjrt_bridge.runtime.compile.cache import Cache
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.torch_interop.placement import calibration
from tests.cli.conftest import Command, write

ADD = """
module @add {
  func.func @main(%a: tensor<2x3xf32>, %b: tensor<f32>) -> tensor<2x3xf32> {
    %0 = stablehlo.broadcast_in_dim %b, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %1 = stablehlo.add %a, %0 : tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }
}
"""
IOTA = """
module @iota {
  func.func @main() -> tensor<500xi32> {
    %0 = stablehlo.iota dim = 0 : tensor<500xi32>
    return %0 : tensor<500xi32>
  }
}
"""


def test_help_and_version(command: Command) -> None:
    shown = command("--help")
    assert shown.status == 0
    assert all(name in shown.out for name in ("plugins", "inspect", "run", "--version"))
    assert max(map(len, shown.out.splitlines())) <= 80
    assert command("--version").out.startswith("pjrt-bridge ")


@pytest.mark.parametrize("arguments", [["bogus"], ["inspect"], ["run"], ["plugins", "--what"]])
def test_wrong_usage_is_status_2(command: Command, arguments: list[str]) -> None:
    outcome = command(*arguments)
    assert outcome.status == 2
    assert "Usage: pjrt-bridge" in outcome.err


def test_plugins_lists_the_default_first(command: Command) -> None:
    outcome = command("plugins")
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert lines[0] == f"{registry.select().name} default"
    assert any(line.startswith("  library  /") for line in lines)


def test_plugins_shows_reasons(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", "gone:/nowhere/libgone.so,[b]oops")
    outcome = command("plugins")
    assert outcome.status == 0
    assert "gone unavailable\n  reason   /nowhere/libgone.so does not exist\n" in outcome.out
    assert "[b]oops unavailable\n  reason  found '[b]oops', expected name:path\n" in outcome.out


def test_plugins_with_a_default_that_does_not_exist(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_PLUGIN", "gone")
    outcome = command("plugins")
    assert outcome.status == 0
    assert "cpu available" in outcome.out
    assert outcome.err == "error: plugin 'gone' (asked for by PJRT_BRIDGE_PLUGIN) was not found\n"


def test_plugins_as_json(command: Command) -> None:
    found = {record["name"]: record for record in json.loads(command("plugins", "--json").out)}
    assert found["cpu"]["available"] is True
    assert found["cpu"]["reason"] is None
    assert found["cpu"]["library"].endswith("xla_cpu_pjrt.so")
    assert found["cpu"]["options"] == {"cpu_device_count": 1}
    assert sum(record["default"] for record in found.values()) == 1


def test_inspect(command: Command) -> None:
    outcome = command("inspect", "cpu", "--option", "cpu_device_count=2")
    assert outcome.status == 0
    plugin = registry.load("cpu")
    major, minor = plugin.api_version
    assert f"{major}.{minor} ({plugin.api.struct_size} bytes)" in outcome.out
    assert "  options      cpu_device_count=2\n" in outcome.out
    for section in ("Attributes\n", "Devices (* default memory)\n", "Memories\n", "Extensions\n"):
        assert section in outcome.out
    assert "device*, pinned_host" in outcome.out
    assert "\n  4     Layouts" in outcome.out


def test_inspect_as_json(command: Command) -> None:
    data = json.loads(command("inspect", "cpu", "--json").out)
    client = registry.client("cpu")
    assert data["error"] is None
    assert data["api_version"] == list(client.plugin.api_version)
    assert [device["id"] for device in data["devices"]] == [d.id for d in client.devices]
    assert {memory["kind"] for memory in data["memories"]} == {m.kind for m in client.memories}
    shown = [(link["type"], link["name"], link["struct_size"]) for link in data["extensions"]]
    assert shown == [(link.type, link.name, link.struct_size) for link in client.extensions]
    functions = {link["name"]: link["functions"] for link in data["extensions"]}
    assert functions["PhaseCompile"]["run_phases"]
    assert not functions["PhaseCompile"]["get_compiler"], "its slot is there, and empty"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_inspect_shows_extensions_that_a_package_declares(
    command: Command, form: list[str]
) -> None:
    outcome = command("inspect", "reference", *form)
    assert "Reference_Statistics" in outcome.out
    assert ('"live": true' if form else "1 of 1") in outcome.out


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_inspect_without_a_device_still_shows_the_plugin(command: Command, form: list[str]) -> None:
    outcome = command("inspect", "cpu", "--option", "cpu_device_count=0", *form)
    assert outcome.status == 1
    assert "Layouts" in outcome.out
    assert "cpu_device_count" in outcome.err
    if form:
        assert "cpu_device_count" in json.loads(outcome.out)["error"]
    else:
        assert "Devices" not in outcome.out


def test_inspect_what_is_not_there(command: Command) -> None:
    outcome = command("inspect", "nope")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith("error: plugin 'nope' was not found:\n  cpu: available")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("form", [".mlir", ".mlirbc", ".stablehlo"])
def test_run_with_inputs(command: Command, form: str) -> None:
    Program.from_text(ADD).save(f"add{form}")
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save("a.npy", a)
    np.save("b.npy", np.float32(2))
    outcome = command(
        "run", f"add{form}", "--plugin", "cpu", "-i", "a.npy", "--input", "b.npy",
        "--output-dir", "out/deep",
    )  # fmt: skip
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == (
        "result 0  float32 2x3\n[[2. 3. 4.]\n [5. 6. 7.]]\nwrote out/deep/output_0.npy\n"
    )
    np.testing.assert_array_equal(np.load("out/deep/output_0.npy"), a + 2)


def test_run_without_parameters_abbreviates(command: Command) -> None:
    outcome = command("run", write("iota.mlir", IOTA))
    assert outcome.out == "result 0  int32 500\n[  0   1   2 ... 497 498 499]\n"


@pytest.mark.parametrize("inputs", [[], ["-i", "a.npy"]])
def test_run_with_too_few_inputs_explains(command: Command, inputs: list[str]) -> None:
    outcome = command("run", write("add me.mlir", ADD), *inputs)
    assert outcome.status == 2
    assert outcome.out == (
        "add\n"
        "  input 0   float32 2x3\n"
        "  input 1   float32 scalar\n"
        "  result 0  float32 2x3\n"
        "\n"
        "Run it with one .npy file (numpy.save) per input:\n"
        "  pjrt-bridge run 'add me.mlir' --input input_0.npy --input input_1.npy\n"
    )
    assert outcome.err == f"error: add me.mlir: expected 2 --input, found {len(inputs) // 2}\n"


def test_run_restores_types_that_npy_files_cannot_name(command: Command) -> None:
    text = """
    func.func @main(%a: tensor<2xbf16>) -> tensor<2xbf16> {
      %0 = stablehlo.negate %a : tensor<2xbf16>
      return %0 : tensor<2xbf16>
    }"""
    np.save("a.npy", np.array([1, -2.5], ml_dtypes.bfloat16))
    outcome = command("run", write("neg.mlir", text), "-i", "a.npy")
    assert outcome.out == "result 0  bfloat16 2\n[-1 2.5]\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "found no such file, expected a .npy file"),
        (b"not an array", "found a file that begins with b'not an'"),
        (b"", "found a file that begins with b''"),
    ],
)
def test_run_with_an_input_that_cannot_be_read(
    command: Command, content: bytes | None, message: str
) -> None:
    if content is not None:
        Path("a.npy").write_bytes(content)
    np.save("b.npy", np.float32(2))
    outcome = command("run", write("add.mlir", ADD), "-i", "a.npy", "-i", "b.npy")
    assert outcome.status == 1
    assert outcome.err.startswith(f"error: --input a.npy: {message}")
    assert outcome.err.count("\n") == 1


def test_run_refuses_an_archive_of_arrays(command: Command) -> None:
    np.savez("a.npz", a=np.zeros((2, 3), np.float32))
    np.save("b.npy", np.float32(2))
    outcome = command("run", write("add.mlir", ADD), "-i", "a.npz", "-i", "b.npy")
    assert outcome.err == (
        "error: --input a.npz: holds several arrays, expected a .npy file with one; "
        "numpy.save('x.npy', array) writes one\n"
    )


def test_run_with_an_input_of_another_shape(command: Command) -> None:
    np.save("a.npy", np.zeros((3, 2), np.float32))
    np.save("b.npy", np.float32(2))
    outcome = command("run", write("add.mlir", ADD), "-i", "a.npy", "-i", "b.npy")
    assert (outcome.status, outcome.out) == (1, "")
    assert "found shape [3, 2]" in outcome.err
    assert "expected [2, 3]" in outcome.err


def test_run_with_files_that_are_no_programs(command: Command) -> None:
    for file in (Path("gone.mlir"), write("bad.mlir", "module { oops }")):
        outcome = command("run", file)
        assert outcome.status == 1
        assert outcome.err.startswith("error: ")
        assert file.name in outcome.err
        assert outcome.err.count("\n") == 1


def test_run_with_a_folder_that_cannot_be_made(command: Command) -> None:
    write("taken", "")
    outcome = command("run", write("iota.mlir", IOTA), "--output-dir", "taken")
    assert (outcome.status, outcome.err) == (1, "error: taken: File exists\n")


def test_debug_lets_the_exception_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--debug", "inspect", "nope"], ["inspect", "nope", "--debug"]):
        monkeypatch.setattr(sys, "argv", ["pjrt-bridge", *arguments])
        with pytest.raises(LookupError, match="plugin 'nope' was not found"):
            main()


def test_an_unexpected_exception_is_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**options: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(registry, "plugins", broken)
    outcome = command("plugins")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == "error: internal error, KeyError: 'x'; --debug shows where\n"


def test_a_short_option_means_the_same_in_all_commands() -> None:
    meanings: dict[str, set[str]] = {}
    for one in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined]
        for parameter in one.params:
            long = [option for option in parameter.opts if option.startswith("--")]
            for short in set(parameter.opts) - {*long, parameter.name}:
                meanings.setdefault(short, set()).update(long)
    assert {short: len(long) for short, long in meanings.items()} == dict.fromkeys(meanings, 1)


def test_option_values() -> None:
    assert parse_options(["a=1", "b=0.5", "c=true", "d=x=y", "e=[0, 1]", 'f="1"', "g="]) == {
        "a": 1, "b": 0.5, "c": True, "d": "x=y", "e": [0, 1], "f": "1", "g": "",
    }  # fmt: skip
    for wrong in ("a", "=1"):
        with pytest.raises(OptionError, match="expected name=value"):
            parse_options([wrong])


def test_the_module_runs_without_importing_a_framework() -> None:
    script = (
        "import sys, runpy; sys.argv = ['pjrt-bridge', 'plugins']\n"
        "try: runpy.run_module('pjrt_bridge', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "print([m for m in ('torch', 'jax', 'jaxlib', 'tensorflow') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_cache(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", "off")
    assert command("cache").out == "off: PJRT_BRIDGE_CACHE turns it off\n"
    told = json.loads(command("cache", "--json").out)
    assert told == {"folder": None, "entries": [], "reason": None}
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(tmp_path))
    empty = command("cache").out
    assert "programs  0" in empty
    assert str(tmp_path) in empty

    store = Cache(tmp_path / "executables", 1000)
    for index in range(22):
        store.put(f"{index:064}", bytes(10))
    shown = command("cache").out
    assert "programs  22" in shown
    assert "220 B of 2 GB" in shown
    assert "and 2 more" in shown
    data = json.loads(command("cache", "--json").out)
    assert len(data["entries"]) == 22
    assert data["limit"] == 2_000_000_000
    assert data["findings"] == {}
    assert command("cache", "--clear").out == f"deleted 22 programs from {store.folder}\n"
    assert store.entries() == []
    assert json.loads(command("cache", "--clear", "--json").out)["deleted"] == 0


def test_a_cache_that_others_can_write_to(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o770)
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(folder))
    for arguments in ([], ["--clear"]):
        text = command("cache", *arguments).out
        assert text.startswith(f"not used: {folder} has mode 0770")
        assert f"chmod 700 {folder}" in text
    told = json.loads(command("cache", "--json").out)
    assert told["folder"] is None
    assert "mode 0770" in told["reason"]


def test_cache_of_what_packages_found_out(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(tmp_path / "not yet"))
    assert json.loads(command("cache", "--json").out)["findings"] == {}
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(tmp_path))
    (tmp_path / "libraries").mkdir()
    (tmp_path / "a file").write_text("of somebody")
    store = Cache(tmp_path / "onednn", 1000)
    for key in ("product", "convolution"):
        store.put(key, bytes(10))
    assert "onednn    2 findings" in command("cache").out
    assert json.loads(command("cache", "--json").out)["findings"] == {str(store.folder): 2}
    assert f"deleted 2 findings from {store.folder}\n" in command("cache", "--clear").out
    assert store.entries() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a file", "libraries", "onednn"]
    store.put("product", b"")
    assert json.loads(command("cache", "--clear", "--json").out)["findings"] == {
        str(store.folder): 1
    }


def test_calibrate(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_CALIBRATION", "off")
    refused = command("calibrate", "cpu")
    assert refused.status == 1
    assert "PJRT_BRIDGE_CALIBRATION is off" in refused.err
    monkeypatch.setenv("PJRT_BRIDGE_CALIBRATION", str(tmp_path / "found"))
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(tmp_path / "cache"))
    case, _ = calibration.CASES["aten.cumsum"]
    monkeypatch.setattr(calibration, "CASES", {"aten.cumsum": (case, (1000,))})
    shown = command("calibrate", "cpu")
    assert "aten.cumsum" in shown.out
    assert str(tmp_path) in shown.out
    (path,) = (tmp_path / "found").iterdir()
    data = json.loads(command("calibrate", "cpu", "--json", "--dry-run").out)
    assert data["file"] is None
    assert [entry["elements"] for entry in data["measured"]] == [1000]
    assert command("calibrate", "cpu", "--operator", "aten.nope").status == 1
    assert json.loads(path.read_text())["plugin"] == "cpu"

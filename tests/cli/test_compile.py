"""`pjrt-bridge compile`: for devices that are there, and for those of the reference plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pjrt_bridge import registry
from tests.cli.conftest import Command, write
from tests.cli.test_cli import ADD
from tests.exported.models import scaled
from tests.fixtures.places import AFFINE, AFFINE_TEXT, BUNDLE, GRAM


def test_for_this_machine(command: Command) -> None:
    outcome = command("compile", write("add.mlir", ADD), "--plugin", "cpu", "-o", "add.bin")
    assert outcome.status == 0, outcome.err
    assert "for this machine, plugin cpu" in outcome.out
    lines = {line.strip() for line in outcome.out.splitlines()}
    assert {"flops           6", "arguments       28 B", "outputs         24 B"} <= lines
    assert "wrote add.bin" in outcome.out
    executable = registry.client("cpu").deserialize(Path("add.bin").read_bytes())
    (total,) = executable(np.ones((2, 3), np.float32), np.float32(2))
    assert np.array_equal(total.to_numpy(), np.full((2, 3), 3, np.float32))


def test_for_devices_that_are_not_there(command: Command) -> None:
    file = write("add.mlir", ADD)
    arguments = ("--plugin", "reference", "--topology", "reference:8", "--output", "add.bin")
    outcome = command("compile", file, *arguments, "--json")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["name"], found["plugin"], found["topology"]) == (
        "add",
        "reference",
        "reference:8",
    )
    assert found["memory"]["arguments"] == 28
    assert found["memory"]["needed"] >= 28 + 24
    assert (found["memory_limit"], found["fits"]) == (None, None)
    assert found["seconds"] > 0
    with registry.client("reference").deserialize(Path("add.bin").read_bytes()) as executable:
        (total,) = executable(np.ones((2, 3), np.float32), np.float32(2))
        assert total.to_numpy().sum() == 18


def test_options_of_the_topology(command: Command) -> None:
    file = write("add.mlir", ADD)
    outcome = command(
        "compile", file, "-p", "reference", "-t", "reference", "--option", "device_count=2"
    )
    assert outcome.status == 0, outcome.err
    assert "for reference, plugin reference" in outcome.out


def test_a_saved_model(command: Command, tmp_path: Path) -> None:
    scaled().save(tmp_path / "scaled")
    arguments = ("--plugin", "reference", "--topology", "reference:1", "--json")
    outcome = command("compile", tmp_path / "scaled", *arguments)
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["name"], found["memory"]["arguments"]) == ("scaled", 2 * 16 * 4)


def test_a_saved_model_with_programs_for_several_sizes(command: Command, tmp_path: Path) -> None:
    model = scaled()
    (one,) = model.specializations
    several = tuple(replace(one, sizes={"batch": batch}) for batch in (1, 8))
    saved = replace(model, specializations=several, symbols={"batch": (1, 8)})
    saved.save(tmp_path / "several")
    arguments = ("compile", tmp_path / "several", "-p", "reference", "-t", "reference")
    assert command(*arguments, "--size", "batch=8").status == 0
    for sizes, said in (
        ([], "has 2 programs; choose one, their"),
        (["--size", "batch=9"], "found batch=9, which no program of"),
    ):
        outcome = command(*arguments, *sizes)
        assert outcome.status == 1
        assert said in outcome.err
        assert "their sizes are: batch=1; batch=8" in outcome.err


WITHOUT_COMPILING = """
import sys
from pjrt_bridge.runtime.objects import compiling

def refuse(*arguments):
    raise AssertionError("it compiles")

compiling.compile_program = refuse
sys.argv = ["pjrt-bridge", *sys.argv[1:]]
from pjrt_bridge.cli.main import main
main()
"""


def run_elsewhere(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_COMPILING, "run", "--trusted", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_model_in_parts(command: Command, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from pjrt_bridge.torch_interop import export
    from tests.torch_interop.export.test_split import Middle

    x = torch.randn(3, 4)
    net = Middle()
    export(net, (x,), split=True).save("model")
    expected = net(x)
    outcome = command("compile", "--trusted", "model", "-p", "cpu", "-o", "out")
    assert (outcome.status, outcome.err) == (0, "")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == "Middle"
    assert lines[1].startswith("compiled for this machine, plugin cpu, in ")
    assert "parts 2 for the device, 2 on the host" in lines
    assert any(line.startswith("Middle_2 0.") for line in lines)
    assert lines[-1] == "wrote out, for `pjrt-bridge run --trusted` and ExportedModel.load"

    # The results are the model's, in a process that compiles nothing.
    np.save("x.npy", x.numpy())
    done = run_elsewhere("out", "-i", "x.npy", "-p", "cpu", "--output-dir", "results")
    assert done.returncode == 0, done.stderr
    found = [np.load(path) for path in sorted(Path("results").iterdir())]
    flat = [expected["y"], expected["values"], *expected["places"]]
    for one, other in zip(found, flat, strict=True):
        np.testing.assert_allclose(one, torch.as_tensor(other).detach().numpy(), rtol=1e-5)

    # What was compiled is told, refused by another plugin, and compiled for that.
    assert "  compiled for           cpu cpu\n" in command("run", "--trusted", "out").out
    outcome = command("run", "--trusted", "out", "-i", "x.npy", "-p", "reference")
    assert outcome.status == 1
    assert "'Middle_0' was made for 'cpu cpu', this client runs" in outcome.err
    arguments = ("-p", "reference", "-t", "reference:2", "-o", "other", "--json")
    outcome = command("compile", "--trusted", "out", *arguments)
    assert outcome.status == 0, outcome.err
    data = json.loads(outcome.out)
    assert [one["name"] for one in data["programs"]] == ["Middle_0", "Middle_2"]
    assert {one["topology"] for one in data["programs"]} == {"reference:2"}
    assert (data["name"], data["host_parts"], data["output"]) == ("Middle", 2, "other")
    assert command("run", "--trusted", "other", "-i", "x.npy", "-p", "reference").status == 0

    # Damage of a compiled part is found, and a folder of something else is left alone.
    executable = Path("out/program_0_2.executable")
    executable.write_bytes(executable.read_bytes()[:-1])
    outcome = command("run", "--trusted", "out", "-i", "x.npy", "-p", "cpu")
    assert outcome.err.startswith("error: out/program_0_2.executable: size: found")
    for place, said in (
        ("results", "holds files and no manifest.json; give a new folder"),
        ("x.npy", "cannot be written: it is a file; give a new folder"),
    ):
        outcome = command("compile", "--trusted", "model", "-p", "cpu", "-o", place)
        assert (outcome.status, outcome.err) == (1, f"error: {place}: {said}\n")


@pytest.mark.parametrize(
    ("model", "given", "name", "arguments"),
    [
        (AFFINE, [], "affine", 92),
        (AFFINE_TEXT, [], "affine", 92),
        (BUNDLE, ["--function", "forward"], "IrToHlo", 2768),
        (GRAM, ["--platform", "tpu", "--size", "b=2"], "gram", 36),
    ],
)
def test_what_other_exporters_wrote(
    command: Command, model: Path, given: list[str], name: str, arguments: int
) -> None:
    outcome = command("compile", model, "-p", "cpu", "--json", *given)
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert (name in found["name"], found["memory"]["arguments"]) == (True, arguments)


def test_the_platform_is_by_default_that_of_the_target(command: Command) -> None:
    arguments = ("compile", GRAM, "-p", "reference", "--size", "b=2")
    for target in ([], ["-t", "reference:2"]):
        outcome = command(*arguments, *target)
        assert outcome.status == 1
        assert "platform: found 'reference', expected one of cpu, tpu" in outcome.err


def test_what_cannot_be_meant(command: Command) -> None:
    file = write("add.mlir", ADD)
    for arguments, said in (
        (["--topology", "nowhere:2x2"], "no installed package knows the topology 'nowhere:2x2'"),
        (["--topology", ""], "no installed package knows the topology ''"),
        (["--plugin", "cpu", "--topology", "x"], "UNIMPLEMENTED"),
        (["--plugin", "cpu", "--topology", ""], "expected a name such as 'v5e:2x2'"),
        (["--plugin", "none"], "plugin 'none' was not found"),
        (["--target-config", "missing.txt"], "missing.txt: No such file"),
        (["--size", "batch=1"], "is one program, and has no sizes"),
        (["--function", "main"], "is one program, and has no functions"),
        (["--platform", "cpu"], "is one program, and has no platforms"),
    ):
        outcome = command("compile", file, *arguments)
        assert outcome.status == 1, arguments
        assert outcome.out == ""
        assert outcome.err.startswith("error: ")
        assert said in outcome.err
    assert command("compile", "absent.mlir").status == 1

"""Models that are compiled ahead of time: loaded without compiling, and only where they fit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pjrt_bridge import registry
from pjrt_bridge.errors import OptionError, PjrtError, ProgramError, SavedModelError
from pjrt_bridge.exported import ExportedModel, SplitProgram
from pjrt_bridge.exported.ahead import CompiledProgram
from pjrt_bridge.runtime import Client, CompileOptions
from pjrt_bridge.runtime.compile.serialized import pack, unpack
from tests.exported.models import WEIGHT, by_size, counting, scaled
from tests.exported.test_model import flipped, rewrite
from tests.exported.test_parts import Unique
from tests.exported.test_parts import model as in_parts
from tests.plugins import cpu_library

X = np.ones(16, np.float32)

ELSEWHERE = """
import sys
import numpy as np
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.runtime import Plugin
from pjrt_bridge.runtime.objects import compiling

def refuse(*arguments):
    raise AssertionError("it compiles")

compiling.compile_program = refuse
model = ExportedModel.load(sys.argv[1], trusted=True)
client = Plugin.load(sys.argv[2], name="cpu").client({"cpu_device_count": 1})
with model.load_on(client) as loaded:
    print(np.asarray(loaded(np.ones(16, np.float32))["y"]).tolist())
print("jaxlib" in sys.modules)
"""


@pytest.fixture
def reference() -> Iterator[Client]:
    with registry.client("reference") as client:
        yield client


@pytest.mark.usefixtures("compiled_anew")
def test_another_process_compiles_nothing(client: Client, tmp_path: Path) -> None:
    def run(folder: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", ELSEWHERE, folder, cpu_library()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    scaled().save(tmp_path / "plain")
    ExportedModel.load(tmp_path / "plain").compile_for(client).save(tmp_path / "compiled")
    assert (tmp_path / "compiled" / "program_0.executable").is_file()
    done = run(tmp_path / "compiled")
    assert done.stdout.splitlines() == [str(WEIGHT.tolist()), "False"], done.stderr
    assert "AssertionError: it compiles" in run(tmp_path / "plain").stderr


@pytest.mark.parametrize("make", [scaled, counting, by_size])
def test_it_does_what_it_did(
    make: Callable[[], ExportedModel], client: Client, tmp_path: Path
) -> None:
    make().compile_for(client).save(tmp_path)
    model = ExportedModel.load(tmp_path, trusted=True)
    assert all(isinstance(program, CompiledProgram) for program in model.device_programs)
    x = np.arange(3 if make is by_size else 16, dtype=np.float32)
    with make().load_on(client) as expected, model.load_on(client) as found:
        for _ in range(2):
            results = found.run([x]), expected.run([x])
            for one, other in zip(*results, strict=True):
                assert np.array_equal(one, other)
        for name, weight in expected.weights().items():
            assert np.array_equal(found.weights()[name], weight)


def test_of_a_model_in_parts_what_a_device_runs(client: Client, tmp_path: Path) -> None:
    model = in_parts(Unique()).compile_for(client)
    (one,) = model.specializations
    assert isinstance(one.program, SplitProgram)
    compiled = [isinstance(part.runs, CompiledProgram) for part in one.program.parts]
    assert compiled == [True, False, True]
    model.save(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.executable")} == {"program_0_0", "program_0_2"}
    assert (tmp_path / "program_0_1.npy").read_bytes() == b"unique"
    x = np.array([1, 2, 2, 3], np.float32)
    with model.load_on(client) as found, in_parts(Unique()).load_on(client) as expected:
        for _ in range(2):
            for ours, other in zip(found(x), expected(x), strict=True):
                assert np.array_equal(ours, other)


def test_for_devices_that_are_elsewhere(reference: Client) -> None:
    with registry.topology("reference:2", "reference") as topology:
        model = scaled().compile_for(topology)
    (program,) = model.device_programs
    assert isinstance(program, CompiledProgram)
    assert program.made_for == "reference:2"
    with model.load_on(reference) as loaded:
        assert np.array_equal(loaded(X)["y"], WEIGHT)


def test_another_platform_is_refused_and_can_be_compiled_for(
    client: Client, reference: Client, tmp_path: Path
) -> None:
    scaled().compile_for(reference).save(tmp_path)
    model = ExportedModel.load(tmp_path, trusted=True)
    with (
        model.load_on(client) as loaded,
        pytest.raises(
            ProgramError,
            match=r"'scaled' was made for .reference .*, this client runs 'cpu cpu': compile the",
        ),
    ):
        loaded(X)
    # In place, over the mapped weights.
    model.compile_for(client).save(tmp_path)
    with ExportedModel.load(tmp_path, trusted=True).load_on(client) as loaded:
        assert np.array_equal(loaded(X)["y"], WEIGHT)


def test_options_for_compiling_come_too_late(client: Client) -> None:
    options = CompileOptions(portable=True)
    with (
        scaled().compile_for(client).load_on(client, options=options) as loaded,
        pytest.raises(OptionError, match="'scaled' was compiled ahead of time, for cpu cpu: opt"),
    ):
        loaded(X)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda at: at.unlink(), r"program_0_0\.executable: cannot be read: No such file"),
        (lambda at: at.write_bytes(at.read_bytes()[:-1]), r"program_0_0\.executable: size: found"),
        (
            lambda at: at.write_bytes(flipped(at.read_bytes())),
            r"program_0_0\.executable: sha256: found .* it was altered",
        ),
    ],
)
def test_damage_names_the_file(
    damage: Callable[[Path], Any], text: str, client: Client, tmp_path: Path
) -> None:
    in_parts(Unique()).compile_for(client).save(tmp_path)
    damage(tmp_path / "program_0_0.executable")
    with pytest.raises(SavedModelError, match=text):
        ExportedModel.load(tmp_path, trusted=True)


def test_what_another_program_became(client: Client, tmp_path: Path) -> None:
    by_size().compile_for(client).save(tmp_path)

    def exchange(manifest: dict[str, Any]) -> None:
        one, other = manifest["model"]["programs"]
        one["executable"], other["executable"] = other["executable"], one["executable"]

    rewrite(exchange)(tmp_path)
    with pytest.raises(
        SavedModelError,
        match=r"program_1\.executable: the serialized executable is of a program 'negated_3' with "
        r"another signature: found \(.*3.*\) -> \(.*3.*\), needed \(.*2.*\)",
    ):
        ExportedModel.load(tmp_path, trusted=True)


def test_what_the_plugin_does_not_take(client: Client) -> None:
    (program,) = scaled().compile_for(client).device_programs
    assert isinstance(program, CompiledProgram)
    header, blob = unpack(program.executable)
    executable = pack(header, blob[: len(blob) // 2])
    broken = CompiledProgram(
        program.portable_artifact(), program.name, program.signature, executable
    )
    model = scaled()
    (one,) = model.specializations
    with (
        replace(model, specializations=(replace(one, program=broken),)).load_on(client) as loaded,
        pytest.raises(PjrtError, match="plugin 'cpu'"),
    ):
        loaded(X)
    with pytest.raises(ProgramError, match="truncated or was altered"):
        CompiledProgram(
            program.portable_artifact(), program.name, program.signature, executable[:-1]
        )

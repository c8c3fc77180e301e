"""Saved models: loaded where nothing else is, kept state, and every damage is named."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pjrt_bridge.errors import (
    DataError,
    ProgramError,
    SavedModelError,
    SignatureMismatch,
)
from pjrt_bridge.exported import ExportedModel, of_program
from pjrt_bridge.exported.manifest import Manifest
from pjrt_bridge.exported.running import readable
from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.dispatch import outputs
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.program.saved import artifact_version
from tests.conftest import Census
from tests.exported.models import F32, WEIGHT, by_size, counting, scaled
from tests.plugins import cpu_library, require_dispatcher

X = np.ones(16, np.float32)

ELSEWHERE = """
import sys
import numpy as np
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.runtime import Plugin

model = ExportedModel.load(sys.argv[1])
print([name for name in ("torch", "jaxlib") if name in sys.modules])
client = Plugin.load(sys.argv[2], name="cpu").client({"cpu_device_count": 1})
with model.load_on(client) as loaded:
    print(np.asarray(loaded(np.ones(16, np.float32))["y"]).tolist())
print("torch" in sys.modules)
"""


def test_loading_needs_neither_framework_nor_jaxlib(tmp_path: Path) -> None:
    scaled().save(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, tmp_path / "model", cpu_library()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["[]", str(WEIGHT.tolist()), "False"]


def test_weights_are_used_in_the_pages_of_the_file(client: Client, tmp_path: Path) -> None:
    scaled().save(tmp_path)
    model = ExportedModel.load(tmp_path)
    mapped = model.tensors["layer.weight"]
    with model.load_on(client) as loaded:
        assert loaded.weight("layer.weight").address == mapped.__array_interface__["data"][0]


def test_a_folder_says_what_it_holds(tmp_path: Path) -> None:
    model = scaled(target="1.0.0")
    model.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest.json",
        "program_0.mlir",
        "program_0.mlirbc",
        "program_0.stablehlo",
        "weights.safetensors",
    }
    assert "stablehlo.multiply" in (tmp_path / "program_0.mlir").read_text()
    manifest = Manifest.read(tmp_path)
    assert manifest.exporter == "test 1"
    assert set(manifest.versions) == {"pjrt-bridge", "jaxlib"}
    found = ExportedModel.load(tmp_path)
    assert found.interface == model.interface
    assert found.weights == model.weights
    assert found.program.signature == model.program.signature
    assert found.program.portable_artifact("1.0.0") == model.artifact()
    assert found.program.text == model.program.text


def test_a_loaded_model_can_be_saved_again(client: Client, tmp_path: Path) -> None:
    scaled().save(tmp_path / "one")
    model = ExportedModel.load(tmp_path / "one")
    model.with_weights({"layer.weight": -WEIGHT}).save(tmp_path / "two")
    with ExportedModel.load(tmp_path / "two").load_on(client) as loaded:
        assert np.array_equal(loaded(x=X)["y"], -WEIGHT)
    with pytest.raises(DataError, match="no weight 'other'"):
        model.with_weights({"other": WEIGHT})
    with pytest.raises(DataError, match=r"found float32\[3\], expected float32\[16\]"):
        model.with_weights({"layer.weight": WEIGHT[:3]})


@pytest.mark.parametrize("count", [0, 2])
def test_another_number_of_leaves_is_refused(client: Client, count: int) -> None:
    with (
        scaled().load_on(client) as loaded,
        pytest.raises(SignatureMismatch, match=f"found {count} leaves of arguments, expected 1"),
    ):
        loaded.run([X] * count)


def test_saving_again_leaves_nothing_of_before(tmp_path: Path) -> None:
    by_size().save(tmp_path)
    scaled().save(tmp_path)
    assert not list(tmp_path.glob("program_1*"))
    ExportedModel.load(tmp_path)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds files and no manifest\.json"):
        scaled().save(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    with pytest.raises(DataError, match="cannot be written"):
        scaled().save(tmp_path / "thesis.txt")


def test_state_stays_on_the_device(client: Client, tmp_path: Path) -> None:
    counting().save(tmp_path)
    with ExportedModel.load(tmp_path).load_on(client) as loaded:
        first, before = loaded(X)
        assert np.array_equal(before, 0 * X)
        second, before = loaded(X)
        third, _ = loaded(X)
        assert np.array_equal(before, 2 * X)
        # What was given is not what the next call consumes.
        assert [np.asarray(one)[0] for one in (first, second, third)] == [1, 2, 3]
        assert loaded.weights()["total"].tolist() == (3 * X).tolist()
        loaded.reset()
        assert loaded.weights()["total"].tolist() == (0 * X).tolist()


def test_sizes_choose_a_program(client: Client, tmp_path: Path) -> None:
    by_size().save(tmp_path)
    with ExportedModel.load(tmp_path).load_on(client) as loaded:
        loaded.compile()
        for size in (2, 3):
            assert np.array_equal(loaded(np.ones(size, np.float32)), -np.ones(size))
        with pytest.raises(SignatureMismatch, match=r"sizes of x: \[4\]; .* for n=2; n=3"):
            loaded(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, r"argument 'x' is missing; expected \(x: float32\[16\]\)"),
        ((X, X), {}, r"found 2 arguments, expected \(x: "),
        ((X,), {"x": X}, "argument 'x' is given twice"),
        ((), {"z": X}, r"no argument 'z'; expected \(x: "),
        ((X[:3],), {}, r"argument 'x': found shape \[3\], expected \[16\]"),
        ((X.astype("i4"),), {}, r"argument 'x': found int32\[16\], expected float32\[16\]"),
        ((np.ones((4, 4), "f4"),), {}, r"found float32\[4, 4\], expected float32\[16\]"),
        (("no",), {}, "argument 'x': "),
    ],
)
def test_calls_that_do_not_fit(
    client: Client, args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    with scaled().load_on(client) as loaded:
        # At first, and where earlier calls were started directly.
        for _ in range(3):
            with pytest.raises(SignatureMismatch, match=text):
                loaded(*args, **kwargs)
            assert np.array_equal(loaded(X)["y"], WEIGHT)


@pytest.mark.parametrize(
    "given",
    [X, np.ones(33, np.float32)[1::2], np.frombuffer(X.tobytes(), np.float32), memoryview(X)],
    ids=["array", "strided", "read-only", "memoryview"],
)
def test_further_calls_give_the_same(no_leaks: Census, client: Client, given: Any) -> None:
    with scaled().load_on(client) as loaded:
        for value in (given, given, 2 * X, given):
            assert np.array_equal(loaded(value)["y"], WEIGHT * np.asarray(value))


def test_plain_calls_are_started_directly(no_leaks: Census, client: Client) -> None:
    require_dispatcher()
    with by_size().load_on(client) as loaded:
        for size in (2, 3):
            loaded(np.ones(size, np.float32))
        for size in (3, 2, 3):
            x = np.arange(size, dtype=np.float32)
            for given in (x, client.put(x)):
                found = loaded(given)
                assert outputs.output_of(found) is not None
                assert np.array_equal(found, -x)
    with counting().load_on(client) as loaded:
        for count in range(1, 4):
            total, before = loaded(X)
            assert np.array_equal(total, count * X)
            assert np.array_equal(before, 2 * (count - 1) * X)


def test_a_reset_model_runs_with_its_first_weights(client: Client) -> None:
    with scaled().load_on(client) as loaded:
        for _ in range(3):
            assert np.array_equal(loaded(X)["y"], WEIGHT)
        loaded.reset()
        assert np.array_equal(loaded(X)["y"], WEIGHT)


def spoil(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return run


def rewrite(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Alter the manifest as somebody would who knows about its hash."""

    def run(folder: Path) -> None:
        fields = json.loads((folder / "manifest.json").read_text())
        change(fields)
        fields.pop("sha256")
        from pjrt_bridge.exported import manifest

        text = json.dumps({**fields, "sha256": manifest._hash(fields)})
        (folder / "manifest.json").write_text(text)

    return run


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda at: (at / "manifest.json").unlink(), r"manifest.json: cannot be read: No such"),
        (spoil("manifest.json", lambda d: d[:-9]), r"manifest.json: truncated, or no JSON"),
        (
            spoil("manifest.json", lambda d: d.replace(b" 16\n", b" 17\n")),
            r"manifest.json: field 'sha256': found .* altered",
        ),
        (spoil("manifest.json", lambda d: b"[]"), r"field 'kind': found None, needed 'pjrt"),
        (
            rewrite(lambda m: m.update(format=4)),
            r"field 'format': found 4, needed 3 or less; it was written by",
        ),
        (rewrite(lambda m: m.pop("files")), r"manifest.json: .*'files' is missing"),
        (rewrite(lambda m: m["files"].clear()), r"field 'files': '[a-z_0]+\.s[a-z]+' is missing"),
        (rewrite(lambda m: m["model"].pop("inputs")), r"manifest.json: .*'inputs' is missing"),
        (
            rewrite(lambda m: m["model"]["weights"]["layer.weight"].update(shape=[4])),
            r"weight 'layer.weight': found float32\[16\], needed float32\[4\]",
        ),
        (
            rewrite(lambda m: m["model"]["weights"]["layer.weight"].update(tensor="w")),
            r"weight 'layer.weight': tensor 'w' is missing",
        ),
        (
            rewrite(lambda m: m["model"]["programs"][0]["parameters"].pop()),
            r"program 'scaled': found 1 parameters and 1 results, needed 2 and 1",
        ),
        (
            rewrite(lambda m: m["model"]["programs"][0]["parameters"][1].__setitem__(1, "w")),
            r"weight 'w': found none, needed f32\[16\]",
        ),
        (
            rewrite(lambda m: m["model"]["inputs"][0].update(dtype="float33")),
            r"manifest.json: .*unknown element type 'float33'",
        ),
        (
            rewrite(lambda m: m["model"]["programs"][0]["signature"].pop("results")),
            r"field 'model.programs.0..signature': signature: malformed",
        ),
        (lambda at: (at / "weights.safetensors").unlink(), r"weights.safetensors: cannot be read"),
        (
            spoil("weights.safetensors", lambda d: d[:-8]),
            r"weights.safetensors: size: found \d+ bytes, needed \d+: it is truncated",
        ),
        (
            spoil("weights.safetensors", flipped),
            r"weights.safetensors: sha256: found \w+, needed \w+: it was altered",
        ),
        (
            spoil("program_0.stablehlo", flipped),
            r"program_0.stablehlo: sha256: found \w+, needed \w+: it was altered",
        ),
        (lambda at: (at / "program_0.stablehlo").unlink(), r"program_0.stablehlo: cannot be read"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], None], text: str) -> None:
    scaled().save(tmp_path)
    damage(tmp_path)
    with pytest.raises(SavedModelError, match=text) as caught:
        ExportedModel.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("target", ["0.9.0", "1.0.0", "1.8.0", None])
def test_artifacts_of_all_versions_run(client: Client, tmp_path: Path, target: str | None) -> None:
    scaled(target=target).save(tmp_path)
    with ExportedModel.load(tmp_path).load_on(client) as loaded:
        assert np.array_equal(loaded(X)["y"], WEIGHT)


def test_a_target_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"'99\.0\.0'"):
        scaled(target="99.0.0").save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


class TestOfProgram:
    PROGRAM = Program.from_text("""
        func.func @main(%a: tensor<2xf32>, %w: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
          %0 = stablehlo.subtract %a, %w : tensor<2xf32>
          return %0, %w : tensor<2xf32>, tensor<2xf32>
        }
    """)

    def test_a_program_with_weights(self, client: Client, tmp_path: Path) -> None:
        weight = np.array([1, 2], np.float32)
        model = of_program(self.PROGRAM, exporter="mine", weights={1: ("w", weight)}, names=["a"])
        assert model.weights["w"].dtype == F32
        model.save(tmp_path)
        with ExportedModel.load(tmp_path).load_on(client) as loaded:
            difference, same = loaded(a=np.array([5, 5], np.float32))
            assert np.asarray(difference).tolist() == [4, 3]
            assert np.asarray(same).tolist() == [1, 2]

    def test_weights_and_names_have_to_fit(self) -> None:
        with pytest.raises(ProgramError, match=r"weight 'w' \(parameter 1\): found float32\[3\]"):
            of_program(self.PROGRAM, exporter="", weights={1: ("w", np.zeros(3, np.float32))})
        with pytest.raises(ProgramError, match="found 1 names for 2 arguments"):
            of_program(self.PROGRAM, exporter="", names=["a"])


class Reading:
    """What is asked of a plugin about StableHLO."""

    name = "other"

    def __init__(self, oldest: str | None, newest: str | None) -> None:
        self.stablehlo_minimum, self.stablehlo_version = oldest, newest


class TestReadable:
    """The versions that a plugin says it reads; no public plugin says less than our own range."""

    def program(self, tmp_path: Path) -> Program:
        scaled(target="1.0.0").save(tmp_path)
        return ExportedModel.load(tmp_path).program

    @pytest.mark.parametrize(("oldest", "newest"), [("0.9.0", "1.13.0"), (None, None)])
    def test_within_the_range_it_stays(self, tmp_path: Path, oldest: Any, newest: Any) -> None:
        program = self.program(tmp_path)
        assert readable(program, Reading(oldest, newest)) is program  # type: ignore[arg-type]

    def test_an_older_plugin_gets_an_older_artifact(self, tmp_path: Path) -> None:
        program = readable(self.program(tmp_path), Reading("0.9.0", "0.9.5"))  # type: ignore[arg-type]
        assert artifact_version(program.serialize_for("0.9.5")) == "0.9.5"

    def test_a_plugin_that_has_forgotten_old_versions_gets_a_new_one(self, tmp_path: Path) -> None:
        program = readable(self.program(tmp_path), Reading("1.2.0", "1.5.0"))  # type: ignore[arg-type]
        assert artifact_version(program.serialize_for("1.5.0")) == "1.5.0"

    def test_no_version_for_both(self, tmp_path: Path) -> None:
        program = self.program(tmp_path)
        text = (
            r"program 'scaled': version: found StableHLO 1\.0\.0, needed 0\.1\.0 to 0\.2\.0, which "
            "plugin 'other' reads"
        )
        with pytest.raises(SavedModelError, match=text):
            readable(program, Reading("0.1.0", "0.2.0"))  # type: ignore[arg-type]

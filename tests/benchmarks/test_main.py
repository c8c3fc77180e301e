"""The command as a user gives it, on the smallest case."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ADD = "add of two arrays of 64"


def run(*options: object, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *map(str, options)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a quick run has written."""
    path = tmp_path_factory.mktemp("run")
    shown = run(
        "--quick",
        "--no-inductor",
        "--jax=/nowhere/python",
        f"--only={ADD}",
        f"--output={path / 'found.json'}",
        f"--plot={path / 'plot.png'}",
        f"--document={path / 'performance.md'}",
    )
    (path / "shown.txt").write_text(shown)
    return path


def test_the_table_has_everyone(folder: Path) -> None:
    shown = (folder / "shown.txt").read_text()
    for text in (ADD, "eager", "pjrt", "runtime", "raw C", "absent", "1.00x", "asked", "1.5 x"):
        assert text in shown


def test_the_json_has_samples_and_verdicts(folder: Path) -> None:
    found = json.loads((folder / "found.json").read_text())
    (result,) = found["results"]
    assert result["case"] == ADD
    measured = {name: item["status"] for name, item in result["competitors"].items()}
    assert measured == {
        "eager": "measured",
        "pjrt": "measured",
        "runtime": "measured",
        "executable": "measured",
        "raw C": "measured",
        "jax": "absent",
        "torch_xla": "absent",
    }
    assert "/nowhere/python" in result["competitors"]["jax"]["reason"]
    assert len(result["competitors"]["pjrt"]["samples"]) == 3
    verdict, _ = found["verdicts"]
    sides = [result["competitors"][name]["median"] for name in ("runtime", "raw C")]
    assert verdict["found"] == sides[0] / sides[1]
    assert verdict["met"] is (verdict["found"] <= 1.5)
    assert "model name" not in found["machine"]["processor"]
    assert found["machine"]["cores"].isdigit()


def test_the_plots_are_there(folder: Path) -> None:
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert ADD in (folder / "performance.svg").read_text()


def test_the_page_has_the_numbers(folder: Path) -> None:
    page = (folder / "performance.md").read_text()
    found = json.loads((folder / "found.json").read_text())
    assert found["machine"]["processor"] in page
    assert f"| {ADD} |" in page
    assert "(performance.svg)" in page
    assert "- jax, absent in add of two arrays of 64: /nowhere/python cannot be run" in page
    assert "$" not in page.replace("$OUT", "")


def test_an_earlier_run_is_shown_again(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    shown = run(f"--read={folder / 'found.json'}", f"--output={again}")
    assert ADD in shown
    assert again.read_text() == (folder / "found.json").read_text()


@pytest.mark.slow
def test_tensorflow_is_a_family_with_competitors_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    page = tmp_path / "page.md"
    shown = run("--quick", "--only=Dense of 8", f"--document={page}")
    for text in ("of tf.function", "1.00x", "1 x", "tf_interop in units of jit_compile"):
        assert text in shown
    assert "failed" not in shown
    assert "absent" not in shown
    assert "### TensorFlow" in page.read_text()
    assert "| tf_interop / better of tf.function and jit_compile |" in page.read_text()


def test_list() -> None:
    shown = run("--list", "--only=dispatch", "--only=mixed")
    assert f"dispatch: {ADD} (eager, inductor, pjrt" in shown
    assert "mixed: figures" in shown
    assert "kernels" not in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only=nothing"], "expected a family"),
        (["--plot=plot.nothing"], "expected a file such as plot.svg"),
        (["--read=/nowhere.json"], "/nowhere.json"),
        (["--rounds=0"], "--rounds"),
    ],
)
def test_bad_input_is_told_before_anything_runs(options: list[str], said: str) -> None:
    assert said in run(*options, status=2)

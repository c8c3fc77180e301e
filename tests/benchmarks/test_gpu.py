"""The benchmarks of a GPU, rehearsed on the host's processor."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu.__main__ import chosen
from benchmarks.gpu.decoder import Decoder, Sizes, Step, decoder
from benchmarks.gpu.models import make
from benchmarks.gpu.page import section, section_of, with_section
from benchmarks.gpu.reference import compute
from benchmarks.gpu.results import Measured, Report, Result
from benchmarks.gpu.turns import error
from benchmarks.gpu.works import LANES, SIDES, WORKS, Work

ROOT = Path(__file__).parent.parent.parent
ADD = WORKS[0]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of products this small wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(*options: object, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *map(str, options)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a rehearsal of one work has written."""
    path = tmp_path_factory.mktemp("gpu")
    (path / "page.md").write_text("# Page\n\n## On a GPU\n\nold\n\n## After\n\nit\n")
    shown = run(
        *("--small", "--device=cpu", "--plugin=cpu", "--minutes=4", "--rounds=3"),
        *("--only=dispatch", "--side=pjrt", "--side=runtime", "--side=eager"),
        *(f"--json={path / 'gpu.json'}", f"--document={path / 'page.md'}", f"--logs={path}"),
    )
    (path / "shown.txt").write_text(shown)
    return path


def test_every_side_is_timed_and_right(folder: Path) -> None:
    found = json.loads((folder / "gpu.json").read_text())
    (result,) = found["results"]
    assert set(result["sides"]) == {"pjrt", "runtime", "eager"}
    for side in result["sides"].values():
        assert side["status"] == "measured", side
        assert len(side["samples"]) == len(side["waited"]) == 3
        assert side["median"] > 0
        assert (side["error"], side["wrong"]) == (0, False)
        assert side["first"] > 0
    assert set(found["peaks"]) == {"f32", "f32 high", "bf16", "autocast", "copy"}
    assert found["beside"]["bytes of an array"] == 4096


def test_the_tables_have_it(folder: Path) -> None:
    for text in ("add dispatch 64, f32", "runtime", "each waited for", "0.0e+00 relative error"):
        assert text in (folder / "shown.txt").read_text()
    page = (folder / "page.md").read_text()
    assert page.startswith("# Page\n\n## On a GPU\n\nMade by")
    assert page.endswith("\n\n## After\n\nit\n")
    assert "old" not in page
    assert "| add dispatch 64, f32 |" in page
    assert "with waiting)" in page
    assert (folder / "pjrt.log").exists()


def test_an_earlier_run_is_shown_again(folder: Path, tmp_path: Path) -> None:
    again, page = tmp_path / "again.json", tmp_path / "page.md"
    page.write_text((folder / "page.md").read_text())
    run(f"--read={folder / 'gpu.json'}", f"--json={again}", f"--document={page}")
    assert json.loads(again.read_text()) == json.loads((folder / "gpu.json").read_text())
    assert page.read_text() == (folder / "page.md").read_text()


def test_a_wrong_result_is_the_exit_status(folder: Path, tmp_path: Path) -> None:
    found = Report.read(folder / "gpu.json")
    for name in ("pjrt", "eager"):
        found.results[0].sides[name].wrong = True
    found.write(tmp_path / "wrong.json")
    shown = run(f"--read={tmp_path / 'wrong.json'}", status=1)
    assert (shown.count("WRONG"), shown.count("more than is allowed")) == (1, 1)
    assert "eager in add" not in shown
    assert "pjrt in add dispatch 64, f32: relative error" in shown


def test_a_side_that_fails_says_why(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    run(
        *("--small", "--device=cpu", "--plugin=nothing", "--minutes=2", "--rounds=3"),
        *("--only=dispatch", "--side=runtime", "--side=eager", f"--json={output}"),
    )
    sides = json.loads(output.read_text())["results"][0]["sides"]
    assert sides["eager"]["status"] == "measured"
    assert sides["runtime"]["status"] == "failed"
    assert "nothing" in sides["runtime"]["reason"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only=nothing"], "gpt2 inference 8x512, bf16"),
        (["--side=nothing"], "pjrt on cuda"),
        (["--read=/nowhere.json"], "/nowhere.json"),
        (["--document=README.md"], "found no line '## On a GPU'"),
    ],
)
def test_bad_input_is_told_before_anything_runs(options: list[str], said: str) -> None:
    assert said in run(*options, status=2)


def test_names_and_sides() -> None:
    assert len({work.name for work in WORKS}) == len(WORKS)
    lanes = [name for lane in LANES for name in lane]
    assert sorted(lanes) == sorted(SIDES)
    assert {name for work in WORKS for name in work.sides} <= set(SIDES)
    tuned = chosen(["gpt2 inference"], small=False, tuned=True)
    assert all("inductor tuned" in work.sides for work in tuned)


def test_no_time_is_told(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    shown = run(
        *("--small", "--device=cpu", "--plugin=cpu", "--minutes=0", "--only=dispatch"),
        f"--json={output}",
    )
    assert "no time: add dispatch 64, f32" in shown
    assert json.loads(output.read_text())["left_out"] == ["add dispatch 64, f32"]


@pytest.mark.parametrize("heads", [(4, 2), (2, 2), (4, 1)])
def test_tokens_one_by_one_are_the_whole_text(heads: tuple[int, int]) -> None:
    sizes = Sizes(2, 32, 48, *heads, tokens=50, length=7)
    whole, step = decoder(sizes), decoder(sizes, batch=3)
    assert (type(whole), type(step)) == (Decoder, Step)
    tokens = torch.randint(50, (3, 7))
    with torch.no_grad():
        expected = whole(tokens)
        position = torch.zeros(1, dtype=torch.int64)
        for at in range(2 * sizes.length):
            column = at % sizes.length
            following, position, logits = step(tokens[:, column : column + 1], position)
            if at < sizes.length:
                torch.testing.assert_close(logits, expected[:, column])
            assert torch.equal(following[:, 0], logits.argmax(-1))
            assert int(position) == (at + 1) % sizes.length


def test_results_in_full_precision_and_counts() -> None:
    work = Work("llama", "inference", "bf16", 2, 16, small=True)
    found, counts = compute(work)
    made = make(work)
    with torch.no_grad():
        assert error(made.module(made.inputs[0][:1]).numpy(), found) < 1e-5
    assert found.shape == (1, 16, 100)
    weights = sum(x.numel() for x in made.module.parameters())
    assert counts["weights"] == 4 * weights
    products = weights - 100 * 64 - 5 * 64
    # All weights but those of the embedding and of norms, for each of 32 tokens, and attention.
    assert 2 * products * 32 < counts["flops"] < 2.2 * products * 32


@pytest.mark.parametrize("form", ["f32 high", "autocast"])
def test_losses_in_full_precision_do_not_depend_on_the_form(form: str) -> None:
    work = Work("gpt2", "training", form, 2, 16, small=True)
    found, counts = compute(work)
    expected, _ = compute(dataclasses.replace(work, form="f32"))
    np.testing.assert_array_equal(found, expected)
    assert found[0] > found[1] > found[2]
    assert counts["flops"] > 0


def test_errors() -> None:
    right = np.array([3.0, 4.0], np.float32)
    assert error(right, right) == 0
    assert error(np.array([3.0, 4.5], np.float32), right) == pytest.approx(0.1)
    assert not error(np.array([3.0, np.nan], np.float32), right) <= 1
    with pytest.raises(ValueError, match=r"shape \(1,\), expected \(2,\)"):
        error(right[:1], right)


def test_shares_and_ratios() -> None:
    decoding = Work("llama", "decoding", "bf16", 1, 512)
    sides = {"pjrt": Measured([2.0, 1.0, 3.0]), "jax": Measured([1.0])}
    result = Result(decoding, sides, {"flops": 10, "weights": 80})
    assert result.share("pjrt", {"copy": 40.0}) == 0.5
    assert result.share("pjrt", {"failed": 1.0}) is None
    inference = dataclasses.replace(decoding, task="inference")
    other = Result(inference, sides, result.counts)
    assert other.share("jax", {"bf16": 100.0}) == 0.1
    page = section(Report({"GPU": "none"}, {"bf16": 1e14, "copy": 4e12}, {}, [result, other]))
    assert "pjrt / jax |" in page
    assert "| 2.00 s, 0 tokens/s, 0 % |" in page
    assert "| 2.00x |" in page
    assert "bf16: 100 TFLOP/s, copy: 4 TB/s" in page


def test_a_page_that_is_made_anew_keeps_its_section() -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    before, _, after = text.partition(section_of(text))
    assert before.endswith("\n\n")
    assert after.startswith("\n## All cases")
    assert with_section(text, section_of(text)) == text
    assert section_of("# Other") == "## On a GPU\n\nNothing was measured.\n"


@pytest.mark.parametrize("name", ["_adamw", "_sgd"])
def test_optimizers_in_jax_are_those_of_torch(name: str) -> None:
    jax = pytest.importorskip("jax")
    from benchmarks.gpu import jax_side, models

    start = torch.linspace(-1, 1, 6)
    weight = torch.nn.Parameter(start.clone())
    optimizer = getattr(models, name)([weight])
    held: dict[str, Any] = {"w": jax.numpy.asarray(start.numpy())}
    state = jax_side._moments(held, 2 if name == "_adamw" else 1)
    for number in range(1, 4):
        weight.grad = torch.arange(6.0) * number - 7
        held, state = getattr(jax_side, name)(held, {"w": weight.grad.numpy()}, state)
        optimizer.step()
    np.testing.assert_allclose(held["w"], weight.detach().numpy(), rtol=1e-6)

"""`pjrt-bridge bench`: ways in turns, what fails, and the table; the last one measures."""

import json
from typing import Any

import pytest

from pjrt_bridge.cli import turns
from tests.cli.conftest import Command, write


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WORKER", "tests.cli.bench_worker")


def timings(text: str) -> dict[str, dict[str, Any]]:
    return {item["way"]: item for item in json.loads(text)["timings"]}


@pytest.mark.usefixtures("unmeasured")
def test_every_way_is_timed_in_each_round(command: Command) -> None:
    found = command("bench", "f", "--rounds", "4", "--json")
    assert found.status == 0
    assert {way: len(item["samples"]) for way, item in timings(found.out).items()} == {
        "eager": 4,
        "inductor": 4,
        "pjrt": 4,
    }


@pytest.mark.usefixtures("unmeasured")
def test_the_table(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    found = command("bench", "f", "--rounds", "1", "--generate", "40")
    rows = {line.split()[0]: " ".join(line.split()) for line in found.out.splitlines() if line}
    assert rows["eager"].startswith("eager 2 s 40 ms 10 ms 1000.0 1.00x 3 ██")
    assert rows["inductor"].startswith("inductor 2 s 20 ms 10 ms 2000.0 0.50x 3 DIFFER 5e-01 ██")
    assert rows["pjrt"].startswith("pjrt 2 s 20 ms 10 ms 2000.0 0.50x 3 rounded 1e-06 ██")
    assert "75% of a call (15 ms): programs on the device" in found.out
    assert "20% of a call (4 ms): parts that PyTorch runs" in found.out
    assert found.out.rstrip().endswith("- x")


@pytest.mark.usefixtures("unmeasured")
def test_a_way_that_dies_does_not_stop_the_others(command: Command) -> None:
    found = timings(command("bench", "dies", "--rounds", "1", "--json").out)
    assert found["inductor"]["failed"] == "crashed (SIGABRT): out of cake"
    assert found["eager"]["samples"]
    assert found["pjrt"]["samples"]


@pytest.mark.usefixtures("unmeasured")
def test_what_no_way_runs_is_an_error(command: Command) -> None:
    found = command("bench", "refused", "--without", "inductor")
    assert found.status != 0
    assert "error: refused: OptionError: no such function" in found.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--without", "pjrt"], "--without pjrt: expected eager or inductor"),
        (["--train", "--generate", "4"], "found --train and --generate, expected one of them"),
    ],
)
def test_wrong_options(command: Command, arguments: list[str], said: str) -> None:
    found = command("bench", "f", *arguments)
    assert found.status != 0
    assert said in found.err


@pytest.mark.slow
def test_a_function_of_a_user(command: Command) -> None:
    write(
        "model.py",
        "import torch\ndef case():\n    return torch.nn.Linear(4, 2), (torch.randn(3, 4),)\n",
    )
    arguments = ("--train", "--rounds", "1", "--without", "inductor", "--json")
    found = command("bench", "model.py:case", *arguments)
    assert found.status == 0, found.err
    ours = timings(found.out)["pjrt"]
    assert ours["programs"] == 2
    assert ours["difference"] < 1e-5
    assert json.loads(found.out)["account"]["device"] > 0

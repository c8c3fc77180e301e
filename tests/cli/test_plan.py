"""`pjrt-bridge plan`: over which meshes of devices that are not there a model fits."""

from __future__ import annotations

import json

from tests.cli.conftest import Command, write

MODEL = """
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

class Network(nn.Module):
    def __init__(self, width=4096):
        super().__init__()
        # 4 GB of weights, if there were any.
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(8 * width, width)

    def forward(self, x, labels=None):
        y = self.down(torch.relu(self.up(x)))
        return y if labels is None else (y - labels).square().mean()

def make():
    return Network(16384), {"up": ColwiseParallel(), "down": RowwiseParallel()}
"""
INPUT = ("--input", "f32[64,16384]")


def test_what_fits_and_what_bounds_it(command: Command) -> None:
    write("model.py", MODEL)
    meshes = ("-m", "dp=8", "-m", "tp=8", "-m", "dp=2,tp=4", "-m", "tp=3")
    outcome = command("plan", "model.py:make", *INPUT, *meshes, "-t", "v5e:2x4", "--estimate")
    assert outcome.status == 0, outcome.err
    rows = [line.split() for line in outcome.out.splitlines()]
    assert "Network, 4.3 billion parameters" in outcome.out
    assert ["dp=8", "NO", "17.2", "GB"] in [row[:4] for row in rows]
    assert ["tp=8", "yes", "2.16", "GB"] in [row[:4] for row in rows]
    assert ["dp=2,tp=4", "yes", "4.31", "GB"] in [row[:4] for row in rows]
    assert "by an estimate of the bridge (as asked for" in outcome.out
    assert "2 of 3 fit 1" in outcome.out
    assert "fastest at best: tp=8, bound by memory" in outcome.out
    assert "Mesh(tp=3): parameter 'up.weight'" in outcome.err


def test_axes_that_divide_nothing_are_named(command: Command) -> None:
    write("model.py", MODEL)
    arguments = ("model.py:make", *INPUT, "-m", "tp=2,xx=4", "-m", "tp=8")
    outcome = command("plan", *arguments)
    assert outcome.status == 0, outcome.err
    assert "Mesh(tp=2, xx=4): nothing is divided over xx" in " ".join(outcome.err.split())
    assert "Mesh(tp=8)" not in outcome.err
    rows = json.loads(command("plan", *arguments, "--json").out)["meshes"]
    assert [row["idle_axes"] for row in rows] == [["xx"], []]


def test_a_training_step_by_the_compiler_of_a_plugin(command: Command) -> None:
    write("model.py", MODEL)
    arguments = (*INPUT, "--input", "labels=f32[64,16384]", "--optimizer", "adamw", "--json")
    topology = ("-p", "reference", "-t", "reference:8")
    outcome = command("plan", "model.py:make", *arguments, *topology, "-m", "fsdp=2,tp=4")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["topology"], found["parameters"]) == ("reference:8", 2 * 8 * 16384**2 + 9 * 16384)
    (row,) = found["meshes"]
    assert row["mesh"] == {"fsdp": 2, "tp": 4}
    assert (row["source"], row["estimate"]) == ("the compiler of plugin 'reference'", False)
    assert (row["fits"], row["bound"], row["memory_limit"]) == (None, None, None)
    # Parameters and two moments of each, each eighth of them.
    assert row["memory"]["arguments"] > 3 * 4 * found["parameters"] / 8
    assert {one["operation"] for one in row["collectives"]} >= {"all-gather", "all-reduce"}
    assert all(one["nbytes"] > 0 and one["count"] > 0 for one in row["collectives"])


def test_bad_input(command: Command) -> None:
    write("model.py", MODEL + "\ndef number():\n    return 3\n")
    for arguments, said in (
        (("model.py:make", *INPUT, "-m", "tp=3"), "do not divide into 3"),
        (("model.py:make", *INPUT, "-m", "tp"), "expected axes such as dp=2,tp=4"),
        (("model.py:make", *INPUT, "-m", "tp=0"), "an integer from 1 up"),
        (("model.py:number", *INPUT, "-m", "tp=2"), "expected a module"),
        (("model.py:gone", *INPUT, "-m", "tp=2"), "has no 'gone'"),
        (("model.py:make", *INPUT, "-m", "tp=2", "--optimizer", "gone"), "one of ASGD, Adadelta"),
        (("model.py:make", "-m", "tp=2"), "--input: missing a required argument: 'x'; found []"),
        (("model.py:make", "-i", "q=f32[4]", "-m", "tp=2"), "arguments of Network.forward"),
        (("model.py:make", "-i", "gone[4]", "-m", "tp=2"), "gone[4]"),
        (("model.py:make", *INPUT, "-m", "tp=2", "-t", "gone:4"), "knows the topology 'gone:4'"),
        (("model.py:make", *INPUT, "-m", "tp=2", "--axis", "xx"), "found 'xx', expected an axis"),
        (
            ("model.py:make", *INPUT, "-m", "tp=16", "-t", "v5e:2x4", "--estimate"),
            "Mesh(tp=16) needs 16 devices, the topology 'v5e:2x4' has 8",
        ),
    ):
        outcome = command("plan", *arguments)
        assert outcome.status == 1
        assert said in outcome.err


def test_a_missing_compiler_is_told_before_the_model_is_traced(command: Command) -> None:
    write("untraced.py", "raise AssertionError('was imported')")
    outcome = command(
        "plan", "untraced.py:make", *INPUT, "-m", "tp=2", "-t", "reference:4", "-p", "gone"
    )
    assert outcome.status == 1
    assert "'gone'" in outcome.err
    assert "--estimate asks no compiler" in outcome.err


def test_what_is_done_is_said_where_there_is_no_terminal(command: Command) -> None:
    write("model.py", MODEL)
    outcome = command("plan", "model.py:make", *INPUT, "-m", "tp=8", "-m", "dp=2,tp=4", "--json")
    assert outcome.status == 0, outcome.err
    said = [line for line in outcome.err.splitlines() if line.startswith("pjrt_bridge: ")]
    assert said == [
        f"pjrt_bridge: {what}"
        for what in ("tracing model.py:make", "planning tp=8", "planning dp=2,tp=4")
    ]
    assert len(json.loads(outcome.out)["meshes"]) == 2

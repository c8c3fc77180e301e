"""`pjrt-bridge explain` and what other commands do with functions that users name."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command, write

BROKEN = """
import torch

def multiplied(x):
    return x @ torch.ones(4, 4)

class Model(torch.nn.Module):
    def forward(self, x):
        return multiplied(x)

class Unmade(Model):
    def __init__(self):
        raise KeyError("weights")
"""


@pytest.mark.parametrize(
    ("command_line", "says"),
    [
        ("explain {}:multiplied --input f32[3,3]", "raised TorchRuntimeError: "),
        ("explain {}:Unmade", "raised KeyError: 'weights'\n"),
        ("plan {}:Model --mesh dp=2 --input f32[4,3]", "raised RuntimeError: a and b must have"),
        ("plan {}:Unmade --mesh dp=2 --input f32[4,3]", "raised KeyError: 'weights'\n"),
    ],
)
def test_an_error_of_the_users_function_is_told_as_that(
    command: Command, command_line: str, says: str
) -> None:
    """It was called an internal error."""
    path = write("broken.py", BROKEN)
    named, *arguments = command_line.format(path).split()
    outcome = command(named, *arguments)
    assert (outcome.status, outcome.out) == (1, "")
    told = outcome.err.removeprefix(f"pjrt_bridge: tracing {arguments[0]}\n")
    assert told.startswith(f"error: {arguments[0]} {says}")
    assert told.endswith("\n--debug shows where\n")

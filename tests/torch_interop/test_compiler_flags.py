"""Options and compiler flags in combination: right results in a process that stays alive."""

import json
from itertools import product
from typing import Any

import pytest

from pjrt_bridge.registry import wheel_library
from tests import forked

COMPUTE = """
import json, sys, warnings
import torch
from torch import nn
from pjrt_bridge.torch_interop import compiled_graphs

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(48, 96), nn.LayerNorm(96), nn.Linear(96, 48)

    def forward(self, x):
        y = self.norm(nn.functional.gelu(self.first(x)))
        scores = torch.softmax(y @ y.mT / 8, -1).cumsum(-1)
        return self.last(scores @ y) + x.topk(3, -1).values.sum(-1, keepdim=True)

torch.manual_seed(0)
warnings.simplefilter("ignore")
model, x = Model(), torch.randn(4, 24, 48)
model(x).square().mean().backward()
expected = [model(x).detach(), *(item.grad.clone() for item in model.parameters())]
for options in json.loads(sys.argv[1]):
    torch.compiler.reset()
    model.zero_grad()
    try:
        compiled = torch.compile(model, backend="pjrt", options=options)
        result = compiled(x)
        result.square().mean().backward()
    except Exception as error:
        print(json.dumps({"error": str(error)}))
        continue
    found = [result.detach(), *(item.grad for item in model.parameters())]
    wrong = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, expected)]
    where = {segment.placement for graph in compiled_graphs() for segment in graph.segments}
    print(json.dumps({"wrong": max(wrong), "where": sorted(where)}))
"""

FLAGS: dict[str, tuple[Any, ...]] = {
    "xla_cpu_prefer_vector_width": (256, 512),
    "xla_cpu_enable_fast_math": (False, True),
    "xla_backend_optimization_level": (0, 3),
    "xla_cpu_use_onednn": (False, True),
}
PLACEMENTS: tuple[dict[str, Any], ...] = (
    {"placement": "device", "fallback": "error"},
    {"placement": "auto"},
    {"host_ops": ["aten.cumsum"]},
    {"min_segment": 3},
)


def computed(options: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What became of each of these in one process, which has to end well."""
    done = forked.parent(forked.TORCH).run(COMPUTE, [json.dumps(options)], timeout=1000)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(options)
    return found


def combinations() -> list[dict[str, Any]]:
    """All values of all flags, all ways of placement, one and four devices: 128."""
    flags = [dict(zip(FLAGS, values, strict=True)) for values in product(*FLAGS.values())]
    # A library by its path has no defaults of a package: it has four devices.
    plugins = ("cpu", str(wheel_library("xla-cpu-pjrt", "xla_cpu_pjrt.so")))
    return [
        {"plugin": plugin, "compiler_flags": chosen, **placement}
        for plugin, chosen, placement in product(plugins, flags, PLACEMENTS)
    ]


def assert_right(options: list[dict[str, Any]], outcomes: list[dict[str, Any]]) -> None:
    for given, found in zip(options, outcomes, strict=True):
        assert found.get("wrong", 1) < 1e-4, (given, found)
        mixed = "host_ops" in given
        assert "device" in found["where"]
        assert ("host" in found["where"]) == mixed, (given, found)


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"xla_cpu_no_such_flag": True}, "No such compile option: 'xla_cpu_no_such_flag'"),
    ({"xla_cpu_prefer_vector_width": "wide"}, "'wide' is not a valid int32 value"),
    ({"xla_cpu_use_onednn": "perhaps"}, "perhaps"),
    ({"xla_cpu_prefer_vector_width": [512]}, "expected str, bool, an int of 64 bits, or float"),
)
# A step that has no factor in common with their number visits all values of each.
SOME = combinations()[::29]


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    """Of what is wrong, of no flags at all, and of what is right, in one process."""
    wrong = [{"compiler_flags": flags, "fallback": "error"} for flags, _ in WRONG]
    return computed([*wrong, {}, *SOME])


def test_flags_and_options_go_together(outcomes: list[dict[str, Any]]) -> None:
    assert_right(SOME, outcomes[len(WRONG) + 1 :])


@pytest.mark.slow
def test_all_combinations_of_flags_and_options() -> None:
    options = combinations()
    assert_right(options, computed(options))


def test_wrong_flags_are_named_and_break_nothing(outcomes: list[dict[str, Any]]) -> None:
    for (flags, words), found in zip(WRONG, outcomes, strict=False):
        assert words in found["error"]
        assert next(iter(flags)) in found["error"]
    assert outcomes[len(WRONG)]["wrong"] < 1e-4

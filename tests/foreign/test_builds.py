"""What the table of builds states of each: versions, options, devices, flags, refusals."""

from __future__ import annotations

import pytest

from pjrt_bridge_cpu.builds import Build
from tests.foreign.building import ALL, OTHERS, answer, needed

pytestmark = needed

ABOUT = """
import json
import pjrt_bridge

client = pjrt_bridge.client("cpu")
print(json.dumps({
    "api": client.plugin.api_version[1],
    "stablehlo": client.plugin.stablehlo_version,
    "flags": dict(client.safe_flags),
    "names": [info.name for info in pjrt_bridge.plugins() if info.available],
}))
"""


@pytest.mark.parametrize("build", ALL, ids=lambda build: build.name)
def test_it_is_as_the_table_says(build: Build) -> None:
    about = answer(build, ABOUT)
    assert (about["api"], about["stablehlo"]) == (build.api, build.stablehlo)
    assert about["flags"] == dict(build.compiler_flags)
    rest = {other.name for other in ALL if other is not build}
    assert about["names"][0] == "cpu"
    assert rest <= set(about["names"])


FLAGS = """
import json
import numpy as np
import torch
import pjrt_bridge
from pjrt_bridge.runtime import CompileOptions
from tests.cpu.test_platform import MATMUL

REDUCE = '''func.func @main(%x: tensor<64x100xf32>) -> tensor<64xf32> {
  %c = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %c) applies stablehlo.maximum across dimensions = [1]
    : (tensor<64x100xf32>, tensor<f32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}'''
MAXIMUM = '''func.func @main(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.maximum %x, %y : tensor<2xf32>
  return %0 : tensor<2xf32>
}'''
client = pjrt_bridge.client("cpu")
flags = dict(client.safe_flags)


def stale(client):
    executable = client.compile(MATMUL)
    torch.manual_seed(0)
    a, b = torch.randn(256, 768), torch.randn(768, 2304)
    buffers = [client.put(a, copy=False), client.put(b, copy=False)]
    executable.execute(buffers)
    b.mul_(-2.0)
    return float((torch.from_dlpack(executable.execute(buffers)[0]) - a @ b).abs().max()) > 1


def drops_nan(client):
    x, y = np.array([np.nan, 1], np.float32), np.array([1, np.nan], np.float32)
    (found,) = client.compile(MAXIMUM)(x, y)
    return not np.isnan(np.asarray(found)).all()


def reduces_nan_away(client):
    x = np.ones((64, 100), np.float32)
    x[np.arange(64), np.arange(64)] = np.nan
    (found,) = client.compile(REDUCE)(x)
    return not np.isnan(np.asarray(found)).all()


def size(**flags):
    client.__dict__["safe_flags"] = flags
    return len(client.compile(MATMUL).serialize())


def wrong(flags):
    client.__dict__["safe_flags"] = flags
    return [stale(client), drops_nan(client), reduces_nan_away(client)]


print(json.dumps({
    "XNNPACK": size(xla_cpu_use_xnnpack=False) != size(xla_cpu_use_xnnpack=True),
    "with all": wrong(flags),
    **{name: wrong({k: v for k, v in flags.items() if k != name}) for name in flags},
}))
"""

WRONG = {
    # Stale factors, a NaN that maximum drops, a NaN that a reduction drops.
    "xla_cpu_enable_fast_min_max": [False, True, True],
    "xla_cpu_experimental_ynn_fusion_type": [False, False, True],
}


@pytest.mark.parametrize("build", ALL, ids=lambda build: build.name)
def test_each_flag_is_needed(build: Build) -> None:
    found = answer(build, FLAGS)
    # XLA chooses by the processor whether XNNPACK computes a product: on Zen 5 it computes none.
    stale = [found.pop("XNNPACK"), False, False]
    assert found.pop("with all") == [False, False, False]
    assert set(found) == set(build.compiler_flags)
    for name, wrong in found.items():
        assert wrong == (stale if name == "xla_cpu_use_xnnpack" else WRONG[name]), name


OPTIONS = """
import json
import numpy as np
import pjrt_bridge
from pjrt_bridge.errors import OptionError

found = {}
for options in ({"bogus": 1}, {"cpu_device_count": "4"}, {"asynchronous": 1}, {"process_id": -1}):
    try:
        pjrt_bridge.client("cpu", **options)
    except OptionError as error:
        found[next(iter(options))] = str(error)
client = pjrt_bridge.client("cpu", cpu_device_count=4)
x = np.arange(64, dtype=np.float32)
SUM = '''func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %0 = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
  }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<64xf32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}'''
executable = client.compile(SUM, options=pjrt_bridge.CompileOptions(num_replicas=4))
results = executable.execute_sharded([[client.put(x, device)] for device in client.devices])
found["sums"] = [bool(np.array_equal(np.asarray(one), 4 * x)) for (one,) in results]
found["devices"] = [device.id for device in client.devices]
print(json.dumps(found))
"""


@pytest.mark.parametrize("build", ALL, ids=lambda build: build.name)
def test_options_are_checked_and_four_devices_work_together(build: Build) -> None:
    found = answer(build, OPTIONS)
    declared = ", ".join(build.option_types)
    assert found["bogus"] == f"plugin 'cpu' has no option 'bogus'; it declares: {declared}"
    assert "found '4' of type str, expected int" in found["cpu_device_count"]
    for name, text in (
        ("asynchronous", "expected bool"),
        ("process_id", "found -1, expected 0 to"),
    ):
        said = text if name in build.option_types else f"plugin 'cpu' has no option {name!r}"
        assert said in found[name]
    assert found["sums"] == [True] * 4
    assert found["devices"] == [0, 1, 2, 3]


EFFECTS = """
import json

import numpy as np
import pjrt_bridge

LONG = '''func.func @main(%x: tensor<700x700xf32>) -> tensor<700x700xf32> {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
    : (tensor<700x700xf32>, tensor<700x700xf32>) -> tensor<700x700xf32>
  %1 = stablehlo.sine %0 : tensor<700x700xf32>
  %2 = stablehlo.dot_general %1, %0, contracting_dims = [1] x [0]
    : (tensor<700x700xf32>, tensor<700x700xf32>) -> tensor<700x700xf32>
  return %2 : tensor<700x700xf32>
}'''
found = {"process": [d.id for d in pjrt_bridge.client("cpu", process_id=5).devices]}
for asynchronous in (True, False):
    client = pjrt_bridge.client("cpu", asynchronous=asynchronous)
    executable, x = client.compile(LONG), client.put(np.ones((700, 700), np.float32))
    executable.execute([x])[0].to_numpy()
    ready = 0
    for _ in range(5):
        (result,) = executable.execute([x])
        ready += result.ready()
        result.to_numpy()
    found[f"ready {asynchronous}"] = ready
print(json.dumps(found))
"""


def test_the_options_of_the_newest_build_have_their_effects() -> None:
    (build,) = [build for build in OTHERS if "asynchronous" in build.option_types]
    found = answer(build, EFFECTS)
    assert found["process"] == [5 * 2048]
    # Without asynchrony a call returns when its results are there.
    assert found["ready False"] == 5
    assert found["ready True"] < 5


REFUSED = """
import json
import pjrt_bridge
from pjrt_bridge.errors import UnsupportedDtype
from tests.cpu.test_builds import CONSTANT

try:
    pjrt_bridge.client("cpu").compile(CONSTANT)
except UnsupportedDtype as error:
    print(json.dumps(str(error)))
"""


def test_constants_that_end_the_process_are_refused() -> None:
    (build,) = [build for build in OTHERS if build.fatal_constants]
    assert "has a constant of float6_e2m3fn, on which" in answer(build, REFUSED)

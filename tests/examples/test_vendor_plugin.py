"""The template of a vendor's package, built and installed as a vendor would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.building import ROOT, build

TEMPLATE = ROOT / "examples" / "vendor_plugin"
PROGRAM = next(
    code
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    if "stablehlo.multiply" in code
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the template's wheel was installed."""
    copy = tmp_path_factory.mktemp("template") / "vendor_plugin"
    for path in TEMPLATE.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            (copy / path.relative_to(TEMPLATE)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(TEMPLATE)).write_bytes(path.read_bytes())
    dist, target = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("installed")
    build(copy, dist, "--wheel")
    (wheel,) = dist.glob("pjrt_bridge_mychip-*-py3-none-any.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True, timeout=120)
    return target


def run(installed: Path, *arguments: str, timeout: float = 120) -> str:
    """What a Python process printed that finds the package; it must end well, without warnings."""
    others = [str(ROOT), *sys.path[1:], os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join([str(installed), *filter(None, others)])
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=installed,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_plugins_lists_it_and_imports_neither_torch_nor_jaxlib(installed: Path) -> None:
    source = """
import json, sys
from pjrt_bridge import registry
found = [str(info) for info in registry.plugins() if info.name == "mychip"]
print(json.dumps([found, registry.plugins()[0].name, "torch" in sys.modules,
                  "jaxlib" in sys.modules]))
"""
    found, default, *heavy = json.loads(run(installed, "-c", source))
    assert found == ["mychip: available (from entry point mychip of pjrt-bridge-mychip 0.1.0)"]
    assert default == "cpu"
    assert heavy == [False, False]


def test_inspect(installed: Path) -> None:
    shown = json.loads(run(installed, "-m", "pjrt_bridge", "inspect", "mychip", "--json"))
    assert shown["error"] is None
    assert shown["options"] == {"celsius": 40.0}
    assert [device["kind"] for device in shown["devices"]] == ["mychip"]
    (extension,) = shown["extensions"]
    assert (extension["name"], extension["functions"]) == ("Thermometer", {"read": True})


CLIENT = """
import numpy as np
import pjrt_bridge
from pjrt_bridge.errors import InvalidArgument, OptionError, Unimplemented
from pjrt_bridge.runtime import CompileOptions
from pjrt_bridge_mychip.extension import Thermometer

client = pjrt_bridge.client("mychip", celsius=55.5)
assert client.extension(Thermometer).read(client.devices[0]) == 55.5
assert client.platform_spec.compiler_flags == client.safe_flags == {"mychip_fast_math": False}
x = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1]
assert np.array_equal(client.put(x).to_numpy(), x)

def refused(error, call, message):
    try:
        call()
    except error as found:
        assert message in str(found), found
    else:
        raise AssertionError(message)

text = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
unknown = '''func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.cholesky %x : tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}'''
flags = CompileOptions(env={"mychip_turbo": True})
refused(OptionError, lambda: pjrt_bridge.client("mychip", kelvin=1.0), "kelvin")
refused(Unimplemented, lambda: client.compile(unknown), "stablehlo.cholesky")
refused(InvalidArgument, lambda: client.compile(text, options=flags), "mychip_turbo")
refused(OptionError, lambda: pjrt_bridge.topology("16", "mychip"), "expected 'mychip:1'")
topology = pjrt_bridge.topology("mychip:1")
assert [device.kind for device in topology.devices] == ["mychip"]
assert repr(pjrt_bridge.compile_for(text, topology="mychip:1"))
"""


def test_the_readme_program_options_errors_extension_and_topology(installed: Path) -> None:
    program = PROGRAM.replace("pjrt_bridge.client()", 'pjrt_bridge.client("mychip")')
    assert program != PROGRAM
    assert "[0. 1. 4. 9.]" in run(installed, "-c", program + CLIENT)


MODELS = """
import copy, warnings
import torch
from pjrt_bridge import registry
from pjrt_bridge.torch_interop import explain_with
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge_mychip.kernels import MychipKernels

nn = torch.nn
mlp = nn.Sequential(nn.Linear(6, 8), nn.GELU(approximate="tanh"), nn.LayerNorm(8), nn.Linear(8, 3))
convolutions = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64, 3), nn.GELU(),
)

def step(model, compiled, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.cross_entropy(compiled(x), torch.tensor([0, 2]))
    loss.backward()
    optimizer.step()
    return loss.detach()

torch.manual_seed(0)
for model, x in ((mlp, torch.randn(2, 6)), (convolutions, torch.randn(2, 3, 8, 8))):
    expected = copy.deepcopy(model)
    options = {"plugin": "mychip", "fallback": "error"}
    compiled = torch.compile(model, backend="pjrt", options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected(x))
    torch.testing.assert_close(step(model, compiled, x), step(expected, expected, x))
    for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)

assert type(kernels_of(registry.client("mychip"))) is MychipKernels
with warnings.catch_warnings(action="ignore"):
    report = explain_with({"plugin": "mychip"}, lambda x: x.exp().sort().values, torch.randn(5000))
print(report)
"""


LOWERINGS = """
import numpy as np
from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, TensorType
from pjrt_bridge.torch_interop.lowering.api import Context
from pjrt_bridge_mychip import chip, kernels, lowerings

def program(dtype, **how):
    matrix, rows = (TensorType(shape, dtypes.of(dtype)) for shape in ((4, 8), (4,)))
    b = Builder([matrix])
    x = lowerings.gelu(Context(b, [matrix]), *b.parameters, **how)
    return b.finish([kernels.MychipKernels().reduce(b, "sum", x, [1])])

for dtype, how, calls in (
    ("float32", {"approximate": "tanh"}, {"mychip.gelu_tanh"}),
    ("float32", {}, set()),
    ("float64", {"approximate": "tanh"}, set()),
):
    found = program(dtype, **how)
    assert found.custom_calls == calls, (dtype, how)
    assert ("dot_general" in found.text) == (dtype == "float32")
options = b"\\x1a\\x04\\x20\\x01\\x28\\x01"
one = chip.compile_program(program("float32", approximate="tanh").bytecode(), options)
x = np.ones((4, 8), np.float32)
np.testing.assert_allclose(chip.run(one, x)[0], 8 * 0.841192, rtol=1e-5)
"""


ATTENTION = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attention
from pjrt_bridge.torch_interop import explain_with
from pjrt_bridge_mychip import chip

compiled, compile_program = [], chip.compile_program

def observed(code, options):
    compiled.append(chip.Program.parse(code).custom_calls)
    return compile_program(code, options)

chip.compile_program = observed

def gradients(function, inputs):
    given = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    found = function(*given)
    found.square().sum().backward()
    return [found.detach(), *(x.grad for x in given)]

def check(function, inputs, calls, plugin="mychip"):
    compiled.clear()
    torch.compiler.reset()
    run = torch.compile(function, backend="pjrt", options={"plugin": plugin, "fallback": "error"})
    torch.testing.assert_close(gradients(run, inputs), gradients(function, inputs))
    found = frozenset().union(*compiled)
    assert found == calls, (found, calls)

torch.manual_seed(0)
heads = [torch.randn(2, 4, length, 8) for length in (5, 7, 7)]
shared = [heads[0], heads[1][:, :2], heads[2][:, :2]]
check(attention, heads, {"mychip.attention"})
check(lambda q, k, v: attention(q, k, v, scale=0.5), heads, {"mychip.attention"})
check(lambda q, k, v: attention(q, k, v, is_causal=True), heads, {"mychip.causal_attention"})
check(
    lambda q, k, v: attention(q, k, v, torch.ones(5, 7).tril().bool()),
    heads,
    {"mychip.causal_attention"},
)
check(lambda q, k, v: attention(q, k, v, torch.ones(5, 7).tril(1).bool()), heads, set())
check(lambda q, k, v: attention(q, k, v, enable_gqa=True), shared, set())
check(attention, [x.double() for x in heads], set())
check(attention, heads, set(), plugin="cpu")
encoder = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
check(encoder, [torch.randn(2, 5, 16)], {"mychip.attention"})
"""


def test_attention_of_models_is_the_chips_kernel_and_elsewhere_written_out(installed: Path) -> None:
    run(installed, "-c", ATTENTION)


COMPOSITES = """
import numpy as np
import torch
from pjrt_bridge import registry
from pjrt_bridge.torch_interop import composite, export
from pjrt_bridge_mychip import chip

compiled, compile_program = [], chip.compile_program

def observed(code, options):
    compiled.append(chip.Program.parse(code))
    return compile_program(code, options)

chip.compile_program = observed

@composite("mychip.gelu", version=1)
def gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(gelu(torch.nn.functional.rms_norm(x, (8,))), -1)

def check(found, x, kept):
    torch.testing.assert_close(found, Model()(x))
    calls, text = compiled[-1].custom_calls, compiled[-1].text
    assert calls == ({"mychip.gelu_tanh"} if x.dtype == torch.float32 else set())
    assert text.count("stablehlo.composite") == kept, text
    assert kept == text.count('"aten.rms_norm.default"'), text

client = registry.client("mychip")
for x in (torch.randn(2, 8), torch.randn(2, 8).double()):
    exported = export(Model(), (x,), composites="keep")
    check(torch.from_numpy(np.array(exported.load_on(client)(x))), x, kept=1)
    options = {"plugin": "mychip", "fallback": "error"}
    check(torch.compile(Model(), backend="pjrt", options=options)(x), x, kept=0)
"""


def test_composites_are_the_chips_own_in_exported_models_and_compiled_ones(installed: Path) -> None:
    run(installed, "-c", COMPOSITES)


DIVIDED = """
from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, TensorType
from pjrt_bridge.stablehlo.sharding.mesh import Mesh
from pjrt_bridge.stablehlo.partitioning.propagation import shard
from pjrt_bridge.stablehlo.sharding.sharding import Sharding
from pjrt_bridge.torch_interop.lowering.api import Attention
from pjrt_bridge_mychip.kernels import MychipKernels

heads = TensorType((4, 2, 8, 16), dtypes.of("float32"))
b = Builder([heads] * 3)
program = b.finish(MychipKernels().attention(b, *b.parameters, None, Attention(0.25, False)))
mesh = Mesh.of({"dp": 2, "tp": 2})
by_head = Sharding.of(mesh, ("dp", "tp"), 4)
found = shard(program, mesh, [by_head, None, None], [None, None])
assert found.parameters == (by_head,) * 3
assert found.results == (by_head, Sharding.of(mesh, ("dp", "tp"), 3))
# Keys are needed whole.
by_key = shard(program, mesh, [None, Sharding.of(mesh, (None, None, "dp"), 4), None], [None, None])
assert by_key.results[0] == Sharding.of(mesh, (), 4)
"""


def test_attention_is_divided_by_batch_and_head(installed: Path) -> None:
    run(installed, "-c", DIVIDED)


def test_lowerings_models_and_the_readme_of_the_template(installed: Path) -> None:
    text = (TEMPLATE / "README.md").read_text()
    (block,) = re.findall(r" ```python\n(.*?)```", text, re.DOTALL)
    readme = "\n".join(line.removeprefix("   ") for line in block.splitlines())
    # One process: each imports PyTorch.
    shown = " ".join(run(installed, "-c", LOWERINGS + MODELS + readme).split())
    assert "aten.sort.default: PyTorch was measured to be faster from" in shown
    assert "4,096 elements on" in shown
    assert "Sequential: everything runs on mychip" in shown


LEAST = """
from pjrt_bridge.abi.api import REQUIRED
from pjrt_bridge_mychip.plugin import FUNCTIONS

for name in set(FUNCTIONS) - set(REQUIRED):
    del FUNCTIONS[name]
"""


def test_the_required_functions_are_enough(installed: Path) -> None:
    program = PROGRAM.replace("pjrt_bridge.client()", 'pjrt_bridge.client("mychip")')
    assert "[0. 1. 4. 9.]" in run(installed, "-c", LEAST + program)


def test_the_plugin_is_small() -> None:
    assert len((TEMPLATE / "pjrt_bridge_mychip" / "plugin.py").read_text().splitlines()) <= 300


def test_the_readme_names_every_module() -> None:
    text = (TEMPLATE / "README.md").read_text().partition("## ")[0]
    modules = {path.name for path in (TEMPLATE / "pjrt_bridge_mychip").glob("*.py")}
    assert modules == set(re.findall(r"`(\w+\.py)`", text))


@pytest.mark.slow
def test_conformance(installed: Path) -> None:
    target = installed / "report.json"
    command = ("-m", "pjrt_bridge", "conformance", "mychip", "--json", str(target))
    run(installed, *command, timeout=280)
    counts = json.loads(target.read_text())["counts"]
    assert counts["pass"] > 900
    assert not any(counts.get(status) for status in ("fail", "crash", "hang", "not run"))

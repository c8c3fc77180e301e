"""`pjrt-bridge run` on what is more than a program: saved models, bundles, artifacts of JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Command
from tests.exported.models import WEIGHT, by_size, scaled
from tests.fixtures.places import AFFINE, AFFINE_TEXT, BUNDLE, BUNDLE_IO, GRAM

IO = dict(np.load(BUNDLE_IO))


@pytest.fixture
def inputs(command: Command) -> None:
    """Files for the tests' models, in the folder where the command runs."""
    np.save("ids.npy", IO["ids"])
    np.save("bias.npy", IO["bias"])
    np.save("b.npy", np.ones(4, np.float32))
    np.save("unused.npy", np.ones(2, np.int8))
    np.save("w.npy", np.zeros((3, 4), np.float32))
    np.save("x.npy", np.ones((2, 3), np.float32))
    np.save("steps.npy", np.int32(7))


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize(
    "given",
    [
        ["ids.npy", "bias.npy"],
        ["arg1=bias.npy", "ids.npy"],
        ["arg1=bias.npy", "arg0=ids.npy"],
    ],
)
def test_a_bundle(command: Command, given: list[str]) -> None:
    arguments = [part for text in given for part in ("--input", text)]
    outcome = command("run", BUNDLE, "--plugin", "cpu", *arguments, "--output-dir", "out")
    assert (outcome.status, outcome.err) == (0, "")
    assert "result 0['hidden']  float32 2x3x8\n" in outcome.out
    assert "result 1['mean']  float32 2x3\n" in outcome.out
    np.testing.assert_allclose(np.load("out/output_0.npy"), IO["hidden"], atol=1e-5)
    np.testing.assert_allclose(np.load("out/output_1.npy"), IO["mean"], atol=1e-5)


def test_a_saved_model(command: Command) -> None:
    scaled().save("model")
    np.save("x.npy", np.full(16, 2, np.float32))
    outcome = command("run", "model", "-i", "x=x.npy", "--output-dir", "out")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("result 0['y']  float32 16\n")
    np.testing.assert_array_equal(np.load("out/output_0.npy"), WEIGHT * 2)


def test_without_inputs_a_model_is_explained(command: Command) -> None:
    outcome = command("run", BUNDLE)
    assert outcome.status == 2
    assert outcome.out == (
        "forward\n"
        "  input arg0          int64 2x3\n"
        "  input arg1          float32 8\n"
        "  result 0['hidden']  float32 2x3x8\n"
        "  result 1['mean']    float32 2x3\n"
        "\n"
        "Run it with one .npy file (numpy.save) per input:\n"
        f"  pjrt-bridge run {BUNDLE} --input arg0=input_0.npy --input arg1=input_1.npy\n"
    )
    assert outcome.err == f"error: {BUNDLE}: expected 2 --input, found 0\n"


@pytest.mark.usefixtures("inputs")
def test_what_jax_export_wrote(command: Command) -> None:
    outcome = command(
        "run", AFFINE, "-i", "steps=steps.npy", "-i", "b.npy", "-i", "unused.npy", "-i", "w.npy",
        "-i", "arg1=x.npy",
    )  # fmt: skip
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("result 0['more'][0]  int32 scalar\n8\nresult 1['y']  float32 2x")


@pytest.mark.usefixtures("inputs")
def test_text_that_jax_wrote(command: Command) -> None:
    files = ["b.npy", "w.npy", "x.npy", "steps.npy"]
    outcome = command("run", AFFINE_TEXT, *(part for file in files for part in ("-i", file)))
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("result 0  int32 scalar\n8\nresult 1  float32 2x4\n")


def test_sizes_and_platforms_of_jax(command: Command) -> None:
    np.save("x.npy", np.ones((2, 3), np.float32))
    np.save("y.npy", np.ones(3, np.float32))
    given = ["-i", "x.npy", "-i", "y.npy"]
    outcome = command("run", GRAM, "--platform", "tpu", "--size", "b=2", *given)
    assert (outcome.status, outcome.err) == (0, "")
    assert "result 1  float32 3x3\n" in outcome.out
    # The plugin's own platform is the default; what JAX calls there is written as StableHLO.
    own = command("run", GRAM, "--plugin", "cpu", "--size", "b=2", *given)
    assert (own.status, own.err, own.out) == (0, "", outcome.out)
    outcome = command("run", GRAM, "--platform", "tpu", *given)
    assert outcome.err.startswith(
        f"error: {GRAM}: function 'gram' of jax.export: sizes: found none"
    )
    outcome = command("run", GRAM, "--platform", "rocm", "--size", "b=2", *given)
    assert "platform: found 'rocm', expected one of cpu, tpu" in outcome.err
    outcome = command("run", GRAM, "--platform", "tpu", "--size", "b", *given)
    assert outcome.err == "error: --size: found 'b', expected name=number\n"


def test_sizes_of_a_saved_model(command: Command) -> None:
    by_size().save("model")
    np.save("x.npy", np.ones(3, np.float32))
    assert command("run", "model", "-i", "x.npy").status == 0
    assert command("run", "model", "-i", "x.npy", "--size", "n=3").status == 0
    outcome = command("run", "model", "-i", "x.npy", "--size", "n=2")
    assert "no program for the sizes of x: [3]; it was exported for n=2" in outcome.err
    outcome = command("run", "model", "-i", "x.npy", "--size", "n=4")
    assert outcome.err == (
        "error: --size: found n=4, which no program of model has; their sizes are: n=2; n=3\n"
    )
    outcome = command("run", "model", "--platform", "tpu")
    assert (
        outcome.err == "error: --platform: model is a saved model, and has no platforms to choose\n"
    )


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["x=bias.npy", "ids.npy"], "--input x=bias.npy: no input 'x'; expected one of arg0, arg1"),
        (["arg0=ids.npy", "arg0=ids.npy"], "--input arg0=ids.npy: 'arg0' is given twice"),
        (["ids.npy", "ids.npy"], "argument 'arg1': found int64[2, 3], expected float32[8]"),
        (
            ["ids.npy", "gone.npy"],
            "--input gone.npy: found no such file, expected a .npy",
        ),
    ],
)
def test_inputs_that_do_not_fit(command: Command, given: list[str], message: str) -> None:
    outcome = command("run", BUNDLE, *(part for text in given for part in ("-i", text)))
    assert outcome.status == 1
    assert outcome.err.startswith(f"error: {message}")


def test_a_model_in_parts(command: Command) -> None:
    torch = pytest.importorskip("torch")
    from pjrt_bridge.torch_interop import export

    class Distinct(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            found = torch.unique(x * 2)
            return found, found.sum() * x

    x = torch.tensor([1.0, 2, 2])
    export(Distinct(), (x,), split=True).save("model")
    np.save("x.npy", x.numpy())
    outcome = command("run", "model", "-i", "x.npy", "-p", "cpu")
    assert outcome.status == 1
    assert "model/program_0_1.pt2: a part that torch runs, and loading it runs code" in outcome.err
    assert "`pjrt-bridge run --trusted`" in outcome.err
    outcome = command("run", "--trusted", "model", "-i", "x.npy", "-p", "cpu")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == "result 0  float32 2\n[2. 4.]\nresult 1  float32 3\n[ 6. 12. 12.]\n"
    outcome = command("run", "--trusted", "model")
    assert outcome.status == 2
    assert "  input x   float32 3\n  result 0  computed\n  result 1  computed\n" in outcome.out
    assert command("compile", "model/program_0_2.stablehlo", "-p", "cpu").status == 0


def test_files_with_an_equals_sign(command: Command) -> None:
    np.save("a=b.npy", np.ones(16, np.float32))
    scaled().save("model")
    assert command("run", "model", "-i", "a=b.npy").status == 0


def test_what_holds_no_model(command: Command) -> None:
    Path("empty").mkdir()
    outcome = command("run", "empty")
    assert outcome.status == 1
    assert outcome.err == (
        "error: empty: found neither manifest.json (a saved model) nor functions/*.meta (a bundle "
        "of PyTorch/XLA) nor saved_model.pb (a SavedModel of TensorFlow)\n"
    )
    Path("noise.bin").write_bytes(bytes(range(128, 256)))
    outcome = command("run", "noise.bin")
    assert outcome.status == 1
    assert outcome.err.startswith("error: noise.bin: neither StableHLO (text, bytecode, portable")
    outcome = command("run", "gone")
    assert outcome.err == "error: program: cannot read 'gone': No such file or directory\n"


def test_damage_names_the_file(command: Command) -> None:
    scaled().save("model")
    artifact = Path("model/program_0.stablehlo")
    artifact.write_bytes(artifact.read_bytes()[:-1])
    outcome = command("run", "model")
    assert outcome.status == 1
    assert outcome.err.startswith("error: model/program_0.stablehlo: ")


COMPOSITE = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.composite "my.double" %x {decomposition = @double}
    : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
func.func private @double(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.add %x, %x : tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""


@pytest.mark.parametrize("plugin", ["cpu", "reference"])
def test_a_program_with_a_composite(command: Command, plugin: str) -> None:
    Path("program.mlir").write_text(COMPOSITE)
    np.save("x.npy", np.ones(3, np.float32))
    given = ("--plugin", plugin, "--input", "x.npy", "--output-dir", "out")
    outcome = command("run", "program.mlir", *given)
    assert (outcome.status, outcome.err) == (0, "")
    np.testing.assert_array_equal(np.load("out/output_0.npy"), np.full(3, 2, np.float32))

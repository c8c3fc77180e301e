"""`pjrt-bridge run` and `compile` on SavedModels of TensorFlow, which is imported for them only."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Command, Outcome

needs_tensorflow = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)

SAVE = """
import keras
import numpy as np
import tensorflow as tf

class Words(tf.Module):
    def __init__(self):
        entries = tf.lookup.KeyValueTensorInitializer(["ant", "bee"], [1, 2])
        self.table = tf.lookup.StaticHashTable(entries, default_value=0)
        self.rows = tf.Variable(tf.reshape(tf.range(12.0), (3, 4)))

    @tf.function(input_signature=[
        tf.TensorSpec([None], tf.string, name="words"), tf.TensorSpec([4], name="b")])
    def __call__(self, words, b):
        rows = tf.gather(self.rows, self.table.lookup(words))
        return {"y": tf.tanh(rows @ tf.transpose(self.rows) / 50 + tf.reduce_sum(b)),
                "upper": tf.strings.upper(words)}

    @tf.function(input_signature=[tf.TensorSpec([None, 4], name="x")])
    def plain(self, x):
        return tf.nn.relu(x @ tf.transpose(self.rows))

words = Words()
signatures = {"serving_default": words.__call__, "plain": words.plain}
tf.saved_model.save(words, "words", signatures)
b = np.linspace(-1, 1, 4, dtype=np.float32)
np.save("b.npy", b)
np.save("words.npy", np.array([b"bee", b"gnu"]))
np.save("expected_words.npy", words(tf.constant(["bee", "gnu"]), b)["y"])

image = keras.Input((8, 8, 3), name="image")
hidden = keras.layers.Conv2D(4, 3, activation="relu")(image)
hidden = keras.layers.BatchNormalization()(hidden)
dense = keras.layers.Dense(5, activation="softmax")(keras.layers.Flatten()(hidden))
model = keras.Model(image, dense)
model.export("keras", verbose=False)
x = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
np.save("image.npy", x)
np.save("expected_keras.npy", model(x))

# What exporters of StableHLO write.
from tensorflow.compiler.tf2xla.python import xla
text = '''
func.func @main(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %y = stablehlo.tanh %x : tensor<2x4xf32>
  return %y : tensor<2x4xf32>
}
'''
from pjrt_bridge.stablehlo import Program
artifact = Program.from_text(text).portable_artifact("1.0.0")

class Foreign(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([2, 4], name="x")], autograph=False)
    def __call__(self, x):
        (y,) = xla.call_module(
            [x], version=9, module=artifact, Sout=[[2, 4]], Tout=[tf.float32], platforms=["CPU"])
        return {"y": y}

foreign = Foreign()
tf.saved_model.save(foreign, "foreign", foreign.__call__)
"""

# Commands in one process, the first of which imports TensorFlow.
RUN = """
import contextlib, io, json, sys
from pjrt_bridge.cli.main import main

found = []
for arguments in json.loads(sys.argv[1]):
    assert found or "tensorflow" not in sys.modules
    sys.argv = ["pjrt-bridge", *arguments]
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
    found.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""

COMMANDS = {
    "words": ["run", "words", "-i", "words.npy", "-i", "b=b.npy", "-p", "cpu", "--output-dir", "w"],
    "described": ["run", "words", "-i", "f32[4]", "-i", "words=str[ant,b=c]", "-p", "cpu"],
    "asked": ["run", "words"],
    "keras": ["run", "keras", "-i", "image.npy", "-p", "cpu", "--output-dir", "k"],
    "foreign": ["run", "foreign", "-i", "f32[2,4]", "-p", "cpu", "--output-dir", "f"],
    "signature": ["run", "words", "--signature", "plain", "-i", "x=f32[2,4]", "-p", "cpu"],
    "other type": ["run", "keras", "-i", "words.npy", "-p", "cpu"],
    "other file": ["run", "keras", "-i", "gone.npy", "-p", "cpu"],
    "other name": ["run", "keras", "-i", "picture=image.npy", "-p", "cpu"],
    "no signature": ["run", "words", "--signature", "none"],
    "sizes": ["run", "words", "--size", "x.0=1"],
    "compile": ["compile", "keras", "-p", "cpu", "--size", "image.0=2", "-o", "keras.bin"],
    "compile foreign": ["compile", "foreign", "-p", "reference", "-t", "reference:2", "--json"],
    "compile sizes": ["compile", "keras", "-p", "cpu"],
    "compile words": ["compile", "words", "-p", "cpu", "--size", "words.0=2"],
}


def python(code: str, *arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    python(SAVE, cwd=path)
    return path


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, Outcome]:
    found = json.loads(python(RUN, json.dumps(list(COMMANDS.values())), cwd=folder))
    return {name: Outcome(*one) for name, one in zip(COMMANDS, found, strict=True)}


@needs_tensorflow
def test_mixed_with_what_only_tensorflow_has(outcomes: dict[str, Outcome], folder: Path) -> None:
    outcome = outcomes["words"]
    assert outcome.status == 0, outcome.err
    assert outcome.out.startswith("result 0['upper']  string 2\n[b'BEE' b'GNU']\nresult 1['y']  f")
    assert "note: plugin 'cpu' does not run 2 operations of the function" in outcome.err
    assert "StringUpper: XLA has no kernel for it" in outcome.err
    assert np.load(folder / "w/output_0.npy").tolist() == [b"BEE", b"GNU"]
    np.testing.assert_allclose(
        np.load(folder / "w/output_1.npy"), np.load(folder / "expected_words.npy"), rtol=1e-5
    )


@needs_tensorflow
def test_a_model_of_keras(outcomes: dict[str, Outcome], folder: Path) -> None:
    outcome = outcomes["keras"]
    assert outcome.status == 0, outcome.err
    assert "note:" not in outcome.err
    assert outcome.out.startswith("result 0['output_0']  float32 2x5\n")
    np.testing.assert_allclose(
        np.load(folder / "k/output_0.npy"),
        np.load(folder / "expected_keras.npy"),
        rtol=1e-4,
        atol=1e-6,
    )


@needs_tensorflow
def test_what_an_exporter_of_stablehlo_wrote(outcomes: dict[str, Outcome], folder: Path) -> None:
    outcome = outcomes["foreign"]
    assert outcome.status == 0, outcome.err
    # All of it ran on the plugin.
    assert "note:" not in outcome.err
    assert np.abs(np.load(folder / "f/output_0.npy")).max() < 1


@needs_tensorflow
def test_descriptions_and_signatures(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["described"]
    assert outcome.status == 0, outcome.err
    assert "[b'ANT' b'B=C']" in outcome.out
    outcome = outcomes["signature"]
    assert outcome.status == 0, outcome.err
    assert outcome.out.startswith("result 0['output_0']  float32 2x3\n")


@needs_tensorflow
def test_without_inputs_it_is_explained(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["asked"]
    assert outcome.status == 2
    assert outcome.out == (
        "serving_default\n"
        "  input b            float32 4\n"
        "  input words        string ?\n"
        "  result 0['upper']  string ?\n"
        "  result 1['y']      float32 ?x3\n"
        "\n"
        "Run it with one .npy file (numpy.save), or description such as f32[8,64] or str[ant,bee], "
        "per input:\n"
        "  pjrt-bridge run words --input b=input_0.npy --input 'words=str[ant,bee]'\n"
    )


@needs_tensorflow
def test_compiled_ahead_of_time(outcomes: dict[str, Outcome], folder: Path) -> None:
    outcome = outcomes["compile"]
    assert outcome.status == 0, outcome.err
    assert "wrote keras.bin" in outcome.out
    assert (folder / "keras.bin").stat().st_size > 0
    outcome = outcomes["compile foreign"]
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["memory"]["arguments"] == 2 * 4 * 4


@needs_tensorflow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other type", "--input words.npy: argument 'image': found string[2], expected float32[?"),
        ("other file", "--input gone.npy: input 'gone.npy': no such file, and no description"),
        ("other name", "--input picture=image.npy: no input 'picture'; expected one of image"),
        (
            "no signature",
            "words: found no signature 'none', expected one of plain, serving_default",
        ),
        ("sizes", "--size: words is a SavedModel of TensorFlow, and has no sizes to choose"),
        ("compile sizes", "keras: signature 'serving_default': sizes: found none, needed image.0"),
        ("compile words", "words: argument 'words:0': found type string, which no device has"),
    ],
)
def test_what_cannot_be_meant(outcomes: dict[str, Outcome], name: str, said: str) -> None:
    outcome = outcomes[name]
    assert outcome.status == 1
    assert outcome.out == ""
    assert f"error: {said}" in outcome.err


def test_without_tensorflow(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("pjrt_bridge.tf_interop")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delattr("pjrt_bridge.tf_interop", raising=False)
    Path("saved").mkdir()
    Path("saved/saved_model.pb").write_bytes(b"")
    for verb in ("run", "compile"):
        outcome = command(verb, "saved", "-p", "cpu")
        assert outcome.status == 1
        assert outcome.err.startswith("error: saved: pjrt_bridge.tf_interop needs TensorFlow")
        assert outcome.err.endswith("run: pip install 'pjrt-bridge[tf]'\n")

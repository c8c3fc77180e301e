"""Signatures of SavedModels: which is meant, what it takes, and as one program."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge.errors import (
    DataError,
    NotExportable,
    OptionError,
    SavedModelError,
    UnsupportedDtype,
)
from pjrt_bridge.runtime import Client
from pjrt_bridge.tf_interop.saved_model import read_signature

F32 = tf.float32


class Scaled(tf.Module):
    def __init__(self) -> None:
        self.weight = tf.Variable([[1.0, 2.0, 3.0]])

    @tf.function(input_signature=[tf.TensorSpec([None, 3], F32), tf.TensorSpec([3], F32)])
    def scale(self, x: Any, b: Any) -> Any:
        return {"sum": tf.reduce_sum(x * self.weight + b), "y": x * self.weight + b}

    @tf.function(input_signature=[tf.TensorSpec(None, F32)])
    def any_rank(self, x: Any) -> Any:
        return x + 1

    @tf.function(input_signature=[tf.TensorSpec([2], tf.string)])
    def words(self, text: Any) -> Any:
        return tf.strings.length(text)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def numbers(self, text: Any) -> Any:
        return {"doubled": tf.strings.to_number(text) * 2, "text": text}

    @tf.function(input_signature=[tf.TensorSpec([4], F32)])
    def distinct(self, x: Any) -> Any:
        return tf.unique(x).y


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    model = Scaled()
    names = ("scale", "any_rank", "words", "numbers", "distinct")
    tf.saved_model.save(model, str(path), {name: getattr(model, name) for name in names})
    return path


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_mixed(folder: Path, client: Client) -> None:
    signature = read_signature(folder, "numbers")
    doubled, text = signature.run({"text": tf.constant(["1", "2.5"])}, client)
    assert (doubled.tolist(), text.tolist()) == ([2, 5], [b"1", b"2.5"])
    with pytest.raises(DataError, match=r"signature 'numbers': TensorFlow: .*ant"):
        signature.run({"text": tf.constant(["1", "ant"])}, client)


def test_one_program(folder: Path, client: Client) -> None:
    signature = read_signature(folder, "scale")
    assert list(signature.inputs) == ["b", "x"]
    assert list(signature.outputs) == ["sum", "y"]
    model = signature.exported({"x.0": 2})
    assert model.exporter == f"tensorflow {tf.__version__}"
    b, x = np.float32([1, 1, 2]), np.float32([[1, 2, 3], [4, 5, 6]])
    weight = np.float32([[1, 2, 3]])
    with model.load_on(client) as loaded:
        total, y = loaded(b, x, weight)
        np.testing.assert_allclose(y, x * weight + b)
        np.testing.assert_allclose(total, (x * weight + b).sum())


def test_sizes_that_are_open(folder: Path) -> None:
    signature = read_signature(folder, "scale")
    for sizes, found in (({}, "none"), ({"x.1": 3}, "x.1"), ({"x.0": 1, "y": 2}, "x.0, y")):
        with pytest.raises(OptionError, match=rf"'scale': sizes: found {found}, needed x\.0"):
            signature.exported(sizes)
    with pytest.raises(NotExportable, match="argument 'x' may have any rank") as caught:
        read_signature(folder, "any_rank").exported({})
    assert len(caught.value.reasons) == 1


def test_what_no_device_runs(folder: Path) -> None:
    with pytest.raises(UnsupportedDtype, match="found type string"):
        read_signature(folder, "words").exported({})
    with pytest.raises(NotExportable, match="Unique"):
        read_signature(folder, "distinct").exported({})


def test_arguments_that_do_not_fit(folder: Path) -> None:
    signature = read_signature(folder, "scale")
    signature.check("x", tf.ones((7, 3)))
    for value, found in ((tf.ones((7, 4)), r"float32\[7, 4\]"), (tf.constant("a"), r"string\[\]")):
        with pytest.raises(
            DataError, match=rf"argument 'x': found {found}, expected float32\[\?, 3\]"
        ):
            signature.check("x", value)


def test_which_signature(folder: Path, tmp_path: Path) -> None:
    listed = "expected one of any_rank, distinct, numbers, scale, words"
    with pytest.raises(OptionError, match=f"found no signature 'serving_default', {listed}"):
        read_signature(folder)
    with pytest.raises(OptionError, match=f"found no signature 'scales', {listed}"):
        read_signature(folder, "scales")
    model = Scaled()
    tf.saved_model.save(model, str(tmp_path / "one"), {"only": model.scale})
    assert read_signature(tmp_path / "one").name == "only"
    tf.saved_model.save(tf.Module(), str(tmp_path / "none"))
    with pytest.raises(SavedModelError, match="none: a SavedModel without signatures; name them"):
        read_signature(tmp_path / "none")


def test_damage(folder: Path, tmp_path: Path) -> None:
    for file in ("saved_model.pb", "variables/variables.index"):
        broken = tmp_path / Path(file).name
        shutil.copytree(folder, broken)
        (broken / file).write_bytes((broken / file).read_bytes()[:20])
        with pytest.raises(SavedModelError, match=f"{broken}: TensorFlow cannot read it: "):
            read_signature(broken, "scale")

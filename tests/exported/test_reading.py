"""Manifests that somebody altered and signed again: refused as what they are, and nothing else."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import PjrtBridgeError, ProgramError, SavedModelError
from pjrt_bridge.exported import ExportedModel, files, manifest
from pjrt_bridge.exported.interface import Weight
from pjrt_bridge.exported.reading import check_weights
from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.compile import identity
from pjrt_bridge.runtime.compile.serialized import Header, pack, unpack
from tests.exported.models import WEIGHT, by_size, counting, scaled
from tests.exported.test_parts import Unique
from tests.exported.test_parts import model as in_parts

X = np.ones(16, np.float32)

NESTED: Any = 0
for _ in range(200):
    NESTED = {"list": [NESTED]}

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 62, 1 << 63, -(1 << 70), 1.5, float("nan"), "", "x", "\ud800",
    "../other/x", "/etc/passwd", "a\0b", [], [[]], [None], ["x", 0], [-1], {}, {"": None}, NESTED,
)  # fmt: skip


def sign(folder: Path, fields: dict[str, Any]) -> None:
    """Write a manifest with the hash that it has to have."""
    fields = {name: value for name, value in fields.items() if name != "sha256"}
    text = json.dumps({**fields, "sha256": manifest._hash(fields)})
    (folder / manifest.FILE).write_text(text)


def alterations(value: Any) -> Iterator[tuple[str, Any]]:
    """Each way to alter one value in nested lists and objects: its place, and all with it."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    for key, item in inner:
        for place, altered in alterations(item):
            changed = copy.copy(value)
            changed[key] = altered
            yield f"[{key!r}]{place}", changed
        without = copy.copy(value)
        del without[key]
        yield f"[{key!r}] deleted", without
    for odd in ODD:
        if type(odd) is not type(value) or odd != value:
            yield f" = {odd!r:.40}", odd


def use(folder: Path, client: Client) -> None:
    """Load a model, look at it, and run it on ones."""
    model = ExportedModel.load(folder)
    str(model.report())
    leaf = model.interface.inputs[0]
    sizes = [size if isinstance(size, int) and size < 1000 else 2 for size in leaf.shape]  # type: ignore[union-attr]
    with model.load_on(client) as loaded:
        np.asarray(loaded.run([np.ones(sizes, np.float32)])[0])


@pytest.mark.parametrize("make", [scaled, counting, by_size])
def test_whatever_is_altered_is_refused(make: Any, client: Client, tmp_path: Path) -> None:
    make().save(tmp_path)
    fields = json.loads((tmp_path / manifest.FILE).read_text())
    fields.pop("sha256")
    tried = 0
    for at, (place, altered) in enumerate(alterations(fields)):
        # The same values stand in many places.
        if at % 3:
            continue
        tried += 1
        sign(tmp_path, altered if isinstance(altered, dict) else {"": altered})
        try:
            use(tmp_path, client)
        except PjrtBridgeError:
            continue
        except Exception as error:
            raise AssertionError(f"{place}: {type(error).__name__}: {error}") from error
    assert tried > 200


@pytest.mark.parametrize(
    "name", ["../other/x", "/etc/passwd", "a/b", "..", ".hidden", "", "a\0b", "ü", "x" * 300]
)
def test_only_files_of_the_folder_are_opened(name: str, tmp_path: Path) -> None:
    scaled().save(tmp_path / "model")
    fields = json.loads((tmp_path / "model" / manifest.FILE).read_text())
    for changed in ("files", "file"):
        altered = copy.deepcopy(fields)
        if changed == "files":
            altered["files"][name] = altered["files"].pop("program_0.stablehlo")
        altered["model"]["programs"][0]["file"] = name
        sign(tmp_path / "model", altered)
        with pytest.raises(SavedModelError, match=r"manifest.json: field .* a file in this folder"):
            ExportedModel.load(tmp_path / "model")


@pytest.mark.parametrize("name", ["manifest.json", "program_0.stablehlo", "weights.safetensors"])
def test_what_is_no_regular_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    scaled().save(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(SavedModelError, match=f"{name}: cannot be read: found no regular file"):
        ExportedModel.load(tmp_path)


def test_files_are_of_bounded_sizes(tmp_path: Path) -> None:
    scaled().save(tmp_path)
    os.truncate(tmp_path / "program_0.stablehlo", files.PROGRAM_LIMIT + 1)
    with pytest.raises(SavedModelError, match=r"size: found \d+ bytes, needed \d+ at most"):
        ExportedModel.load(tmp_path)
    os.truncate(tmp_path / "manifest.json", files.MANIFEST_LIMIT + 1)
    with pytest.raises(SavedModelError, match=r"manifest.json: size: found \d+ bytes"):
        ExportedModel.load(tmp_path)


def test_an_artifact_that_is_not_the_manifests(client: Client, tmp_path: Path) -> None:
    """By the manifest's signature the arguments of each call are checked."""
    scaled().save(tmp_path)
    fields = json.loads((tmp_path / manifest.FILE).read_text())
    result = fields["model"]["programs"][0]["signature"]["results"][0]
    result["shape"] = result["shard_shape"] = [1 << 20]
    sign(tmp_path, fields)
    with (
        ExportedModel.load(tmp_path).load_on(client) as loaded,
        pytest.raises(SavedModelError, match=r"program_0.stablehlo: signature: found .*, needed"),
    ):
        loaded(X)


def test_a_folder_with_code_has_to_be_trusted(client: Client, tmp_path: Path) -> None:
    in_parts(Unique()).save(tmp_path / "parts")
    scaled().compile_for(client).save(tmp_path / "compiled")
    for name, file in (("parts", "program_0_1.npy"), ("compiled", "program_0.executable")):
        with pytest.raises(SavedModelError) as caught:
            ExportedModel.load(tmp_path / name)
        assert f"{name}/{file}: " in str(caught.value)
        assert "loading it runs code that is in the file" in str(caught.value)
        assert "trusted=True" in str(caught.value)
    with ExportedModel.load(tmp_path / "compiled", trusted=True).load_on(client) as loaded:
        assert np.array_equal(loaded(X)["y"], WEIGHT)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("processor", r"made for a processor with avx9000, which this one lacks"),
        ("library", r"made by another build of the plugin: found a library with the hash 000"),
    ],
)
def test_an_executable_of_elsewhere_is_refused(field: str, text: str, client: Client) -> None:
    (program,) = scaled().compile_for(client).device_programs
    header, blob = unpack(program.executable)  # type: ignore[attr-defined]
    assert header.processor == identity.processor()
    assert header.library is not None
    other = {"processor": f"{header.processor} avx9000", "library": "0" * 64}[field]
    found = {name: getattr(header, name) for name in Header.__slots__}
    with pytest.raises(ProgramError, match=text):
        client.deserialize(pack(Header(**{**found, field: other}), blob))


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        ({"t": np.zeros((2, 3), np.int32)}, r"found int32\[2, 3\], needed float32\[2, 3\]"),
        ({"t": np.zeros((3, 2), np.float32)}, r"found float32\[3, 2\], needed float32\[2, 3\]"),
        ({"u": np.zeros((2, 3), np.float32)}, "tensor 't' is missing"),
    ],
)
def test_a_weight_is_the_one_that_the_manifest_states(
    stored: dict[str, np.ndarray[Any, Any]], found: str
) -> None:
    """Elements of another type of the same size would be read as numbers that nobody wrote."""
    weights = {"w": Weight("parameter", dtypes.of("float32"), (2, 3), "t")}
    with pytest.raises(SavedModelError, match=f"weight 'w': {found}"):
        check_weights(Path("weights.safetensors"), weights, stored)
    check_weights(Path("weights.safetensors"), weights, {"t": np.zeros((2, 3), np.float32)})

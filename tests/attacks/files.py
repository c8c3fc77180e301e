"""Attacks by files: saved models, bundles, what jax.export wrote, executables, cache entries."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pjrt_bridge import storage
from pjrt_bridge.exported import ExportedModel, manifest
from pjrt_bridge.exported.torch_xla_bundle import read_bundle
from pjrt_bridge.jax_interop import from_exported
from pjrt_bridge.runtime.compile import compile_cache, serialized
from tests import programs
from tests.attacks.programs import client
from tests.attacks.registry import damaged, subject
from tests.exported.models import by_size, counting, scaled
from tests.exported.test_reading import alterations, sign, use
from tests.fixtures.places import AFFINE, BUNDLE, GRAM

MODELS = (scaled, counting, by_size)


@contextmanager
def saved(number: int) -> Iterator[Path]:
    """A folder with one of the models."""
    with tempfile.TemporaryDirectory() as folder:
        MODELS[number % len(MODELS)]().save(folder)
        yield Path(folder)


@cache
def _altered(which: int) -> list[tuple[str, Any]]:
    with saved(which) as folder:
        fields = json.loads((folder / manifest.FILE).read_text())
    fields.pop("sha256")
    found = list(alterations(fields))
    random.Random(which).shuffle(found)
    return found


@subject(600)
def manifests(number: int) -> None:
    """Altered fields, signed again."""
    _, fields = _altered(number % len(MODELS))[number]
    with saved(number) as folder:
        sign(folder, fields if isinstance(fields, dict) else {"": fields})
        use(folder, client())


_DEEP: list[Any] = []
for _ in range(200):
    _DEEP = [_DEEP]
_VALUES = (
    None, True, -1, 1 << 31, 1 << 63, 10**30, 1e308, float("nan"), float("inf"), "", "\ud800", "\0",
    "../x", "/etc/passwd", "..", "x" * 100_000, [], {}, {"": 0}, {"\ud800": 1}, [[]], _DEEP,
    [0] * 5000, "float32", "9" * 5000, "999.0.0", "tensor<f32>",
)  # fmt: skip


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container within a value, with a key or index of it."""
    open_ = [value]
    while open_:
        holder = open_.pop()
        for key in holder if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], dict | list):
                open_.append(holder[key])


@subject(300)
def several_fields(number: int) -> None:
    """Manifests with several changes, signed again."""
    chance = random.Random(number)
    with saved(number) as folder:
        fields = json.loads((folder / manifest.FILE).read_text())
        fields.pop("sha256")
        for _ in range(chance.choice((2, 2, 3, 4))):
            places = list(_places(fields))
            if not places:
                break
            (holder, key), (other, another) = chance.choice(places), chance.choice(places)
            copied = json.dumps(other[another])
            match chance.randrange(5):
                case 0:
                    del holder[key]
                case 1 if isinstance(holder, list):
                    holder.append(json.loads(copied))
                case 2:
                    holder[key] = json.loads(copied)
                case _:
                    # A copy, which later changes may alter.
                    holder[key] = json.loads(json.dumps(chance.choice(_VALUES)))
        try:
            sign(folder, fields)
        except UnicodeEncodeError:
            return  # No file can hold it.
        use(folder, client())


@subject(150)
def model_files(number: int) -> None:
    """Damaged files, whose size and hash are stated again."""
    chance = random.Random(number)
    with saved(number) as folder:
        path = chance.choice(sorted(folder.iterdir()))
        content = damaged(path.read_bytes(), number)
        path.write_bytes(content)
        if path.name != manifest.FILE:
            fields = json.loads((folder / manifest.FILE).read_text())
            import hashlib

            digest = hashlib.sha256(content).hexdigest()
            fields["files"][path.name] = {"bytes": len(content), "sha256": digest}
            sign(folder, fields)
        use(folder, client())


@subject(20)
def strange_files(number: int) -> None:
    """Pipes, folders, links and huge files in place of a model's."""
    with saved(0) as folder:
        paths = sorted(folder.iterdir())
        path = paths[number % len(paths)]
        path.unlink()
        match number // len(paths):
            case 0:
                os.mkfifo(path)
            case 1:
                path.mkdir()
            case 2:
                path.symlink_to("/dev/zero")
            case _:
                path.touch()
                os.truncate(path, 1 << 40)
        use(folder, client())


@subject(120)
def bundles(number: int) -> None:
    """Damaged bundles of PyTorch/XLA."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "bundle"
        shutil.copytree(BUNDLE, folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        path = files[number % len(files)]
        content = path.read_bytes()
        if path.suffix == ".meta" and number % 2:
            fields = list(alterations(json.loads(content)))
            path.write_text(json.dumps(fields[number * 37 % len(fields)][1]))
        else:
            path.write_bytes(damaged(content, number))
        model = read_bundle(folder)
        str(model.report())
        model.load_on(client()).compile()


@subject(120)
def jax_artifacts(number: int) -> None:
    """Damaged files of jax.export."""
    content = (AFFINE if number % 2 else GRAM).read_bytes()
    sizes = {} if number % 2 else {"b": 2}
    from_exported(damaged(content, number), platform="cpu", sizes=sizes)


@cache
def _executable() -> bytes:
    return client().compile(programs.ADD).serialize()


@subject(120)
def executables(number: int) -> None:
    """Damaged containers; never altered machine code under a right hash, which would run."""
    data = _executable()
    if number % 2:
        client().deserialize(damaged(data, number)).close()
        return
    header, blob = serialized.unpack(data)
    fields = {name: getattr(header, name) for name in header.__slots__}
    changed = list(alterations(json.loads(json.dumps(fields))))
    found = changed[number * 53 % len(changed)][1]
    text = json.dumps(found).encode()
    body = len(text).to_bytes(8, "little") + text + blob
    import hashlib

    content = serialized.MAGIC + hashlib.sha256(body).digest() + body
    client().deserialize(content).close()


@subject(120)
def cache_entries(number: int) -> None:
    """Whatever is in the place of an entry, the program that runs is the one that was asked for."""
    # To find out whether they are known a client compiles a program of its own, which is to be no
    # entry: this may be the first case of a process.
    assert client().safe_flags is not None
    before = compile_cache.WORTH_STORING, dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        compile_cache.WORTH_STORING = 0
        os.environ["PJRT_BRIDGE_CACHE"] = folder
        try:
            _attack_entry(number)
        finally:
            compile_cache.WORTH_STORING = before[0]
            os.environ["PJRT_BRIDGE_CACHE"] = before[1]["PJRT_BRIDGE_CACHE"]


def _attack_entry(number: int) -> None:
    text = programs.ADD
    client().compile(text).close()
    found = compile_cache.compile_cache()
    assert found is not None
    (path,) = (found.folder / f"{entry.key}.entry" for entry in found.entries())
    client().compile(text.replace("stablehlo.add", "stablehlo.subtract")).close()
    (other,) = set(found.folder.iterdir()) - {path}
    storage._warned.clear()
    match number % 8:
        case 0:
            path.write_bytes(other.read_bytes())
        case 1:
            path.unlink()
            os.mkfifo(path)
        case 2:
            path.unlink()
            path.symlink_to(other)
        case 3:
            os.truncate(path, 1 << 40)
        case 4:
            path.chmod(0o666)
        case _:
            path.write_bytes(damaged(path.read_bytes(), number))
    ones = np.ones(64, np.float32)
    with client().compile(text) as executable:
        assert (executable(ones, ones)[0].to_numpy() == 2).all(), "another program ran"


@subject(20)
def trusted_files(number: int) -> None:
    """Altered fields of a model that is trusted."""
    with saved(number) as folder:
        fields = json.loads((folder / manifest.FILE).read_text())
        fields.pop("sha256")
        found = list(alterations(fields))[number * 31 :: 20][number]
        sign(folder, found[1] if isinstance(found[1], dict) else {"": found[1]})
        ExportedModel.load(folder, trusted=True)

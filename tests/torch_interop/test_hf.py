"""What `setup` changes in Hugging Face's libraries, and where it refuses to."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DynamoBackend, TorchDynamoPlugin
from transformers import CompileConfig, GenerationMixin

from pjrt_bridge.errors import UntriedVersion
from pjrt_bridge.torch_interop import hf

PRIVATE = [(DynamoBackend, "_missing_"), (CompileConfig, "_compile_all_devices")]


@pytest.fixture(autouse=True)
def _as_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `setup` changes is as before, before the test and after it."""
    with monkeypatch.context() as patched:
        if "_missing_" in vars(DynamoBackend):
            patched.delattr(DynamoBackend, "_missing_")
        patched.setattr(CompileConfig, "_compile_all_devices", None)
        yield
        if "_missing_" in vars(DynamoBackend):
            del DynamoBackend._missing_


def test_accelerate_knows_the_backend() -> None:
    with pytest.raises(ValueError, match="PJRT"):
        DynamoBackend("PJRT")
    hf.setup()
    member = DynamoBackend("PJRT")
    assert isinstance(member, DynamoBackend)
    assert (member.name, member.value) == ("PJRT", "PJRT")
    assert member is copy.deepcopy(member) is pickle.loads(pickle.dumps(member))
    assert member is DynamoBackend(member)
    assert "PJRT" in DynamoBackend
    assert member != DynamoBackend.NO
    plugin = TorchDynamoPlugin(backend="pjrt", mode="reduce-overhead")
    assert plugin.to_kwargs() == {"backend": "pjrt", "mode": "reduce-overhead"}


@pytest.mark.parametrize("unknown", ["PJRT2", "", 3, None])
def test_accelerate_refuses_what_it_refused(unknown: object) -> None:
    hf.setup()
    with pytest.raises(ValueError, match="is not a valid DynamoBackend"):
        DynamoBackend(unknown)


def test_only_configurations_of_the_backend_compile_on_the_cpu() -> None:
    hf.setup()
    assert CompileConfig(backend="pjrt")._compile_all_devices is True
    assert CompileConfig()._compile_all_devices is None
    own = CompileConfig(backend="pjrt")
    own._compile_all_devices = False
    assert own._compile_all_devices is False
    assert "_compile_all_devices" not in CompileConfig(backend="pjrt").to_dict()
    assert CompileConfig(backend="pjrt") == copy.deepcopy(CompileConfig(backend="pjrt"))


def test_a_second_call_changes_nothing() -> None:
    hf.setup()
    changed = [vars(owner)[name] for owner, name in PRIVATE]
    hf.setup()
    assert [vars(owner)[name] for owner, name in PRIVATE] == changed


@pytest.mark.parametrize("found", ["2.99.1", "99.0.0"])
def test_a_newer_version_of_the_same_structure(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "version", lambda name: found)
    hf.setup()
    assert DynamoBackend("PJRT").value == "PJRT"
    assert CompileConfig(backend="pjrt")._compile_all_devices is True


@pytest.mark.parametrize(
    ("owner", "name", "value", "words"),
    [
        (
            CompileConfig,
            "_compile_all_devices",
            False,
            "CompileConfig._compile_all_devices is not None",
        ),
        (GenerationMixin, "_valid_auto_compile_criteria", None, "is not a reader of"),
        (
            GenerationMixin,
            "_valid_auto_compile_criteria",
            lambda self: True,
            "install transformers==",
        ),
    ],
)
def test_a_private_part_that_is_another(
    owner: type, name: str, value: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(UntriedVersion, match=words):
        hf.setup()
    assert "_missing_" not in vars(DynamoBackend)
    assert not CompileConfig(backend="pjrt")._compile_all_devices


def test_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "version", lambda name: "")
    with pytest.raises(ImportError, match="accelerate, transformers"):
        hf.setup()


def test_an_accelerator_compiles() -> None:
    hf.setup()
    accelerator = Accelerator(cpu=True, dynamo_backend="pjrt")
    model = accelerator.prepare(torch.nn.Linear(2, 3))
    assert model(torch.ones(1, 2)).shape == (1, 3)

"""Hugging Face's libraries: what they refuse to compile with the `pjrt` backend until they know it.

Most of them hand any backend to torch.compile. Two do not, and `setup` changes that in the running
process: accelerate, and with it transformers' Trainer, takes only the backends of an enumeration,
and transformers' `generate` compiles its steps on accelerators alone. All names of these libraries
that are not public are in this module.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable
from typing import Any

from pjrt_bridge.errors import UntriedVersion
from pjrt_bridge.versions import version

_BACKEND = "pjrt"


def setup() -> None:
    """Let accelerate and transformers compile with `backend="pjrt"`; a second call changes nothing.

    - accelerate: `Accelerator(dynamo_backend="pjrt")` and `TorchDynamoPlugin(backend="pjrt")`, and
      so transformers' `TrainingArguments(torch_compile=True, torch_compile_backend="pjrt")`.
    - transformers: `generate(..., compile_config=CompileConfig(backend="pjrt"))` compiles its steps
      wherever the model is, also on the CPU.

    Each is changed where it is installed. Nothing is changed when one of them cannot be.

    Raises:
        UntriedVersion: a library's version is none for which this was tried, or what is to be
            changed is not there as it was.
        ImportError: neither library is installed.
    """
    installed = {name: version(name) for name in _TRIED if version(name)}
    if not installed:
        raise ImportError(f"setup() needs one of {', '.join(_TRIED)}; none is installed")
    for name, found in installed.items():
        tried, _ = _TRIED[name]
        if not found.startswith(f"{tried}."):
            raise UntriedVersion(
                f"setup() changes what is private to {name}: found version {found}, tried was "
                f"{tried}; install {name}=={tried}.*, or call torch.compile(model, "
                f"backend={_BACKEND!r}) without {name}'s own options for it"
            )
    for change in [_TRIED[name][1]() for name in installed]:
        change()


def _accelerate() -> Callable[[], object]:
    """Make a member of an enumeration: what says whether a backend is known."""
    backends = importlib.import_module("accelerate.utils").DynamoBackend
    own = vars(backends).get("_missing_")
    if isinstance(own, _Missing):
        return lambda: None
    if own is not None or not issubclass(backends, (str, enum.Enum)) or "INDUCTOR" not in backends:
        raise _changed("accelerate", "DynamoBackend", "an enumeration of strings")
    return lambda: setattr(backends, "_missing_", _Missing(backends))


class _Missing:
    """What an enumeration asks for the member of a value that it does not list.

    Args:
        backends: accelerate's enumeration.
    """

    def __init__(self, backends: Any) -> None:
        self._member = str.__new__(backends, _BACKEND.upper())
        self._member._name_ = self._member._value_ = _BACKEND.upper()

    def __call__(self, value: object) -> Any:
        return self._member if value == self._member else None


def _transformers() -> Callable[[], object]:
    """Give the configurations of one backend the flag by which steps are compiled on any device."""
    configs = importlib.import_module("transformers").CompileConfig
    own = vars(configs).get("_compile_all_devices", configs)
    if isinstance(own, _OnAllDevices):
        return lambda: None
    if own is not None:
        raise _changed("transformers", "CompileConfig._compile_all_devices", "None")
    return lambda: setattr(configs, "_compile_all_devices", _OnAllDevices())


class _OnAllDevices:
    """The flag of configurations that do not set their own."""

    def __get__(self, config: Any, owner: object = None) -> bool | None:
        return True if config is not None and config.backend == _BACKEND else None


def _changed(library: str, what: str, expected: str) -> UntriedVersion:
    return UntriedVersion(f"{library} {version(library)}: {what} is not {expected}")


_TRIED: dict[str, tuple[str, Callable[[], Callable[[], object]]]] = {
    "accelerate": ("1.15", _accelerate),
    "transformers": ("5.23", _transformers),
}
"""By library the version that was tried, and what inspects it and gives the change."""

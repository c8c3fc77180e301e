"""Hugging Face's libraries: what they refuse to compile with the `pjrt` backend until they know it.

Most of them hand any backend to torch.compile. Two do not, and `setup` changes that in the running
process: accelerate, and with it transformers' Trainer, takes only the backends of an enumeration,
and transformers' `generate` compiles its steps on accelerators alone. Transformers also has a table
of devices whose tensors it can exchange. All names of these libraries that are not public are in
this module.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable
from typing import Any

from pjrt_bridge.errors import UntriedVersion
from pjrt_bridge.versions import version

_BACKEND = "pjrt"
_FLAG = "_compile_all_devices"
_DECIDES = "_valid_auto_compile_criteria"
_EXCHANGES = "DISTRIBUTED_BACKEND_MAP"


def setup() -> None:
    """Let accelerate and transformers compile with `backend="pjrt"`; a second call changes nothing.

    - accelerate: `Accelerator(dynamo_backend="pjrt")` and `TorchDynamoPlugin(backend="pjrt")`, and
      so transformers' `TrainingArguments(torch_compile=True, torch_compile_backend="pjrt")`.
    - transformers: `generate(..., compile_config=CompileConfig(backend="pjrt"))` compiles its steps
      wherever the model is, also on the CPU. `from_pretrained(..., tp_plan="auto")` under torchrun
      starts torch.distributed for models on device `pjrt`.

    Each is changed where it is installed. Nothing is changed when one of them cannot be.

    Raises:
        UntriedVersion: what is to be changed in a library, or what reads it, is not as it was in
            the versions for which this was tried. A version number alone is no reason to refuse.
        ImportError: neither library is installed.
    """
    inspections = [inspect for name, inspect in _INSPECTIONS.items() if version(name)]
    if not inspections:
        raise ImportError(f"setup() needs one of {', '.join(_INSPECTIONS)}; none is installed")
    for change in [inspect() for inspect in inspections]:
        change()


def _accelerate() -> Callable[[], object]:
    """Make a member of an enumeration: what says whether a backend is known."""
    backends = importlib.import_module("accelerate.utils").DynamoBackend
    own = vars(backends).get("_missing_")
    if isinstance(own, _MissingMember):
        return lambda: None
    if own is not None or not issubclass(backends, (str, enum.Enum)) or "INDUCTOR" not in backends:
        raise _changed("accelerate", "DynamoBackend", "an enumeration of strings")
    return lambda: setattr(backends, "_missing_", _MissingMember(backends))


class _MissingMember:
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
    transformers = importlib.import_module("transformers")
    configs = transformers.CompileConfig
    own = vars(configs).get(_FLAG, configs)
    if isinstance(own, _OnAllDevices):
        return lambda: None
    if own is not None:
        raise _changed("transformers", f"CompileConfig.{_FLAG}", "None")
    decides = getattr(transformers.GenerationMixin, _DECIDES, None)
    if _FLAG not in getattr(getattr(decides, "__code__", None), "co_names", ()):
        raise _changed("transformers", f"GenerationMixin.{_DECIDES}", f"a reader of {_FLAG}")
    exchanges = _backends_of_devices()

    def change() -> None:
        setattr(configs, _FLAG, _OnAllDevices())
        exchanges.setdefault(_BACKEND, "gloo")

    return change


def _backends_of_devices() -> dict[str, str]:
    """Transformers' table of torch.distributed's backends by devices; it is not in all versions."""
    try:
        found = getattr(importlib.import_module("transformers.distributed.utils"), _EXCHANGES, None)
    except ImportError:
        found = None
    return found if isinstance(found, dict) else {}


class _OnAllDevices:
    """The flag of configurations that do not set their own."""

    def __get__(self, config: Any, owner: object = None) -> bool | None:
        return True if config is not None and config.backend == _BACKEND else None


def _changed(library: str, what: str, expected: str) -> UntriedVersion:
    tried = _TRIED[library]
    return UntriedVersion(
        f"setup() changes what is private to {library}: in version {version(library)}, {what} is "
        f"not {expected}, as it was in {tried}; install {library}=={tried}.*, or call "
        f"torch.compile(model, backend={_BACKEND!r}) without {library}'s own options for it"
    )


_INSPECTIONS: dict[str, Callable[[], Callable[[], object]]] = {
    "accelerate": _accelerate,
    "transformers": _transformers,
}
"""By library what inspects its private parts and gives the function that changes them."""

_TRIED = {"accelerate": "1.15", "transformers": "5.24"}
"""By library the newest version that was tried."""

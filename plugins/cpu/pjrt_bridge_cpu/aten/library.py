"""PyTorch's library: where it is, how it states operators, its connection to a plugin."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pjrt_bridge import native_modules
from pjrt_bridge.errors import ExtensionUnavailable, PjrtBridgeError
from pjrt_bridge.extensions import FFI
from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.compile.compile_cache import keep_calls_of
from pjrt_bridge_cpu.aten.calls import TARGET
from pjrt_bridge_cpu.aten.operators import OPERATORS, Operator

_SOURCES = Path(__file__).parent / "native"


def library() -> Path | None:
    """The library with PyTorch's CPU kernels; None where PyTorch is not installed."""
    spec = importlib.util.find_spec("torch")
    folders = [] if spec is None else spec.submodule_search_locations or []
    names = ("libtorch_cpu.so", "libtorch_cpu.dylib")
    found = (Path(folder) / "lib" / name for folder in folders for name in names)
    return next((path for path in found if path.is_file()), None)


def connect(client: Client) -> str:
    """Register the custom call with a client's plugin; why that cannot be, or nothing."""
    handler = _handler()
    return handler if isinstance(handler, str) else _register(client, TARGET, handler)


def can_call(client: Client, target: str, handler: str) -> bool:
    """Register another custom call with a client's plugin; whether the plugin makes it.

    Args:
        client: of the plugin.
        target: name of the custom call.
        handler: name of its address in the compiled module; it needs no PyTorch.
    """
    try:
        native = _loaded()
    except ImportError:
        return False
    return not _register(client, target, getattr(native, handler))


def _register(client: Client, target: str, handler: int) -> str:
    """Why the custom call cannot be registered, or nothing."""
    answers = _registered.setdefault(client, {})
    if target not in answers:
        answers[target] = _registering(client, target, handler)
    return answers[target]


_registered: WeakKeyDictionary[Client, dict[str, str]] = WeakKeyDictionary()
"""By client and custom call, what `_register` answers: it is asked for each program."""


def _registering(client: Client, target: str, handler: int) -> str:
    try:
        client.extension(FFI).register(target, handler)
    except (ExtensionUnavailable, PjrtBridgeError) as error:
        return str(error)
    keep_calls_of(target)
    return ""


def is_at_hand() -> bool:
    """Whether PyTorch is in this process, with all that the custom call needs.

    It is not loaded to find out: a process of TensorFlow alone has no use for it.
    """
    return "torch" in sys.modules and isinstance(_handler(), int)


@cache
def _loaded() -> Any:
    return native_modules.load("pjrt_bridge_cpu.aten._aten", _SOURCES)


@cache
def _handler() -> int | str:
    """Address of the handler, or why there is none."""
    path = library()
    if path is None:
        return "PyTorch's library is not found"
    try:
        native = _loaded()
        native.connect(path, tuple(item.signature for item in OPERATORS if is_stated_so(item)))
    except (ImportError, OSError, LookupError) as error:
        return str(error)
    address: int = native.HANDLER
    return address


@cache
def is_stated_so(operator: Operator) -> bool:
    """Whether the PyTorch that is installed states an operator in the words of the list."""
    from pjrt_bridge.torch_interop.lowering.api import schema_of

    return schema_of(str(operator).replace("::", ".")) == operator.schema

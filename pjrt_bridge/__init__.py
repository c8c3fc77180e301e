"""A framework-neutral bridge to PJRT plugins.

    import pjrt_bridge

    print(pjrt_bridge.plugins())
    client = pjrt_bridge.client()
    executable = client.compile(stablehlo_text)
    (result,) = executable(array)

PyTorch users need no more than `torch.compile(model, backend="pjrt")`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pjrt_bridge import errors, stablehlo
    from pjrt_bridge.profiling import profile
    from pjrt_bridge.registry import Processes, client, compile_for, plugins, topology
    from pjrt_bridge.runtime import Buffer, Client, CompileOptions, Executable, live_handles

__all__ = [
    "Buffer",
    "Client",
    "CompileOptions",
    "Executable",
    "Processes",
    "client",
    "compile_for",
    "errors",
    "live_handles",
    "plugins",
    "profile",
    "stablehlo",
    "topology",
]

_MODULES = {
    "Buffer": "runtime",
    "Client": "runtime",
    "CompileOptions": "runtime",
    "Executable": "runtime",
    "Processes": "registry",
    "client": "registry",
    "compile_for": "registry",
    "live_handles": "runtime",
    "plugins": "registry",
    "profile": "profiling",
    "topology": "registry",
}

_APART = {"jax_interop": "jax", "tf_interop": "tf"}
"""Packages of other distributions, and the extras that bring these."""


def __getattr__(name: str) -> Any:
    # Torch imports a module of this package whenever it is imported, and uses none of these.
    if name in ("errors", "stablehlo"):
        return import_module(f"{__name__}.{name}")
    if name in _APART:
        return _apart(f"{__name__}.{name}", _APART[name])
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def _apart(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ImportError(
            f"{module} is not installed; run: pip install 'pjrt-bridge[{extra}]'", name=module
        ) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""A framework-neutral bridge to PJRT plugins.

    import pjrt_bridge

    print(pjrt_bridge.plugins())
    client = pjrt_bridge.client()
    executable = client.compile(stablehlo_text)
    (result,) = executable(array)

PyTorch users need no more than `torch.compile(model, backend="pjrt")`.
"""

from typing import TYPE_CHECKING

from pjrt_bridge.lazy_names import lazy_names

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

# Torch imports a module of this package whenever it is imported, and uses none of these.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Buffer": "runtime",
        "Client": "runtime",
        "CompileOptions": "runtime",
        "Executable": "runtime",
        "Processes": "registry",
        "client": "registry",
        "compile_for": "registry",
        "errors": "errors",
        "live_handles": "runtime",
        "plugins": "registry",
        "profile": "profiling",
        "stablehlo": "stablehlo",
        "topology": "registry",
    },
)

"""Programs as a client's plugin computes them: with the kernels that a package brings for it.

Lowerings of PyTorch's operators ask for kernels where they emit. Programs that come from elsewhere,
of TensorFlow's functions and exported models, are rewritten as a whole before they are compiled.
"""

from __future__ import annotations

from pjrt_bridge import user_warnings
from pjrt_bridge.registry import brought
from pjrt_bridge.runtime import Client, CompileOptions
from pjrt_bridge.stablehlo import patterns
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.program.program import Program


def kernels_of(client: Client) -> Kernels:
    """The kernels that a package brings for the plugin, else the portable ones.

    Warns with a `BridgeWarning` of an object that is no `Kernels`, and does not use it.
    """
    found = brought.kernels(client)
    if found is None:
        return Kernels()
    if isinstance(found, Kernels):
        return found
    name = client.plugin.name
    text = f"kernels for plugin {name!r} are not used: found {found!r}, expected a Kernels"
    user_warnings.warn(text)
    return Kernels()


def for_client(program: Program, client: Client, options: CompileOptions | None = None) -> Program:
    """A program with what the kernels for a client's plugin have for its operations.

    It is for this client alone: what is saved, or compiled for other machines, stays portable.

    Args:
        program: is not changed.
        client: that compiles it.
        options: for compiling; for several devices the program gets no kernels.
    """
    several = options is not None and options.num_devices > 1
    return patterns.for_target(program, Kernels() if several else kernels_of(client))

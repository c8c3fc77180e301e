"""The program of one device of a mesh, as Shardy's own passes make it.

Plugins with a partitioner divide programs themselves, and better: theirs know the hardware. This is
for plugins without one, and for estimates of what a program costs where its devices are not there.
"""

from __future__ import annotations

from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.wrong_arguments import checked

_PASSES = (
    "sdy-propagation-pipeline",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives)",
    # The same array is gathered once.
    "cse",
    "sdy-convert-global-to-local",
    "sdy-drop-sharding-and-mesh",
    "cse",
)


@checked
def partitioned(program: Program) -> Program:
    """The program that each device of a mesh runs, of one that Shardy divides.

    Parameters and results are shards, and collective operations connect the devices: partition `p`
    is the device at position `p` of the mesh.

    Args:
        program: with closed shardings of parameters and results, as `shard` gives it.

    Raises:
        ProgramError: an operation that Shardy cannot divide explicitly.
    """
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    bindings.run_passes(module, *_PASSES)
    return Program.from_module(module)

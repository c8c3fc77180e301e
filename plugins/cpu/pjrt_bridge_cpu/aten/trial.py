"""The process that tries uses of PyTorch's kernels, and may die of one.

`python -m pjrt_bridge_cpu.aten.trial LIBRARY FIRST` runs the checks from one on: a program of the
use, whose results have to be those of the operator itself. It prints a line of JSON before each
check and one after it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge.stablehlo import Builder, Program, TensorType
from pjrt_bridge.torch_interop.lowering.api import Context, find_lowering
from pjrt_bridge_cpu.aten import library as torch_library
from pjrt_bridge_cpu.aten.checks import TriedUse, checks
from pjrt_bridge_cpu.aten.kernels import kernels
from pjrt_bridge_cpu.aten.rules import UsableKernels
from pjrt_bridge_cpu.aten.uses import lowerings


class UseTrial:
    """A check as a program.

    Attributes:
        uses: the names of what it uses.
        program: the use.
    """

    def __init__(self, check: TriedUse) -> None:
        self._check = check
        self._expected = check.expected()
        self.uses: list[str] = []
        self.program = lowered(check, self._expected, UsableKernels(self._note))

    def judge(self, client: Client) -> str:
        """Why a use is wrong here, or nothing."""
        check = self._check
        try:
            executable = client.compile(self.program)
            found = executable.execute([client.put(array(tensor)) for tensor in check.tensors])
            arrays = [np.asarray(result) for result in found]
        except PjrtBridgeError as error:
            return f"{check}: {error}"
        wanted = [array(tensor) for tensor in self._expected if tensor is not None]
        if not all(_agree(*pair, check.tolerance) for pair in zip(arrays, wanted, strict=True)):
            return f"{check}: its numbers are not PyTorch's"
        return ""

    def _note(self, use: str) -> bool:
        self.uses.append(use)
        return True


def lowered(
    check: TriedUse,
    results: Sequence[torch.Tensor | None],
    use: UsableKernels | None,
    own: bool = False,
) -> Program:
    """A check as a program.

    Args:
        check: what it computes.
        results: what PyTorch gives.
        use: writes calls; None: the program is XLA's own.
        own: the client's plugin makes the calls of the package's own kernels, too.
    """
    types = [_type(tensor) for tensor in check.tensors]
    outputs = [None if tensor is None else _type(tensor) for tensor in results]
    builder = Builder(types, name="probe")
    used = kernels(use)
    used.can_multiply_thin = own
    context = Context(builder, outputs).with_kernels(used)
    table = {} if use is None else lowerings(use)
    lowering = table.get(check.operator) or find_lowering(check.operator)
    assert lowering is not None
    values = builder.parameters
    keywords = {name: values[place] for name, place in check.keywords.items()}
    found = lowering(context, *check.arguments(builder.transpose, values), **keywords)
    several = found if isinstance(found, tuple) else (found,)
    return builder.finish([value for value in several if value is not None])


def _agree(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], tolerance: float) -> bool:
    if found.shape != wanted.shape:
        return False
    # Places and other whole numbers are not nearly right.
    if np.issubdtype(wanted.dtype, np.integer):
        return np.array_equal(found, wanted)
    wide = np.complex128 if np.iscomplexobj(wanted) else np.float64
    left, right = found.astype(wide), wanted.astype(wide)
    limit = tolerance * max(float(np.abs(right).max(initial=0)), 1.0)
    return np.allclose(left, right, rtol=0, atol=limit, equal_nan=True)


def _type(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), dtypes.from_torch(tensor.dtype))


def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The numbers of a tensor."""
    # NumPy does not know bfloat16 by PyTorch's word.
    if tensor.dtype == torch.bfloat16:
        bits = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(dtypes.of("bfloat16").numpy)
    return tensor.contiguous().numpy()


def main(arguments: Sequence[str]) -> None:
    """Run the checks: the path of the plugin's library, and the first check's place."""
    path, first = arguments
    client = Plugin.load(path, name="cpu").client({"cpu_device_count": 1})
    missing = torch_library.connect(client)
    for index, check in enumerate(checks()):
        if index < int(first):
            continue
        trial = UseTrial(check)
        about = {"index": index, "check": str(check), "uses": trial.uses}
        print(json.dumps(about), flush=True)
        print(json.dumps({**about, "reason": missing or trial.judge(client)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

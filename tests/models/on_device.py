"""`python -m tests.models.on_device`: the models on torch's device `pjrt`, as on the host.

Each is trained there, in fused eager and compiled, and each of its calls is compared with eager's
on the host. Names restrict the run to these models.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch

from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.torch_interop.device import use
from pjrt_bridge.torch_interop.device.programs import programs
from pjrt_bridge.torch_interop.resident.client import chosen
from tests.models import zoo
from tests.models.running import MODES, ROUGH, calls, compare
from tests.plugins import of_device
from tests.sweeping.placed import line_of, name_of

WAYS: dict[str, Callable[[Any], Any]] = {
    "fused": lambda model: model,
    "compiled": partial(torch.compile, backend="pjrt"),
}
"""What is made of a model on the device."""

STEPS = 3
"""Of training: in the third, what the second step made of weights and optimizer is read."""


def run(model: str, way: str) -> list[str]:
    """What differs from the host, or what is raised."""
    mode = MODES["training-f64" if model in ROUGH else "training"]
    expected = list(calls(model, mode, lambda function: function, STEPS))
    torch.compiler.reset()
    programs.forget()
    eager = "fused" if way == "fused" else "async"
    with mock.patch.dict(os.environ, {chosen.EAGER_VARIABLE: eager}):
        try:
            found = list(calls(model, replace(mode, device="pjrt"), WAYS[way], STEPS))
        except Exception as error:
            return [f"{name_of(error)}: {line_of(error)}"]
    return [
        f"call {call}: {text}"
        for call, (ours, theirs) in enumerate(zip(found, expected, strict=True))
        for text in compare(ours, theirs, mode.tolerance)
    ]


def main() -> None:
    """Run the models, print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args().models or list(zoo.MODELS)
    use(of_device())
    wrong = 0
    for model in asked:
        for way in WAYS:
            started = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HostFallbackWarning)
                problems = run(model, way)
            wrong += bool(problems)
            seconds = time.perf_counter() - started
            print(
                f"{model} {way}: {'; '.join(problems[:3]) or 'right'} ({seconds:.0f} s)", flush=True
            )
    print(f"{wrong} wrong of {len(WAYS) * len(asked)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

"""Programs in parts: what a plugin runs, and what a framework runs between that on the host.

Nothing here knows a framework. Who runs a part on the host is looked up by name when a saved model
is read: the module `host_parts` of the framework's interop package, which is imported then.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pjrt_bridge.errors import SavedModelError
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType


class HostPart(Protocol):
    """A part that a framework runs.

    Attributes:
        framework: its name; the module `pjrt_bridge.NAME_interop.host_parts` has a function `read`,
            which makes the part of its content again.
        suffix: of the file that it is kept in.
    """

    framework: str
    suffix: str

    def content(self) -> bytes:
        """The part as bytes, for `read`."""

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        """The part's outputs: arrays that `Client.put` takes, or numbers.

        Args:
            values: buffers, or what other parts on the host gave.
        """


@dataclass(frozen=True)
class Part:
    """A part of a program, over numbered values.

    Attributes:
        runs: a program for the device, or what runs on the host.
        inputs: values that it takes, one for each parameter.
        outputs: values that it gives, one for each result.
        operators: how often each operator of the framework occurs.
        fallback_reasons: why it is on the host.
    """

    runs: Program | HostPart
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: Mapping[str, int] = field(default_factory=dict)
    fallback_reasons: tuple[FallbackReason, ...] = ()

    @property
    def on_device(self) -> bool:
        """Whether the plugin runs it."""
        return isinstance(self.runs, Program)


@dataclass(frozen=True)
class SplitProgram:
    """A program in parts, in running order.

    Attributes:
        name: of the program.
        parameters: types of the values that a call brings: 0, 1, ...
        parts: each takes what a call brings, and what parts before it give.
        results: values that it gives.
    """

    name: str
    parameters: tuple[TensorType, ...]
    parts: tuple[Part, ...]
    results: tuple[int, ...]


def read_host_part(framework: str, content: bytes, path: Path) -> HostPart:
    """The part that a file holds.

    Args:
        framework: that runs it.
        content: of the file.
        path: of the file, for messages.

    Raises:
        SavedModelError: the framework is not installed, there is none of this name, or it cannot
            read the file.
    """
    package = f"pjrt_bridge.{framework}_interop"
    if not re.fullmatch("[a-z]+", framework):
        raise SavedModelError(f"{path}: framework: found {framework!r}, needed a name")
    try:
        module = importlib.import_module(f"{package}.host_parts")
    except ImportError as error:
        unknown = (error.name or "").startswith("pjrt_bridge")
        reason = f"there is no {error.name}" if unknown else f"it cannot be imported: {error}"
        raise SavedModelError(
            f"{path}: this part of the model runs in {framework!r} on the host, and {reason}"
        ) from error
    try:
        found: HostPart = module.read(content)
    except Exception as error:
        # Frameworks raise whatever they like for a file of another version.
        raise SavedModelError(f"{path}: {framework} cannot read it: {error}") from error
    return found

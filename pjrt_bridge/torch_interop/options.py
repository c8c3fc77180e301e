"""What a user may say in `torch.compile(..., backend="pjrt", options={...})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pjrt_bridge.errors import OptionError
from pjrt_bridge.runtime import CompileOptions
from pjrt_bridge.runtime.options import Override


@dataclass(frozen=True)
class BackendOptions:
    """Options of the `pjrt` backend.

    Attributes:
        plugin: name of a discovered plugin or path of a library; None: the environment's choice or
            the best that was discovered.
        fallback: what happens to a graph that the plugin cannot run: `"host"` runs it in PyTorch
            and warns once, `"error"` raises.
        compiler_flags: flags of the plugin's compiler for these graphs alone.

    Raises:
        OptionError: an unknown name or an impossible value.
    """

    plugin: str | None = None
    fallback: Literal["host", "error"] = "host"
    compiler_flags: Mapping[str, Override] = field(default_factory=dict)

    @staticmethod
    def parse(options: Mapping[str, Any] | None, mode: str | None) -> BackendOptions:
        """Check what torch.compile hands over."""
        if mode not in (None, "default"):
            raise OptionError(f"the pjrt backend has no mode {mode!r}; use options={{...}}")
        known = [item.name for item in fields(BackendOptions)]
        unknown = sorted(set(options or {}) - set(known))
        if unknown:
            raise OptionError(
                f"the pjrt backend has no options {', '.join(unknown)}; it has {', '.join(known)}"
            )
        return BackendOptions(**(options or {}))

    def __post_init__(self) -> None:
        if self.plugin is not None and not isinstance(self.plugin, str):
            raise OptionError(f"option plugin: found {self.plugin!r}, expected a name or a path")
        if self.fallback not in ("host", "error"):
            raise OptionError(
                f"option fallback: found {self.fallback!r}, expected 'host' or 'error'"
            )
        if not isinstance(self.compiler_flags, Mapping):
            raise OptionError(
                f"option compiler_flags: found {self.compiler_flags!r}, expected a dict"
            )
        self.compile_options()

    def compile_options(self) -> CompileOptions:
        """The options of each compilation."""
        return CompileOptions(env=dict(self.compiler_flags))

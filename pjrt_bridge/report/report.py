"""The report that users get: the data, printed as a table, written as a page or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pjrt_bridge.report.advice import advise
from pjrt_bridge.report.data import ReportData

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Report(ReportData):
    """A report of what runs on the device or the host, why, and at what cost; see `ReportData`.

    `print` shows a table, a console of rich shows it in colours.
    """

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice on what the user can improve; empty when all of it runs on the device."""
        return tuple(advise(self))

    def to_json(self) -> str:
        """All of it as a JSON object."""
        content: dict[str, Any] = _plain(self)
        content["advice"] = list(self.advice)
        content["bytes_shared"] = self.bytes_shared
        content["bytes_copied"] = self.bytes_copied
        return json.dumps(content, indent=2)

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page, with a diagram of each graph's segments.

        Args:
            path: of the file.

        Returns:
            The path.
        """
        from pjrt_bridge.report.page import page

        written = Path(path)
        written.write_text(page(self), encoding="utf-8")
        return written

    def __str__(self) -> str:
        # Imported here and above when needed: rich takes longer to import than a report to make.
        from pjrt_bridge.report.table import text

        return text(self)

    def __rich__(self) -> RenderableType:
        """The table for a console of rich, in colours and as wide as the console."""
        from pjrt_bridge.report.table import renderable

        return renderable(self)


def _plain(value: Any) -> Any:
    """Dataclasses as dicts and sequences as lists, for JSON."""
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    # dataclasses.asdict would break on a Counter and on a read-only view of a dict.
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value

"""A function run in several ways: the data, and the table that shows it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pjrt_bridge.report.wording import byte_size

if TYPE_CHECKING:
    from rich.console import RenderableType

SAME = 1e-3
"""The largest difference, as a part of the largest number, that rounding explains."""
_BAR = 24
_SMALL = 200e-6
"""Seconds of a call below which what starts it is much of it."""
_COPIED = 1 << 20
"""Bytes copied in a call from which they are named."""


@dataclass(frozen=True)
class Timing:
    """One way to run the function.

    Attributes:
        way: its name.
        failed: why there are no times; None where there are.
        first: seconds of the first call, compiling included.
        samples: seconds of later calls, one a round.
        first_tokens: seconds to the first token, one a round; empty where none are made.
        programs: compiled in all calls.
        difference: of the first call's results from eager's, as a part of the largest number;
            None where eager's are not known.
    """

    way: str
    failed: str | None = None
    first: float = 0.0
    samples: tuple[float, ...] = ()
    first_tokens: tuple[float, ...] = ()
    programs: int = 0
    difference: float | None = None

    @property
    def median(self) -> float:
        """Seconds of a call."""
        return statistics.median(self.samples)


@dataclass(frozen=True)
class Account:
    """Where the time of a call of the bridge goes.

    Attributes:
        call: seconds of a call.
        device: seconds in which programs run; 0 where that was not measured.
        host: seconds in which PyTorch runs parts; 0 where that was not measured.
        bytes_copied: to and from the device.
        advice: what can be improved.
    """

    call: float
    device: float
    host: float
    bytes_copied: int
    advice: tuple[str, ...] = ()

    def causes(self) -> Iterator[str]:
        """Causes that take time, the largest first as far as it was measured."""
        parts = {
            "programs on the device": self.device,
            "parts that PyTorch runs": self.host,
            "all else: guards, arguments, starting programs": self.call - self.device - self.host,
        }
        measured = self.device + self.host > 0
        for name, seconds in sorted(parts.items(), key=lambda item: -item[1]):
            if measured and seconds > 0.01 * self.call:
                yield f"{seconds / self.call:.0%} of a call ({_time(seconds)}): {name}"
        if self.bytes_copied >= _COPIED:
            yield f"{byte_size(self.bytes_copied)} copied in a call"
        if self.call < _SMALL:
            yield (
                f"a call takes {_time(self.call)}: starting it is much of that. Compile more of "
                "the program in one function, or give larger batches"
            )
        yield from self.advice


@dataclass(frozen=True)
class Comparison:
    """A function run in several ways, in processes that took turns.

    Attributes:
        function: its name.
        timings: eager first.
        account: of the bridge's way; None where it has no times.
        new_tokens: made in a call of `generate`; None where none are.
    """

    function: str
    timings: tuple[Timing, ...]
    account: Account | None = None
    new_tokens: int | None = None

    def to_json(self) -> str:
        """All of it as a JSON object."""
        return json.dumps(asdict(self), indent=2)

    def __rich__(self) -> RenderableType:
        """A table, and what takes the bridge's time below it."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=True, header_style="dim")
        tokens = () if self.new_tokens is None else ("first token", "tokens/s")
        for name in ("way", "first call", "a call", *tokens, "to eager", "programs", "results", ""):
            table.add_column(name, justify="left" if name in ("way", "results", "") else "right")
        longest = max((item.median for item in self.timings if item.samples), default=1.0)
        base = next((item.median for item in self.timings[:1] if item.samples), None)
        for item in self.timings:
            if not item.samples:
                table.add_row(item.way, Text(f"failed: {item.failed}"))
                continue
            speeds = (
                ()
                if self.new_tokens is None
                else (
                    _time(statistics.median(item.first_tokens)),
                    f"{self.new_tokens / item.median:.1f}",
                )
            )
            table.add_row(
                item.way,
                _time(item.first),
                _time(item.median),
                *speeds,
                "" if base is None else f"{item.median / base:.2f}x",
                str(item.programs),
                _results(item.difference),
                "█" * max(1, round(_BAR * item.median / longest)),
            )
        lines = [] if self.account is None else [f"  - {line}" for line in self.account.causes()]
        heading = [Text("where the time of pjrt goes", style="bold")] if lines else []
        return Group(Text(self.function, style="bold"), table, *heading, *map(Text, lines))


def _results(difference: float | None) -> str:
    if difference is None:
        return ""
    if difference == 0:
        return "same"
    return f"{'rounded' if difference <= SAME else 'DIFFER'} {difference:.0e}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"

"""Why something runs on the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pjrt_bridge.report.wording import plural

Kind = Literal["unsupported", "refused", "data", "requested", "small", "slow", "failed"]
"""Why something runs on the host: nobody wrote a lowering for the operator; its lowering does not
do this use of it; a size or a number depends on data; the user asked; it is not worth a launch;
the host was measured to be faster; the device failed."""

_INTENDED: frozenset[Kind] = frozenset({"requested", "small", "slow"})
_SHOWN = 3


@dataclass(frozen=True)
class FallbackReason:
    """Why an operator, or a whole segment, runs on the host.

    Attributes:
        operator: in the framework's spelling; empty where it concerns the whole segment.
        reason: in the user's terms.
        kind: what sort of reason.
        source: the user's line, `file:line: code`, where the framework knows it.
    """

    operator: str
    reason: str
    kind: Kind
    source: str | None = None

    def __str__(self) -> str:
        what = f"{self.operator}: {self.reason}" if self.operator else self.reason
        return f"{what} ({self.source})" if self.source else what


@dataclass(frozen=True)
class UnintendedFallback:
    """FallbackReasons that nobody asked for: what a warning or an error tells of them.

    Attributes:
        operators: how many of them concern an operator.
        shown: the first few that differ, and how many more there are.
    """

    operators: int
    shown: str

    @staticmethod
    def among(fallback_reasons: Iterable[FallbackReason]) -> UnintendedFallback | None:
        """Those that are neither the user's wish nor a measured choice; None where none is."""
        unintended = [
            fallback_reason
            for fallback_reason in fallback_reasons
            if fallback_reason.kind not in _INTENDED
        ]
        if not unintended:
            return None
        distinct = list(dict.fromkeys(map(str, unintended)))
        shown = "; ".join(distinct[:_SHOWN])
        if distinct[_SHOWN:]:
            shown += f"; and {len(distinct) - _SHOWN} more"
        return UnintendedFallback(
            sum(bool(fallback_reason.operator) for fallback_reason in unintended), shown
        )

    def of(self, whole: str, noun: str) -> str:
        """What they concern: so many operators (`noun`) of a whole, or the whole."""
        return f"{plural(self.operators, noun)} of {whole}" if self.operators else whole

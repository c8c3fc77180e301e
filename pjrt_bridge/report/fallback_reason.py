"""Why an operator or a segment runs on the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pjrt_bridge.report.wording import plural

ReasonKind = Literal[
    "unsupported", "refused", "data", "requested", "small", "slow", "sizes", "failed", "collective"
]
"""Why something runs on the host:

- unsupported: the operator has no lowering;
- refused: its lowering does not cover this use of it;
- data: a size or a number depends on data;
- requested: the user's options keep it on the host;
- small: the segment is not worth a launch;
- slow: the host was measured to be faster;
- sizes: they change too often to be compiled;
- failed: the device failed;
- collective: it exchanges data with other processes.
"""

_INTENDED: frozenset[ReasonKind] = frozenset({"requested", "small", "slow", "collective"})
_SHOWN = 3


@dataclass(frozen=True)
class FallbackReason:
    """Why an operator, or a whole segment, runs on the host.

    Attributes:
        operator: in the framework's spelling; empty where the reason concerns the whole segment.
        reason: in the user's terms.
        kind: see `ReasonKind`.
        source: the user's line, `file:line: code`, where the framework knows it.
    """

    operator: str
    reason: str
    kind: ReasonKind
    source: str | None = None

    def __str__(self) -> str:
        what = f"{self.operator}: {self.reason}" if self.operator else self.reason
        return f"{what} ({self.source})" if self.source else what


@dataclass(frozen=True)
class UnintendedFallback:
    """Summary, for warnings and errors, of fallbacks that neither user nor bridge chose.

    Attributes:
        operators: how many of the reasons concern an operator.
        shown: the first few distinct reasons, and how many more there are.
    """

    operators: int
    shown: str

    @staticmethod
    def among(reasons: Iterable[FallbackReason]) -> UnintendedFallback | None:
        """Summarize the reasons of unintended kinds; None where there are none."""
        unintended = [reason for reason in reasons if reason.kind not in _INTENDED]
        if not unintended:
            return None
        distinct = list(dict.fromkeys(map(str, unintended)))
        shown = "; ".join(distinct[:_SHOWN])
        if distinct[_SHOWN:]:
            shown += f"; and {len(distinct) - _SHOWN} more"
        return UnintendedFallback(sum(bool(reason.operator) for reason in unintended), shown)

    def affected(self, whole: str, noun: str) -> str:
        """What falls back: a number of operators (`noun`) of a whole, or the whole."""
        return f"{plural(self.operators, noun)} of {whole}" if self.operators else whole

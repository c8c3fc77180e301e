"""A conformance suite for PJRT plugins: what must hold of any of them, checked one by one.

`runner.run` runs the checks of `suite.suite` in worker processes, so that a plugin that dies or
hangs is a finding and not the end. `pjrt-bridge conformance` is the command over it.
"""

from pjrt_bridge_conformance.check import Check, Group, Needs
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.outcomes import AbsentDevice, Fail, Unsupported
from pjrt_bridge_conformance.report import Difference, Report, Result, Status, compare
from pjrt_bridge_conformance.runner import run
from pjrt_bridge_conformance.suite import suite

__all__ = [
    "AbsentDevice",
    "Check",
    "Context",
    "Difference",
    "Fail",
    "Group",
    "Needs",
    "Report",
    "Result",
    "Status",
    "Unsupported",
    "compare",
    "run",
    "suite",
]

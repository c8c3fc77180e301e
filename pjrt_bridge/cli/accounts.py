"""Accounts of compiled programs: cost and memory, as data for JSON and as tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from pjrt_bridge.cli.console import columns
from pjrt_bridge.errors import PjrtError
from pjrt_bridge.report.wording import byte_size, magnitude
from pjrt_bridge.runtime.compile.progress import working

if TYPE_CHECKING:
    from pjrt_bridge.abi.values import NamedValue
    from pjrt_bridge.exported.ahead import ProgramCompiler
    from pjrt_bridge.runtime import Compiled, CompileOptions, MemoryStats
    from pjrt_bridge.stablehlo import Program

ProgramAccount = dict[str, Any]

# Whole-program figures; the others are for single operands.
_COSTS: Mapping[str, Callable[[float], str]] = {
    "flops": magnitude,
    "transcendentals": magnitude,
    "bytes accessed": lambda number: byte_size(int(number)),
}

UNTOLD = "the plugin does not tell"


class Accountant:
    """A compiler that shows how far it is, and keeps an account of each program.

    Args:
        compiler: a client or a topology.
        count: of the programs that there will be.

    Attributes:
        plugin: of the compiler.
        accounts: of the programs so far.
    """

    def __init__(self, compiler: ProgramCompiler, count: int) -> None:
        self.plugin = compiler.plugin
        self.accounts: list[ProgramAccount] = []
        self._compiler = compiler
        self._count = count

    def compile(self, program: Program, *, options: CompileOptions | None = None) -> Compiled:
        """As the compiler does."""
        at = f"{len(self.accounts) + 1} of {self._count}: " if self._count > 1 else ""
        with working(f"compiling {at}{program.name} for {self.plugin.name}", delay=0):
            started = time.perf_counter()
            compiled = self._compiler.compile(program, options=options)
            seconds = time.perf_counter() - started
        self.accounts.append(_account(compiled, seconds))
        return compiled


def _account(compiled: Compiled, seconds: float) -> ProgramAccount:
    """The account of one program; None for what the compiler does not tell."""
    cost: dict[str, NamedValue] | None = None
    memory: MemoryStats | None = None
    fingerprint: str | None = None
    with suppress(PjrtError):
        cost = compiled.cost()
    with suppress(PjrtError):
        memory = compiled.memory_stats()
    with suppress(PjrtError):
        fingerprint = compiled.fingerprint()
    limit = compiled.memory_limit
    return {
        "name": compiled.name,
        "plugin": compiled.api.plugin,
        "platform": compiled.platform,
        "topology": compiled.target,
        "fingerprint": fingerprint,
        "cost": cost,
        "memory": None if memory is None else {**asdict(memory), "needed": memory.needed},
        "memory_limit": limit,
        "fits": None if memory is None or limit is None else memory.needed <= limit,
        "seconds": seconds,
    }


def target_rows(account: ProgramAccount, seconds: float) -> dict[str, object]:
    """Rows that name the target, and how long compiling took."""
    where = account["topology"] or "this machine"
    return {
        "compiled": f"for {where}, plugin {account['plugin']}, in {seconds:.1f} s",
        "platform": " ".join(account["platform"].split()),
    }


def rows(account: ProgramAccount) -> dict[str, object]:
    """All that is worth a line of one program."""
    found = target_rows(account, account["seconds"])
    cost = account["cost"] or {}
    for name, shown in _COSTS.items():
        if isinstance(cost.get(name), float):
            found[name] = shown(cost[name])
    if isinstance(cost.get("optimal_seconds"), float) and cost["optimal_seconds"] > 0:
        found["at best"] = f"{cost['optimal_seconds'] * 1e3:,.3f} ms"
    if not cost:
        found["cost"] = UNTOLD
    memory = account["memory"]
    if memory is None:
        return {**found, "memory": UNTOLD}
    for name in ("arguments", "outputs", "aliased", "temporaries", "generated_code"):
        found[name.replace("_", " ")] = byte_size(memory[name])
    found["needed"] = f"{byte_size(memory['needed'])} on each device"
    if (limit := account["memory_limit"]) is not None:
        share = f"{100 * memory['needed'] / limit:.1f} % of {byte_size(limit)}"
        found["fits"] = f"yes, {share}" if account["fits"] else f"NO, {share}"
    return found


def table(accounts: Sequence[ProgramAccount]) -> Table:
    """One line for each program: time, cost, and memory on each device."""
    found = columns("program", "compiled in", "flops", "bytes accessed", "needed", "fits")
    for account in accounts:
        cost, memory = account["cost"] or {}, account["memory"]
        found.add_row(
            account["name"],
            f"{account['seconds']:.1f} s",
            *(
                _COSTS[name](cost[name]) if isinstance(cost.get(name), float) else "?"
                for name in ("flops", "bytes accessed")
            ),
            "?" if memory is None else byte_size(memory["needed"]),
            {True: "yes", False: "NO", None: "?"}[account["fits"]],
        )
    return found

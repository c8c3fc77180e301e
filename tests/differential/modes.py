"""The ways in which a program is compiled."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.ledger import LEDGER


@dataclass(frozen=True)
class Mode:
    """One way.

    Attributes:
        name: "whole", "divided", ...
        dynamic: as torch.compile takes it.
        options: of the backend.
        threads: how many call at the same time; 0: only this one.
        exported: the program is exported, saved, loaded and run; if it is dynamic, one model for
            all sizes.
        eager: the program runs uncompiled on torch's device `pjrt`, with this value of
            PJRT_BRIDGE_EAGER; empty: it does not.
    """

    name: str = "whole"
    dynamic: bool | None = False
    options: tuple[tuple[str, Any], ...] = ()
    threads: int = 0
    exported: bool = False
    eager: str = ""

    @property
    def results_rule(self) -> Any:
        """The order of elements of results that the options ask for."""
        return dict(self.options).get("layouts", {}).get("results")

    def compiled(self, function: Callable[..., Any], backend: Any = "pjrt") -> Callable[..., Any]:
        """The function compiled in this way."""
        torch._dynamo.reset()
        return torch.compile(
            function,
            backend=backend,
            dynamic=self.dynamic,
            # What Python computes between graphs depends on the layout of what it is given.
            fullgraph=self.results_rule is not None,
            options=dict(self.options) if backend == "pjrt" else None,
        )

    def source(self) -> str:
        """How a test writes it."""
        words = [repr(self.name)]
        if self.dynamic is not False:
            words.append(f"dynamic={self.dynamic}")
        if self.options:
            words.append(f"options={self.options!r}")
        if self.threads:
            words.append(f"threads={self.threads}")
        if self.exported:
            words.append("exported=True")
        if self.eager:
            words.append(f"eager={self.eager!r}")
        return f"Mode({', '.join(words)})"


NAMES = (
    "whole",
    "divided",
    "dynamic",
    "automatic",
    "device",
    "rounded",
    "buckets",
    "segments",
    "checked",
    "threads",
    "exported",
    "exported_dynamic",
    "layouts",
    "flags",
    "resident",
    "fused",
)
"""Names of all modes."""

_WEIGHTS = (4, 6, 4, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2)


def choose(
    rng: random.Random, count: int, operators: Sequence[str], only: Sequence[str] = ()
) -> list[Mode]:
    """Some different modes for a program.

    Args:
        rng: decides.
        count: how many.
        operators: ATen operators of the program, of which some are forced to the host.
        only: names to choose from; empty: all.
    """
    pool = [name for name in NAMES if not only or name in only]
    weights = [_WEIGHTS[NAMES.index(name)] for name in pool]
    chosen: list[str] = []
    while pool and len(chosen) < count:
        (name,) = rng.choices(pool, weights)
        at = pool.index(name)
        del pool[at], weights[at]
        chosen.append(name)
    return [_mode(name, rng, operators) for name in chosen]


def _mode(name: str, rng: random.Random, operators: Sequence[str]) -> Mode:
    dynamic = rng.choice([False, False, None, True])
    if name == "whole":
        return Mode(name)
    if name == "divided":
        return Mode(name, dynamic, (("host_ops", _some(rng, operators)),))
    if name == "dynamic":
        return Mode(name, True)
    if name == "automatic":
        return Mode(name, None)
    if name == "device":
        return Mode(name, dynamic, (("placement", "device"),))
    if name == "rounded":
        return Mode(name, dynamic, (("excess_precision", False),))
    if name == "checked":
        return Mode(name, dynamic, (("check_indices", True),))
    if name == "buckets":
        return Mode(name, rng.choice([None, True]), (("buckets", (4, 8, 16)),))
    if name == "segments":
        return Mode(
            name,
            dynamic,
            (("host_ops", _some(rng, operators)), ("min_segment", rng.choice([2, 3]))),
        )
    if name == "threads":
        return Mode(name, dynamic, threads=3)
    if name == "layouts":
        rule = rng.choice(["row-major", "column-major", "channels-last", {2: (1, 0), 3: (1, 2, 0)}])
        return Mode(name, dynamic, (("layouts", {"results": rule}), *_somewhere(rng, operators)))
    if name == "flags":
        flag = rng.choice(sorted(_FLAGS))
        options = (("compiler_flags", {flag: rng.choice(_FLAGS[flag])}), ("placement", "device"))
        return Mode(name, dynamic, options)
    if name in ("resident", "fused"):
        return Mode(name, eager="async" if name == "resident" else name)
    return Mode(name, name == "exported_dynamic", exported=True)


_FLAGS: dict[str, tuple[Any, ...]] = {
    "xla_cpu_prefer_vector_width": (128, 512),
    "xla_backend_optimization_level": (0, 1),
    "xla_cpu_use_onednn": (False, True),
}
"""Flags of XLA's compiler for processors that leave numbers as they are but for rounding."""


def _somewhere(rng: random.Random, operators: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """Options of where a graph runs."""
    return rng.choice([(), (("placement", "device"),), (("host_ops", _some(rng, operators)),)])


_COMMON = (
    "aten.add",
    "aten.mul",
    "aten.sum",
    "aten.view",
    "aten.slice",
    "aten.slice_scatter",
    "aten.clone",
    "aten.copy",
    "aten.permute",
    "aten.select",
    "aten.expand",
    "aten.index",
)


def _some(rng: random.Random, operators: Sequence[str]) -> tuple[str, ...]:
    pool = sorted({*operators} or set(_COMMON))
    count = rng.choice([1, 1, 2, 3])
    found = set(rng.sample(pool, min(count, len(pool))))
    if rng.random() < 0.3:
        found.add(rng.choice(_COMMON))
    return tuple(sorted(found))


def host_operators(seen: Sequence[str]) -> list[str]:
    """Those of the operators that eager mode dispatched which `host_ops` may name, functional."""
    found = set()
    for name in seen:
        spelled = name.replace("::", ".")
        if "." not in spelled:
            # An operator of higher order, such as `cond`.
            found.add(f"higher_order.{spelled}")
            continue
        base = spelled.split(".")[1]
        for candidate in (base, base.rstrip("_"), f"{base.rstrip('_')}_scatter"):
            full = f"aten.{candidate}"
            named = not candidate.startswith("_") and not candidate.endswith("_")
            if named and compat.is_operator(full) and not compat.is_composite(full):
                found.add(full)
    return sorted(found)


def device_programs() -> int:
    """How many device segments the graphs of the last compilations have; they are forgotten."""
    count = sum(graph.on_device for graph in (record.report() for record in LEDGER.graphs))
    LEDGER.forget()
    return count

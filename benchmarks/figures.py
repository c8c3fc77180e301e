"""Families of single numbers, which one process measures by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.figure import Figure
from benchmarks.processes import Process

FAMILIES: Mapping[str, int] = {
    "first_call": 3,
    "mixed": 45,
    "tracing": 1,
    "caching": 3,
    "exporting": 5,
    "generation": 15,
    "meshes": 15,
    "distributed": 15,
}
"""Modules beside this one, each with `figures(rounds)`, and the most rounds that a run affords."""


def measure(family: str, rounds: int) -> Iterator[Figure]:
    """The figures of a family, each as soon as it is there.

    Raises:
        Missing: the process that measures them failed.
    """
    environment = {"HF_HUB_OFFLINE": "1", "PJRT_BRIDGE_CACHE": "off"}
    with Process(environment=environment) as process:
        process.ask("figures", family=family, rounds=min(rounds, FAMILIES[family]))
        while (found := process.ask("next")["figure"]) is not None:
            yield Figure(**found)

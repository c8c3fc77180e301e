"""How many sections the passes join."""

from types import ModuleType

import pytest


def joined_counts(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[int]:
    """A list to which each value that the module joins adds the number of its sections."""
    counts: list[int] = []
    inner = module.joined

    def noting(graph, base, sections):
        made = inner(graph, base, sections)
        if made is not None:
            counts.append(len(sections))
        return made

    monkeypatch.setattr(module, "joined", noting)
    return counts

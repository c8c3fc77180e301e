"""How many parts the passes join."""

from types import ModuleType

import pytest


def joined_counts(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[int]:
    """A list to which each value that the module joins adds the number of its parts."""
    counts: list[int] = []
    inner = module.joined

    def noting(graph, base, parts):
        made = inner(graph, base, parts)
        if made is not None:
            counts.append(len(parts))
        return made

    monkeypatch.setattr(module, "joined", noting)
    return counts

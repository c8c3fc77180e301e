"""What is taken from AOTAutograd's metadata, also where another torch says more than this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._functorch._aot_autograd.schemas import OutputAliasInfo, ViewAndMutationMeta

from pjrt_bridge.torch_interop.bind.entrance import Entrance
from pjrt_bridge.torch_interop.compat.aot import autograd_metadata
from tests.plugins import require_dispatcher
from tests.torch_interop.helpers import compiled

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def entrances(monkeypatch: pytest.MonkeyPatch) -> list[Entrance]:
    """The fast paths that are made."""
    require_dispatcher()
    found: list[Entrance] = []
    before = Entrance.before

    def noted(self: Entrance, otherwise: Any) -> Any:
        found.append(self)
        return before(self, otherwise)

    monkeypatch.setattr(Entrance, "before", noted)
    return found


def test_metadata_of_this_torch_is_known(entrances: list[Entrance]) -> None:
    assert compiled(torch.exp)(torch.zeros(3)).tolist() == [1] * 3
    assert len(entrances) == 1


@pytest.mark.parametrize("kind", [ViewAndMutationMeta, OutputAliasInfo])
@pytest.mark.parametrize("change", ["added", "missing"])
def test_unknown_metadata_closes_the_fast_path(
    kind: type, change: str, entrances: list[Entrance], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = autograd_metadata._KNOWN_FIELDS[kind]
    # What is a field more to a table without it is a field less to a table with another one.
    other = known - {"requires_grad", "tokens"} if change == "added" else known | {"more"}
    monkeypatch.setitem(autograd_metadata._KNOWN_FIELDS, kind, other)  # type: ignore[arg-type]
    assert compiled(torch.exp)(torch.zeros(3)).tolist() == [1] * 3
    assert entrances == []


def test_another_class_is_unknown() -> None:
    @dataclass(init=False)
    class Newer(ViewAndMutationMeta):
        """Says more."""

        more: int = 0

        def __init__(self) -> None:
            self.input_info, self.output_info = [], []

    assert not autograd_metadata.is_known_metadata(Newer())

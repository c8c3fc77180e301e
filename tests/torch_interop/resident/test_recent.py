"""Programs of sizes that change do not pile up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge.torch_interop.device.programs import programs
from pjrt_bridge.torch_interop.resident import recent
from pjrt_bridge.torch_interop.resident.recent import Recent


@given(st.integers(1, 5), st.lists(st.integers(0, 12)))
def test_what_was_used_last_is_there_and_not_much_more(kept: int, keys: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recent, "KEPT", kept)
        drops: list[None] = []
        table: Recent[str] = Recent(lambda: drops.append(None))
        for at, key in enumerate(keys):
            found = table.find(key)
            before = list(dict.fromkeys(reversed(keys[:at])))[:kept]
            assert found == (str(key) if key in before else found)
            if found is None:
                assert table.add(key, str(key)) == str(key)
            assert table.add(key, "another") == str(key)
            assert len(table) == len(list(table)) <= 2 * kept
        assert bool(drops) == (len(set(keys)) > kept)
        table.clear()
        assert list(table) == []


def test_operators_of_many_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "KEPT", 4)
    for size in (*range(1, 12), 3, 3, 3, 3):
        x = torch.arange(float(size), device="pjrt")
        assert x.add(1).sum().item() == size * (size + 1) / 2
    assert len(programs._families) <= 8

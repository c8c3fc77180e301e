"""A model of which a part runs in PyTorch, and what it gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pjrt_bridge.exported import ExportedModel
from tests.torch_interop.export.test_export import close


class Middle(nn.Module):
    """On the device, where sizes depend on data, and on the device again; keeps a count."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(2, 3)
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        places = (self.before(x) > 0).nonzero()  # the line
        y = self.after(places.sum(0).float()).tanh()
        self.total.add_(y)
        return {"y": y, "values": torch.unique(y), "places": [places * 2, places.shape[0]]}


def placements(model: ExportedModel) -> list[str]:
    (graph,) = model.report().graphs
    return [segment.placement for segment in graph.segments]


def same(found: Any, expected: Any) -> bool:
    assert set(found) == set(expected)
    (places, count), (our_places, our_count) = expected["places"], found["places"]
    return (
        close(found["y"], expected["y"])
        and close(found["values"], expected["values"])
        and close(our_places, places)
        and our_count == count
    )

"""Drawings of who holds what."""

from __future__ import annotations

import pytest
import torch

from pjrt_bridge import errors
from pjrt_bridge.torch_interop.sharding import Mesh, mark_sharding, visualize


def test_parts_and_their_holders(mesh: Mesh) -> None:
    both = visualize(mark_sharding(torch.zeros(4, 6), mesh, ("tp", "dp")))
    assert both.title == "float32[4, 6], [tp, dp] over Mesh(dp=2, tp=2)"
    assert both.rows == (
        (("[0:2, 0:3]", (0,)), ("[0:2, 3:6]", (2,))),
        (("[2:4, 0:3]", (1,)), ("[2:4, 3:6]", (3,))),
    )
    shared = visualize(mark_sharding(torch.zeros(4, 6), mesh, (None, "tp")))
    line = "+----------------------------+----------------------------+"
    assert str(shared).splitlines()[1:] == [
        line,
        "| [0:4, 0:3] on devices 0, 2 | [0:4, 3:6] on devices 1, 3 |",
        line,
    ]
    whole = visualize(mark_sharding(torch.zeros(()), mesh, ()))
    assert whole.rows == ((("[]", (0, 1, 2, 3)),),)


def test_a_page_has_a_colour_for_each_set_of_holders(mesh: Mesh) -> None:
    page = visualize(mark_sharding(torch.zeros(4, 6), mesh, ("dp",)))._repr_html_()
    assert page.count("<tr>") == page.count("<td") == 2
    assert page.count("devices 0, 1") == page.count("devices 2, 3") == 1
    assert len({cell.partition(")")[0] for cell in page.split("hsl(")[1:]}) == 2


def test_what_is_not_divided_is_refused(mesh: Mesh) -> None:
    with pytest.raises(errors.DeviceError, match=r"shape \(2,\) on one device, expected one that"):
        visualize(torch.zeros(2).to("pjrt"))
    with pytest.raises(errors.DeviceError, match="expected one of device 'pjrt'"):
        visualize(torch.zeros(2))

import ctypes
import itertools

import pytest

from pjrt_bridge.abi.chain import walk
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import PluginIncompatible

BASE = STRUCTS["PJRT_Extension_Base"]


def chain(*links: tuple[int, int]) -> list[ctypes.Structure]:
    made = [BASE.ctype(struct_size=size, type=type_) for type_, size in links]
    for link, following in itertools.pairwise(made):
        link.next = ctypes.addressof(following)
    return made


def test_order_and_unknown_types_are_kept() -> None:
    links = chain((9, 64), (4, 72), (777, 24), (24, 56))
    found = walk(ctypes.addressof(links[0]), plugin="fake")
    assert [(e.type, e.struct_size) for e in found] == [(9, 64), (4, 72), (777, 24), (24, 56)]
    assert [e.name for e in found] == ["PhaseCompile", "Layouts", "Type_777", "XlaTransform"]
    assert found[1].address == ctypes.addressof(links[1])


def test_no_chain() -> None:
    assert walk(None, plugin="fake") == ()


def test_a_circle() -> None:
    links = chain((1, 24), (2, 24))
    links[1].next = ctypes.addressof(links[0])
    with pytest.raises(PluginIncompatible, match="closes a circle"):
        walk(ctypes.addressof(links[0]), plugin="fake")


@pytest.mark.parametrize("address", [0x10, 0x7FFF00000001])
def test_a_link_to_nowhere(address: int) -> None:
    links = chain((1, 24))
    links[0].next = address
    with pytest.raises(PluginIncompatible, match=r"link 1 .* is no extension struct"):
        walk(ctypes.addressof(links[0]), plugin="fake")


@pytest.mark.parametrize("size", [0, 16, 1 << 30])
def test_an_impossible_size(size: int) -> None:
    links = chain((1, size))
    with pytest.raises(PluginIncompatible, match=f"claims {size} bytes"):
        walk(ctypes.addressof(links[0]), plugin="fake")

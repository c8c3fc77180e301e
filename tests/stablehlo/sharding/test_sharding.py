import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.sharding.mesh import Mesh, axes_in
from pjrt_bridge.stablehlo.sharding.sharding import Sharding, is_open

MESH = Mesh.of({"dp": 2, "tp": 4})


def test_positions_of_a_mesh():
    assert [MESH.coordinates(p) for p in (0, 1, 4, 7)] == [
        {"dp": 0, "tp": 0},
        {"dp": 0, "tp": 1},
        {"dp": 1, "tp": 0},
        {"dp": 1, "tp": 3},
    ]
    assert MESH.size == 8
    assert axes_in(MESH.text) == MESH.sizes


@pytest.mark.parametrize(
    ("sizes", "needle"),
    [({"a b": 2}, "axis 'a b'"), ({"a": 0}, "size 0"), ({"a": True}, "size True")],
)
def test_impossible_meshes(sizes, needle):
    with pytest.raises(ProgramError, match=needle):
        Mesh.of(sizes)
    with pytest.raises(ProgramError, match="each once"):
        Mesh((("a", 2), ("a", 2)))


def test_specs():
    sharding = Sharding.of(MESH, (None, ("tp", "dp")), 3)
    assert sharding.tiles == (1, 8, 1)
    assert sharding.shard_shape((3, 16, 5)) == (3, 2, 5)
    assert sharding.text() == '#sdy.sharding<@mesh, [{}, {"tp", "dp"}, {}]>'
    assert str(sharding) == "[-, tp+dp, -] over Mesh(dp=2, tp=4)"
    assert not sharding.is_replicated
    assert Sharding.replicated(MESH, 2).is_replicated


@pytest.mark.parametrize(
    ("spec", "needle"),
    [
        (("x",), "the axis 'x'"),
        (("dp", "dp"), "twice"),
        (("dp", None, None), "3 entries"),
        ("dp", "expected a tuple"),
    ],
)
def test_impossible_specs(spec, needle):
    with pytest.raises(ProgramError, match=needle):
        Sharding.of(MESH, spec, 2)


def test_what_does_not_divide():
    sharding = Sharding.of(MESH, ("dp", "tp"), 2)
    with pytest.raises(ProgramError, match=r"dimension 1 of shape .* 4 equal parts .axes tp."):
        sharding.shard_shape((4, 6))
    assert sharding.as_far_as_it_divides((4, 6)) == Sharding.of(MESH, ("dp",), 2)


@pytest.mark.parametrize(
    "text",
    [
        '#sdy.sharding<@mesh, [{"dp"}, {}]>',
        '#sdy.sharding<@mesh, [{"tp":(2)2}, {"tp":(1)2}]>',
        '#sdy.sharding<@mesh, [{}, {"dp", "tp"}]>',
    ],
)
def test_text_is_read_as_it_is_written(text):
    found = Sharding.parse(text, {"mesh": MESH})
    assert found.text() == text
    assert not is_open(text)


def test_open_dimensions():
    assert is_open('#sdy.sharding<@mesh, [{"dp", ?}, {}]>')
    assert Sharding.parse('#sdy.sharding<@mesh, [{"dp", ?}p1, {?}]>', {"mesh": MESH}) == (
        Sharding.of(MESH, ("dp",), 2)
    )


def test_a_sub_axis_divides_by_its_place_in_the_axis():
    major = Sharding.parse('#sdy.sharding<@mesh, [{"tp":(1)2}]>', {"mesh": MESH})
    minor = Sharding.parse('#sdy.sharding<@mesh, [{"tp":(2)2}]>', {"mesh": MESH})
    assert [major.indices((2,), p)[0].start for p in range(4)] == [0, 0, 1, 1]
    assert [minor.indices((2,), p)[0].start for p in range(4)] == [0, 1, 0, 1]


@st.composite
def _shardings(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3))
    mesh = Mesh.of({f"a{at}": size for at, size in enumerate(sizes)})
    names = draw(st.permutations([name for name, _ in mesh.axes]))
    rank = draw(st.integers(1, 3))
    spec: list[list[str]] = [[] for _ in range(rank)]
    for name in names:
        at = draw(st.integers(-1, rank - 1))
        if at >= 0:
            spec[at].append(name)
    sharding = Sharding.of(mesh, spec, rank)
    shape = tuple(tile * draw(st.integers(1, 2)) for tile in sharding.tiles)
    return sharding, shape


@given(_shardings())
def test_shards_cover_an_array_once_each(case):
    """The parts that different holders have are disjoint, and together are the array."""
    sharding, shape = case
    counts = np.zeros(shape, int)
    for position, holder in enumerate(sharding.holders):
        part = sharding.indices(shape, position)
        assert counts[part].shape == sharding.shard_shape(shape)
        assert part == sharding.indices(shape, holder)
        counts[part] += holder == position
    assert (counts == 1).all()
    assert Sharding.parse(sharding.text(), {"mesh": sharding.mesh}) == sharding

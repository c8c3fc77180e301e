import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Builder, TensorType
from pjrt_bridge.stablehlo.partitioning.propagation import shard
from pjrt_bridge.stablehlo.sharding.mesh import Mesh
from pjrt_bridge.stablehlo.sharding.sharding import Sharding

MESH = Mesh.of({"d": 2})
FLOAT = dtypes.of("float32")


def _program(dimensions, undivided="", shapes=((4, 6), (6, 8)), results=((4, 8),)):
    b = Builder([TensorType(shape, FLOAT) for shape in shapes])
    types = [TensorType(shape, FLOAT) for shape in results]
    return b.finish(
        b.custom_call("k", b.parameters, types, dimensions=dimensions, undivided=undivided)
    )


def _divided(program, *first):
    count = len(program.signature.parameters)
    known = [Sharding.of(MESH, first, 2), *[None] * (count - 1)]
    return shard(program, MESH, known, [None])


def test_a_call_is_divided_along_its_dimensions():
    found = _divided(_program("ij, jk -> ik"), "d")
    assert found.results == (Sharding.of(MESH, ("d",), 2),)
    again = _divided(_program(None), "d")
    assert again.results == (Sharding.of(MESH, (), 2),)


def test_the_rule_survives_a_portable_artifact():
    program = _program("ij,jk->ik", "j")
    again = type(program).from_portable_artifact(program.portable_artifact())
    assert "need_replication={j}" in again.text
    assert _divided(again, "d").results == (Sharding.of(MESH, ("d",), 2),)


def test_more_dimensions_than_letters_of_shardy():
    letters = "abcdefghijklmnopqrstuvwxyz"
    shape = (1,) * len(letters)
    text = _program(f"{letters}->{letters}", shapes=(shape,), results=(shape,)).text
    assert "z_8=1" in text


@pytest.mark.parametrize(
    ("dimensions", "undivided", "expected"),
    [
        ("ij,jk", "", "OPERANDS->RESULTS"),
        ("ij->ik", "", "a letter for each dimension of .4, 6., .6, 8."),
        ("ij,jk->i", "", "a letter for each dimension of .4, 8."),
        ("ij,ik->ik", "", "of one size, not 'i'"),
        ("i1,1k->ik", "", "of one size, not '1'"),
        ("ij,jk->ik", "z", "the letter 'z' of the undivided ones"),
    ],
)
def test_letters_that_do_not_fit(dimensions, undivided, expected):
    with pytest.raises(ProgramError, match=rf"custom call 'k': dimensions: .*{expected}"):
        _program(dimensions, undivided)

import json

import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Parameter, Program, Result, Signature
from pjrt_bridge.stablehlo.sharding.hlo import shard_shape
from pjrt_bridge.stablehlo.sharding.sharding import shard_shape_of
from tests.stablehlo.helpers import tensor

FULL = """
module @m {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func public @main(
    %a: tensor<4x6xf32> {jax.buffer_donor = true, mhlo.layout_mode = "{0,1}"},
    %b: tensor<4x6xbf16> {tf.aliasing_output = 1 : i32, mhlo.sharding = "{devices=[2,1]<=[2]}"},
    %c: tensor<8xui8> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}]>, custom.note = "kept"},
    %d: tensor<i1> {mhlo.layout_mode = "default", mhlo.sharding = "{replicated}"}
  ) -> (tensor<?x2xi64, #stablehlo.bounds<32, ?>> {mhlo.layout_mode = "{1,0:T(8,128)}"},
        tensor<4x6xbf16> {jax.result_info = "out", mhlo.sharding = "{devices=[2,1]<=[2]}"}) {
    %0 = stablehlo.custom_call @f() : () -> tensor<?x2xi64, #stablehlo.bounds<32, ?>>
    return %0, %b : tensor<?x2xi64, #stablehlo.bounds<32, ?>>, tensor<4x6xbf16>
  }
}
"""


def test_all_attributes():
    signature = Program.from_text(FULL).signature
    a, b, c, d = signature.parameters
    assert a == Parameter(tensor(4, 6), layout=(0, 1), donation="may")
    assert b == Parameter(
        tensor(4, 6, dtype="bfloat16"),
        donation="must",
        alias=1,
        sharding="{devices=[2,1]<=[2]}",
        shard_shape=(2, 6),
    )
    assert c.sharding == '#sdy.sharding<@mesh, [{"x", "y"}]>'
    assert (c.type, c.shard_shape) == (tensor(8, dtype="uint8"), (1,))
    assert d == Parameter(tensor(dtype="bool"), sharding="{replicated}")
    bounded, out = signature.results
    assert bounded == Result(tensor(32, 2, dtype="int64"), layout=(1, 0), dynamic=(0,))
    assert out.shard_shape == (2, 6)


def test_json_round_trip():
    signature = Program.from_text(FULL).signature
    data = json.loads(json.dumps(signature.to_json()))
    assert Signature.from_json(data) == signature


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"parameters": [{}], "results": []},
        {"parameters": 3, "results": []},
        {"parameters": [], "results": [{"shape": [1], "dtype": "float32"}]},
    ],
)
def test_malformed_json(data):
    with pytest.raises(ProgramError, match="malformed JSON"):
        Signature.from_json(data)


@pytest.mark.parametrize(
    ("parameter", "result", "needle"),
    [
        ("tensor<?x2xf32>", "tensor<f32>", r"parameter 0.*\?x2xf32.* without a bound"),
        (
            "tensor<?x2xf32, #stablehlo.bounds<4, ?>>",
            "tensor<f32>",
            "parameter 0.*static parameter shapes only",
        ),
        ("tensor<*xf32>", "tensor<f32>", "parameter 0.*no ranked tensor"),
        ("!stablehlo.token", "tensor<f32>", "parameter 0.*token.*no ranked tensor"),
        ("tensor<2xi24>", "tensor<f32>", "parameter 0.*'i24'"),
        ("tensor<f32>", "tensor<?xf32>", "result 0.*without a bound"),
        (
            'tensor<2x2xf32> {mhlo.layout_mode = "sideways"}',
            "tensor<f32>",
            "parameter 0: mhlo.layout_mode 'sideways'",
        ),
        ('tensor<2x2xf32> {mhlo.layout_mode = "{0,0}"}', "tensor<f32>", "no permutation"),
        (
            'tensor<2x2xf32> {mhlo.layout_mode = "auto"}',
            "tensor<f32>",
            "parameter 0: mhlo.layout_mode 'auto' lets the compiler choose",
        ),
        ('tensor<2xf32> {mhlo.sharding = "{what}"}', "tensor<f32>", "cannot read '{what}'"),
    ],
)
def test_programs_without_a_usable_signature_can_still_be_read(parameter, result, needle):
    body = f"%0 = stablehlo.custom_call @f() : () -> {result}"
    parsed = Program.from_text(
        f"func.func public @main(%a: {parameter}) -> {result} {{ {body}\n return %0 : {result} }}"
    )
    assert "@main" in parsed.text
    for _ in range(2):
        with pytest.raises(ProgramError, match=needle):
            parsed.signature


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("{replicated}", (8, 6)),
        ("{manual}", (8, 6)),
        ("{maximal device=0}", (8, 6)),
        ("{devices=[2,1]<=[2]}", (4, 6)),
        ("{devices=[2,1]0,1}", (4, 6)),
        ("{devices=[1,2,2]<=[4] last_tile_dim_replicate}", (8, 3)),
        ("{devices=[2,2,2]<=[2,2,2]T(1,0,2) last_tile_dims={manual}}", (4, 3)),
        ("{devices=[1,1,2,2]<=[4] last_tile_dims={manual, replicated}}", (8, 6)),
        ("{devices=[3,4]<=[12]}", (3, 2)),
        ('{devices=[2,1]<=[2] metadata={op_name="x"}}', (4, 6)),
        ('{replicated metadata={op_name="x"}}', (8, 6)),
    ],
)
def test_hlo_shardings(sharding, expected):
    assert shard_shape((8, 6), sharding) == expected


@pytest.mark.parametrize(
    "sharding",
    ["", "{}", "{devices=[2]<=[2]}", "{devices=[0,1]<=[2]}", "{{replicated}, {replicated}}"],
)
def test_unreadable_hlo_shardings(sharding):
    with pytest.raises(ProgramError, match="sharding"):
        shard_shape((8, 6), sharding)


MESHES = {"mesh": {"x": 2, "y": 4}}


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ('#sdy.sharding<@mesh, [{"x"}, {}]>', (4, 6)),
        ('#sdy.sharding<@mesh, [{"x", "y"}, {?}]>', (1, 6)),
        ('#sdy.sharding<@mesh, [{}, {"y", ?}p1], replicated={"x"}>', (8, 2)),
        ('#sdy.sharding<@mesh, [{"y":(2)2}, {"y":(1)2}]>', (4, 3)),
        ('#sdy.sharding<mesh<["z"=4]>, [{"z"}, {}]>', (2, 6)),
        ('#sdy.sharding<@mesh, [{"x"}, {}], unreduced={"y"}>', (4, 6)),
    ],
)
def test_shardy_shardings(sharding, expected):
    assert shard_shape_of((8, 6), sharding, MESHES) == expected


@pytest.mark.parametrize(
    ("sharding", "needle"),
    [
        ('#sdy.sharding<@other, [{"x"}, {}]>', "does not have"),
        ('#sdy.sharding<@mesh, [{"w"}, {}]>', "axis 'w'"),
        ('#sdy.sharding<@mesh, [{"x"}]>', "tiles 1 dimensions"),
        ("{replicated}", "as a Shardy sharding"),
    ],
)
def test_unreadable_shardy_shardings(sharding, needle):
    with pytest.raises(ProgramError, match=needle):
        shard_shape_of((8, 6), sharding, MESHES)


def test_tensor_types():
    kind = tensor(2, 3, dtype="float16")
    assert (kind.rank, kind.size, kind.nbytes, str(kind)) == (2, 6, 12, "f16[2,3]")
    scalar = tensor(dtype="int4")
    assert (scalar.rank, scalar.size, scalar.nbytes, str(scalar)) == (0, 1, 1, "i4[]")
    with pytest.raises(ProgramError, match="must be >= 0"):
        tensor(2, -1)
    assert tensor(1) == tensor(1)
    assert dtypes.of("float32") is tensor(1).dtype


@pytest.mark.parametrize(
    "arguments",
    [{"donation": "must"}, {"alias": 0}, {"donation": "may", "alias": 0}, {"layout": (1, 1)}],
)
def test_contradictory_parameters(arguments):
    with pytest.raises(ProgramError, match=r"parameter f32\[2,2\]"):
        Parameter(tensor(2, 2), **arguments)

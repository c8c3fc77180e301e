import math

import pytest
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.lowering import context
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import tensor_type


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (-1, "uint8", 255),
        (300, "int8", 44),
        (2.9, "int32", 2),
        (math.nan, "bool", True),
        (0, "bool", False),
        (True, "float32", 1.0),
        (2, "complex64", 2 + 0j),
    ],
)
def test_numbers_become_elements(value, dtype, expected):
    found = context.number(value, dtypes.of(dtype))
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(("value", "dtype"), [(math.inf, "int32"), (1j, "float32")])
def test_numbers_that_are_no_elements(value, dtype):
    with pytest.raises(NotLowerable, match=dtype):
        context.number(value, dtypes.of(dtype))


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "int64", "float32"])
def test_identities_of_extremes(name):
    dtype = getattr(torch, name)
    low, high = context.lowest(dtypes.of(name)), context.highest(dtypes.of(name))
    if dtype.is_floating_point:
        assert (low, high) == (-math.inf, math.inf)
    elif dtype == torch.bool:
        assert (low, high) == (False, True)
    else:
        assert (low, high) == (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def test_dimensions():
    assert context.normalize_dim(-1, 3) == 2
    assert context.normalize_dim(-1, 0) == 0
    assert context.normalize_dims(None, 3) == context.normalize_dims([], 3) == (0, 1, 2)
    assert context.normalize_dims([-1, 0], 3) == (0, 2)
    assert context.normalize_dims(0, 0) == ()
    with pytest.raises(NotLowerable, match="dimension 3 is out of range"):
        context.normalize_dim(3, 3)


TENSORS = [
    torch.zeros(2, dtype=torch.bfloat16),
    torch.zeros((), dtype=torch.float64),
    torch.zeros(2, dtype=torch.int8),
    torch.zeros((), dtype=torch.int64),
    torch.zeros(2, dtype=torch.bool),
    2.5,
    3,
]


def test_promotion_is_that_of_torch():
    builder = Builder([tensor_type(t) for t in TENSORS[:5]])
    operands = [*builder.parameters, *TENSORS[5:]]
    for x, left in zip(TENSORS, operands, strict=True):
        for y, right in zip(TENSORS, operands, strict=True):
            expected = dtypes.from_torch(torch.result_type(x, y))
            assert context.result_type(left, right) == expected


def test_refusals_of_a_context():
    builder = Builder([TensorType((2, 3), dtypes.of("float32"))])
    c = Context(builder, [None])
    with pytest.raises(NotLowerable, match="first output is no tensor"):
        _ = c.output
    with pytest.raises(NotLowerable, match="output 0 is no tensor"):
        c.zeros(0)
    with pytest.raises(NotLowerable, match="does not broadcast"):
        c.broadcast(builder.parameters[0], (2, 4))


def test_what_was_rounded_is_read_as_it_was():
    wide, half = (TensorType((2,), dtypes.of(name)) for name in ("float32", "bfloat16"))
    builder = Builder([wide, half], excess_precision=True)
    exact, given = builder.parameters
    c = Context(builder, [half])
    rounded = c.result(exact)
    assert c.widen(rounded) is exact
    assert c.arithmetic(rounded, 2)[0] is exact
    assert c.widen(rounded.rounded) is not exact
    # A conversion is one.
    assert c.cast(rounded, wide.dtype) is not exact
    assert c.widen(rounded, dtypes.of("float64")).type == TensorType((2,), dtypes.of("float64"))
    # What only chooses is wide where one of its values was.
    assert c.precise(given, given) == [given, given]
    left, right = c.precise(given, rounded)
    assert (left.type, right) == (wide, exact)

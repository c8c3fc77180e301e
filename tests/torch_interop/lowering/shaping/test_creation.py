import math

import pytest
import torch

from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.helpers import compiled
from tests.torch_interop.lowering.harness import check, lower

X = torch.tensor([[1.75, -2.5], [0.0, 300.0]])

# No integer holds some; of others a narrow one holds the lowest bits.
UNFIT = torch.tensor(
    [math.nan, math.inf, -math.inf, 1e19, -1e19, 3e9 + 1, -3e9 - 1, 2.0**31, 40000.5, -300.7],
    dtype=torch.float64,
)

IOTA = {"start": 3, "step": -2, "dtype": torch.int32, "device": "cpu", "requires_grad": False}

CASES = [
    ("aten.full.default", ([2, 3], math.nan), {"dtype": torch.bfloat16}),
    ("aten.full.default", ([], True), {}),
    ("aten.full.default", ([0], 1), {"dtype": torch.int32}),
    ("aten.full.default", ([2], -0.0), {}),
    ("aten.full_like.default", (X, 3), {"dtype": torch.int64}),
    ("aten.full_like.default", (X, -math.inf), {}),
    ("aten.new_full.default", (X, [2], 1.5), {}),
    ("aten.zeros.default", ([2, 2],), {"dtype": torch.bool}),
    ("aten.zeros_like.default", (X,), {}),
    ("aten.new_zeros.default", (X, [3]), {}),
    ("aten.ones_like.default", (X,), {"dtype": torch.int8}),
    ("aten.ones.default", ([2],), {}),
    ("aten.scalar_tensor.default", (2.5,), {"dtype": torch.float16}),
    ("aten.scalar_tensor.default", (7,), {"dtype": torch.int64}),
    (
        "prims.scalar_tensor.default",
        (2.5,),
        {"dtype": torch.bfloat16, "device": torch.device("cpu")},
    ),
    ("aten.fill.Scalar", (X, 2), {}),
    ("aten.fill.Tensor", (X, torch.tensor(7)), {}),
    ("aten.arange.default", (5,), {}),
    ("aten.arange.start", (2, 5.0), {}),
    ("aten.arange.start_step", (7, -3, -2), {}),
    ("aten.arange.start_step", (0, 1, 0.1), {}),
    ("aten.arange.start_step", (-1.5, 2, 0.5), {"dtype": torch.float16}),
    ("aten.arange.start_step", (0, 0, 1), {}),
    ("aten.arange.start_step", (0, 5), {"dtype": torch.float32}),
    ("aten.arange.start_step", (0, 300), {"dtype": torch.bfloat16}),
    ("prims.iota.default", (4,), IOTA),
    ("aten.eye.m", (2, 3), {}),
    ("aten._to_copy.default", (X,), {"dtype": torch.int32}),
    ("aten._to_copy.default", (X,), {"dtype": torch.bfloat16}),
    ("aten._to_copy.default", (X,), {"dtype": torch.bool}),
    ("aten._to_copy.default", (torch.tensor([math.nan, 0.0]),), {"dtype": torch.bool}),
    ("aten._to_copy.default", (torch.tensor([300, -1]),), {"dtype": torch.uint8}),
    ("aten._to_copy.default", (torch.tensor([-1.5, 300.7, 0.9, -7.0]),), {"dtype": torch.uint8}),
    ("aten._to_copy.default", (torch.tensor([-1.5, 171.0, -200.0]),), {"dtype": torch.int8}),
    *(
        ("aten._to_copy.default", (UNFIT.to(source),), {"dtype": target})
        for source in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
        for target in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    ),
    ("aten._to_copy.default", (torch.tensor([True, False]),), {"dtype": torch.float64}),
    ("aten._to_copy.default", (torch.tensor([1 + 2j]),), {"dtype": torch.complex128}),
    ("aten._to_copy.default", (torch.tensor([2j, 0j]),), {"dtype": torch.bool}),
    ("aten._to_copy.default", (X,), {"memory_format": torch.preserve_format}),
    ("prims.convert_element_type.default", (X, torch.float16), {}),
    ("aten.tril.default", (X.expand(3, 2, 2).contiguous(), -1), {}),
    ("aten.triu.default", (X, 0), {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_values_are_exact(name, args, kwargs):
    check(name, *args, exact=True, **kwargs)


@pytest.mark.parametrize(
    ("start", "end", "steps", "dtype"),
    [
        (4.3, 1, 50, torch.int64),
        (-7.9, 20.5, 13, torch.int32),
        (3, 9, 1, torch.int64),
        (0, 1, 0, torch.float32),
        (-1.5, 2.25, 11, torch.float32),
        (0.1, -5, 7, torch.float64),
        (0, 10, 6, torch.bfloat16),
        (1 + 2j, 3, 5, torch.complex64),
    ],
)
def test_numbers_between_two(start, end, steps, dtype):
    exact = not dtype.is_complex
    check("aten.linspace.default", start, end, steps, dtype=dtype, exact=exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_many_numbers_between_two(dtype):
    for steps in (2, 63, 1000, 3001):
        check("aten.linspace.default", -2.3, 7.1, steps, dtype=dtype, exact=True)


def test_uninitialized_tensors_are_zeros():
    for name, args in {
        "aten.empty.memory_format": ([2, 3],),
        "aten.empty_permuted.default": ([2, 3], [1, 0]),
        "aten.empty_strided.default": ([2, 3], [3, 1]),
        "aten.new_empty_strided.default": (X, [2, 3], [3, 1]),
        "aten.empty_like.default": (X,),
    }.items():
        (found,) = lower(name, *args)
        assert not found.any()


def test_conversion_to_a_sparse_layout_is_refused():
    from pjrt_bridge.stablehlo.builder.builder import Builder
    from pjrt_bridge.torch_interop.lowering.context import Context
    from pjrt_bridge.torch_interop.lowering.registry import find_lowering
    from tests.torch_interop.lowering.harness import tensor_type

    builder = Builder([tensor_type(X)])
    context = Context(builder, [tensor_type(X)])
    with pytest.raises(NotLowerable, match="layout"):
        find_lowering("aten._to_copy.default")(
            context, builder.parameters[0], layout=torch.sparse_coo
        )


@pytest.mark.parametrize("name", ["tril_indices", "triu_indices"])
def test_indices_of_triangles(name):
    for arguments in ((3, 4), (4, 3, 1), (4, 3, -2), (3, 5, 2), (0, 3), (3, 0), (5, 5, 9)):
        check(f"aten.{name}.default", *arguments)
        check(f"aten.{name}.default", *arguments, dtype=torch.int32)


def test_zeros_that_torch_does_not_store():
    check("aten._efficientzerotensor.default", [2, 3], dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("numbers", [(0, 1, 0.1), (-4, 4, 1.5), (5, -5, -0.3), (0, 3000, 7)])
def test_fractions_are_steps_in_a_compiled_graph_too(
    dtype: torch.dtype, numbers: tuple[float, float, float]
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(*numbers, dtype=dtype) + x

    x = torch.zeros((), dtype=dtype)
    torch.testing.assert_close(compiled(function)(x), function(x))


def test_floats_out_of_range_of_eight_bits_are_those_of_pytorch() -> None:
    def function(*given: torch.Tensor) -> list[torch.Tensor]:
        eights = (torch.float8_e4m3fn, torch.float8_e8m0fnu)
        return [x.to(dtype).float() for x in given for dtype in eights]

    types = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2)
    given = [torch.cat([UNFIT, torch.tensor([460.0, -470.0, 0.0])]).to(dtype) for dtype in types]
    for found, expected in zip(compiled(function)(*given), function(*given), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)

import math

import pytest
import torch

from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import check, lower

torch.manual_seed(0)
X = torch.arange(60.0).reshape(3, 4, 5)
CUBES = torch.arange(120.0).reshape(2, 3, 4, 5)
N = torch.tensor([2, -1, 0])
J = torch.tensor([[0], [-3]])
K = torch.tensor([4, 1, -5])
ROWS = torch.tensor([[0, 2, 1, 2], [2, 0, 0, 1]])

READS = [
    ("aten.index.Tensor", (X, [N]), {}),
    ("aten.index.Tensor", (X, [None, J]), {}),
    ("aten.index.Tensor", (X, [N, J]), {}),
    ("aten.index.Tensor", (X, [N, J, K]), {}),
    ("aten.index.Tensor", (X, [N, None, K]), {}),
    ("aten.index.Tensor", (CUBES, [None, N, None, K]), {}),
    ("aten.index.Tensor", (X, [None, N, K.to(torch.int32)]), {}),
    ("aten.index.Tensor", (X, [torch.tensor(-1)]), {}),
    ("aten.index.Tensor", (X, [None, torch.empty(0, dtype=torch.int64)]), {}),
    ("aten._unsafe_index.Tensor", (X.bfloat16(), [N, J]), {}),
    ("aten.index_select.default", (X, -1, torch.tensor([4, 0, 0])), {}),
    ("aten.index_select.default", (X, 0, torch.tensor(1)), {}),
    ("aten.index_select.default", (X[0, 0, 0], 0, torch.tensor([0])), {}),
    ("aten.embedding.default", (X[:, 0].contiguous(), ROWS), {}),
    ("aten.embedding.default", (X[:, 0].contiguous(), ROWS.int(), 0), {}),
    ("aten.embedding.default", (X[:, 0].contiguous(), ROWS[0, 0]), {}),
    ("aten.take.default", (X, J), {}),
    ("aten.take.default", (X[:0], ROWS[:0]), {}),
    ("aten.index.Tensor", (X[:0], [ROWS[:0]]), {}),
    ("aten.gather.default", (X, 0, torch.randint(3, (2, 4, 5))), {}),
    ("aten.gather.default", (X, -1, torch.randint(5, (3, 2, 7))), {}),
    ("aten.gather.default", (X, 1, torch.empty(3, 0, 5, dtype=torch.int64)), {}),
    ("aten.gather.default", (X[0, 0], 0, torch.tensor([3, 3])), {}),
    ("aten.gather.default", (torch.tensor(3.0), 0, torch.tensor(0)), {}),
    ("aten.gather.default", (torch.tensor([3.0, 4.0]), 0, torch.tensor([1])), {}),
]


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), READS, ids=[f"{i}-{c[0]}" for i, c in enumerate(READS)]
)
def test_reading(name, args, kwargs):
    check(name, *args, exact=True, **kwargs)


def test_a_mask_as_index_is_refused():
    with pytest.raises(NotLowerable, match="mask"):
        lower_with_mask()


def lower_with_mask():
    from pjrt_bridge.stablehlo.builder.builder import Builder
    from pjrt_bridge.torch_interop.lowering.context import Context
    from pjrt_bridge.torch_interop.lowering.registry import find_lowering
    from tests.torch_interop.lowering.harness import tensor_type

    builder = Builder([tensor_type(X), tensor_type(X > 0)])
    x, mask = builder.parameters
    return find_lowering("aten.index.Tensor")(Context(builder, [tensor_type(X)]), x, [mask])


ZEROS = torch.zeros(3, 4, 5)
H = torch.tensor([1, 1, 0])
D = torch.tensor([[0, 1, 1], [0, 2, 2]])
SRC = torch.arange(1.0, 7.0).reshape(2, 3)
BASE = torch.full((3, 3), 0.5)
WIDE = torch.full((3, 5), 10.0)

WRITES = [
    ("aten.index_put.default", (ZEROS, [N], torch.tensor(2.0)), {}),
    ("aten.index_put.default", (ZEROS, [N], torch.randn(3, 4, 5)), {}),
    ("aten.index_put.default", (ZEROS, [None, N[:2]], torch.randn(2, 5)), {}),
    ("aten.index_put.default", (ZEROS, [N, None, K], torch.randn(3, 4)), {}),
    ("aten.index_put.default", (CUBES, [None, N, None, K], torch.randn(3, 2, 4)), {}),
    ("aten.index_put.default", (ZEROS, [H], torch.ones(3, 4, 5), True), {}),
    ("aten.index_put.default", (X.int(), [H, H], torch.tensor(7, dtype=torch.int32), True), {}),
    ("aten.index_put.default", (ZEROS.half(), [H, J], torch.ones(1).half(), True), {}),
    ("aten.index_put.default", (X, [X > 30], torch.tensor(-1.0)), {}),
    ("aten.index_put.default", (X, [X > 30], torch.tensor([-1.0])), {}),
    ("aten.index_put.default", (X, [N > 0], torch.randn(4, 5)), {}),
    ("aten.index_put.default", (X, [N > 0], torch.randn(1, 4, 5), True), {}),
    ("aten.index_put.default", (X, [None, X[0] > 3], torch.tensor(9.0)), {}),
    ("aten.index_put.default", (X[:0], [ROWS[:0]], torch.tensor(1.0)), {}),
    ("aten._unsafe_index_put.default", (ZEROS, [H, None], torch.ones(4, 5), True), {}),
    ("aten.scatter.src", (BASE, 0, torch.tensor([[0, 1, 2], [2, 0, 1]]), SRC), {}),
    ("aten.scatter.src", (WIDE, 1, torch.tensor([[0, 4], [1, 2]]), SRC), {}),
    ("aten.scatter.src", (torch.tensor(1.0), 0, torch.tensor(0), torch.tensor(5.0)), {}),
    ("aten.scatter.value", (BASE, 1, torch.tensor([[1], [0], [2]]), -1.0), {}),
    ("aten.scatter.value", (BASE.bfloat16(), -2, D, 3), {}),
    ("aten.scatter.value", (BASE, 0, D[:0], 3), {}),
    ("aten.scatter.reduce", (BASE, 0, D, SRC), {"reduce": "add"}),
    ("aten.scatter.reduce", (BASE, 0, D, SRC), {"reduce": "multiply"}),
    ("aten.scatter.value_reduce", (BASE, 0, D, 2.0), {"reduce": "add"}),
    ("aten.scatter_add.default", (BASE, 0, D, SRC), {}),
    ("aten.scatter_add.default", (WIDE.int(), 1, D, SRC.int()), {}),
    ("aten.scatter_add.default", (WIDE.bfloat16(), 1, D, SRC.bfloat16()), {}),
    ("aten.index_add.default", (BASE, 1, H, torch.randn(3, 3)), {"alpha": 2}),
    ("aten.index_copy.default", (WIDE, -1, torch.tensor([4, 0]), torch.randn(3, 2)), {}),
    ("aten.masked_scatter.default", (X, X % 2 == 0, torch.randn(60)), {}),
    ("aten.masked_scatter.default", (X, X[0, 0] % 3 == 0, torch.randn(60)), {}),
    ("aten.embedding_dense_backward.default", (torch.randn(2, 4, 3), ROWS, 5, -1, False), {}),
    ("aten.embedding_dense_backward.default", (torch.randn(2, 4, 3), ROWS, 5, 2, False), {}),
    ("aten.embedding_dense_backward.default", (torch.randn(2, 4, 3), ROWS.int(), 5, 0, True), {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), WRITES, ids=[f"{i}-{c[0]}" for i, c in enumerate(WRITES)]
)
def test_writing(name, args, kwargs):
    check(name, *args, **kwargs)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(reduce, include_self):
    name = "aten.scatter_reduce.two"
    check(name, BASE, 0, D, SRC, reduce, include_self=include_self)
    check(name, WIDE, 1, D, SRC - 4, reduce, include_self=include_self)
    whole = (WIDE.long(), 1, D, SRC.long() - 3)
    check(name, *whole, reduce, include_self=include_self)
    if reduce in ("sum", "prod", "mean"):
        check(name, WIDE + 1j, 1, D, SRC - 4j, reduce, include_self=include_self)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_index_reduce(reduce, include_self):
    name = "aten.index_reduce.default"
    check(name, WIDE, 0, H[:2], torch.randn(2, 5), reduce, include_self=include_self)
    check(name, WIDE, -1, H, torch.randn(3, 3), reduce, include_self=include_self)


@pytest.mark.parametrize("accumulate", [False, True])
def test_values_written_with_a_mask(accumulate):
    name, x = "aten.index_put.default", torch.randn(3, 4, 5)
    rows, places = torch.tensor([True, False, True]), torch.randn(3, 4) > 0
    columns = torch.tensor([False, True, True, False])
    hits = int(places.sum())
    for indices, shape in (
        ([rows], (2, 4, 5)),
        ([rows], (2, 1, 5)),
        ([rows], (1, 4, 5)),
        ([rows], (4, 1)),
        ([rows & False], (0, 4, 5)),
        ([places], (hits, 5)),
        ([places], (hits, 1)),
        ([x > 0], (int((x > 0).sum()),)),
        ([None, columns], (3, 2, 5)),
        ([None, columns], (2, 5)),
        ([None, columns], (3, 1, 5)),
        ([None, places[:, :1].expand(3, 5).new_ones(4, 5)], (3, 20)),
    ):
        check(name, x, indices, torch.randn(shape), accumulate)


def test_a_mask_beside_other_indices_is_refused():
    mask = torch.tensor([True, False, True])
    with pytest.raises(NotLowerable, match="beside other indices"):
        lower("aten.index_put.default", BASE, [mask, torch.tensor([0, 1])], torch.tensor(1.0))


def test_values_of_another_type_are_written_with_a_mask_as_in_eager() -> None:
    def write(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.index_put(x, [torch.tensor([True, False, True])], values)

    x, compiled = torch.zeros(3, 2), torch.compile(write, backend="pjrt")
    number = torch.tensor(1.5, dtype=torch.bfloat16)
    assert torch.equal(compiled(x, number), write(x, number))
    with pytest.raises(RuntimeError, match="dtypes match"), pytest.warns(match="type"):
        compiled(x, torch.ones(2, 2, dtype=torch.bfloat16))


@pytest.mark.parametrize("size", [0, 2, 9])
def test_nonzero_of_a_given_size(size):
    for x in (torch.eye(3), torch.tensor([[0, -1, 2]]), torch.tensor([True]), torch.zeros(0, 3)):
        check("aten.nonzero_static.default", x, size=size, fill_value=-7)
    check("aten.nonzero_static.default", torch.tensor(math.nan), size=size)


def test_repeated_indices_of_a_given_size():
    for dtype in (torch.int64, torch.int32):
        repeats = torch.tensor([2, 0, 3, 0], dtype=dtype)
        check("aten.repeat_interleave.Tensor", repeats, output_size=5)


@pytest.mark.parametrize("accumulate", [False, True])
def test_put(accumulate):
    index, source = torch.tensor([[0, -1], [3, 5]]), torch.tensor([[1, 2], [3, 4]])
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = torch.arange(12).reshape(3, 4).to(dtype)
        check("aten.put.default", x, index, source.to(dtype), accumulate)
        check("aten.put.default", x, index[:0], source[:0].to(dtype), accumulate)
    check("aten.put.default", torch.zeros(3), torch.tensor([1, 1]), torch.ones(2), True)


def test_gradient_of_a_masked_source():
    grad, mask = torch.randn(3, 4), torch.tensor([True, False, True, True])
    check("aten.masked_scatter_backward.default", grad, mask.expand(3, 4), [5, 2])
    check("aten.masked_scatter_backward.default", grad, torch.zeros(3, 4) > 0, [5])

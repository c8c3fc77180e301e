"""What PyTorch's kernels refuse stays with PyTorch, which raises what it raises in eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.passes.padding import GraphPadding
from pjrt_bridge.torch_interop.placement import refusals
from tests.torch_interop.helpers import TRAINING, assert_compiled, compiled
from tests.torch_interop.passes.padding.rows import SIZE, symbolic

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
]

EMPTY = torch.empty(0, 3)
LONG = torch.ones(1, 3, 4, 4, dtype=torch.int64)


def _softmax_backward(grad: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._softmax_backward_data(grad, output, 1, torch.float32)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "max": (lambda x: x.max(), (EMPTY,)),
    "min of integers": (lambda x: x.min(), (EMPTY.int(),)),
    "max along": (lambda x: x.max(0), (EMPTY,)),
    "median along": (lambda x: x.median(0), (EMPTY,)),
    "mm": (torch.mm, (torch.ones(3, 3), torch.ones(3, 3, dtype=torch.int64))),
    "large mm": (torch.mm, (torch.ones(300, 200), torch.ones(200, 100, dtype=torch.int64))),
    "mv": (torch.mv, (torch.ones(3, 3).half(), torch.ones(3))),
    "adaptive average": (lambda x: functional.adaptive_avg_pool2d(x, 2), (LONG,)),
    "adaptive maximum": (lambda x: functional.adaptive_max_pool2d(x, 2), (LONG,)),
    "average": (lambda x: functional.avg_pool2d(x, 2), (LONG.int(),)),
    "large average": (
        lambda x: functional.avg_pool2d(x, 2),
        (torch.ones(4, 9, 40, 40, dtype=torch.int32),),
    ),
    "softmax backward": (_softmax_backward, (torch.ones(2, 3).int(), torch.ones(2, 3).int())),
    "softmax backward of two types": (
        _softmax_backward,
        (torch.ones(2, 3), torch.ones(2, 3).double()),
    ),
    "log softmax backward": (
        lambda x, y: torch.ops.aten._log_softmax_backward_data(x, y, 1, torch.complex64),
        (torch.ones(2, 3, dtype=torch.complex64), torch.ones(2, 3, dtype=torch.complex64)),
    ),
}


REFUSED["draws without replacement"] = (lambda x: x.multinomial(5), (torch.ones(2, 4),))
REFUSED["no draws"] = (lambda x: x.multinomial(0), (torch.ones(2, 4),))
REFUSED["float positions"] = (
    lambda x, i: x.index_add(0, i, x),
    (torch.ones(2, 3), torch.tensor([0.0, 1.0])),
)
REFUSED["segments of bools"] = (
    lambda x, o: torch.segment_reduce(x, "sum", offsets=o),
    (torch.ones(4, dtype=torch.bool), torch.tensor([0, 2, 4])),
)
REFUSED["integer probabilities"] = (lambda x: x.multinomial(2), (torch.ones(4).int(),))


NARROW = torch.ones(2, dtype=torch.int8)
REFUSED["a fill out of range"] = (
    lambda x: x + torch.full((2,), 300, dtype=torch.int8),
    (NARROW,),
)
REFUSED["a large fill out of range"] = (
    lambda x: x + torch.full((100, 100), 1e300),
    (torch.ones(1),),
)
REFUSED["a choice out of range"] = (lambda x: torch.where(x > 1, x, 300), (NARROW,))
REFUSED["steps out of range"] = (
    lambda x: x + torch.linspace(0, 300, 2, dtype=torch.uint8),
    (NARROW,),
)
REFUSED["a range of complex numbers"] = (
    lambda x: x + torch.arange(2, dtype=torch.complex64),
    (torch.ones(2),),
)
REFUSED["a range of no truths"] = (
    lambda x: torch.cat([x, torch.arange(0, dtype=torch.bool)]),
    (torch.ones(2),),
)
REFUSED["more numbers in another order than bytes hold"] = (
    lambda x: x + torch.randperm(300, dtype=torch.uint8),
    (torch.ones(300),),
)
REFUSED["more of them than half precision counts"] = (
    lambda x: x + torch.randperm(3000, dtype=torch.float16),
    (torch.ones(3000),),
)
REFUSED["no numbers in another order of a complex type"] = (
    lambda x: torch.cat([x, torch.randperm(0, dtype=torch.complex64)]),
    (torch.ones(2),),
)
REFUSED["draws beyond a type"] = (
    lambda x: x + torch.randint(300, (2,), dtype=torch.uint8),
    (torch.ones(2),),
)
REFUSED["no draws of a complex type"] = (
    lambda x: torch.cat([x, torch.randint(6, (0,), dtype=torch.complex64)]),
    (torch.ones(2),),
)
REFUSED["large and out of range"] = (
    lambda x: x.masked_fill(x > 1, -1e300),
    (torch.ones(100, 100),),
)


LARGE = torch.ones(20, 20, 20)
REFUSED["a source for a tensor without elements"] = (
    lambda x, y: x.slice_scatter(y, 0, 0, 20),
    (torch.empty(0, 20, 20), LARGE),
)
REFUSED["a source for a slice without elements"] = (
    lambda x, y: x.slice_scatter(y, 0, 0, 20),
    (torch.empty(20, 0, 20), LARGE),
)
REFUSED["elements for none"] = (
    lambda x, y: x.select_scatter(y, 0, 0),
    (torch.empty(5, 0, 90), torch.ones(90, 90)),
)


@pytest.mark.parametrize("name", REFUSED)
def test_the_compiled_call_raises_what_eager_raises(name: str) -> None:
    function, arguments = REFUSED[name]
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(*arguments)
    with pytest.raises(type(expected.value)) as found:
        compiled(function, fallback="host")(*arguments)
    assert str(found.value) == str(expected.value)


_BOOLS = torch.ones(5, 9, dtype=torch.bool)
_INTEGERS = torch.ones(5, 9, dtype=torch.int64)
OF_CHANGING_SIZES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "largest": (lambda x: x.topk(3), (_BOOLS,)),
    "rank": (lambda x: x.kthvalue(2), (_BOOLS,)),
    "median": (torch.median, (_BOOLS,)),
    "deviation": (torch.std, (_INTEGERS,)),
    "variance along": (lambda x: x.var(1), (_INTEGERS.to(torch.uint8),)),
    "group norm": (lambda x: functional.group_norm(x[None], 1), (_BOOLS.to(torch.complex64),)),
    "distances": (lambda x: torch.cdist(x, x), (_BOOLS.bfloat16(),)),
    "loss": (functional.nll_loss, (_INTEGERS, torch.ones(5, dtype=torch.int64))),
    "classes": (functional.cross_entropy, (torch.ones(5, 9), torch.ones(5, dtype=torch.int32))),
    "adaptive average": (lambda x: functional.adaptive_avg_pool1d(x[None], 2), (_INTEGERS,)),
}


@pytest.mark.parametrize("name", OF_CHANGING_SIZES)
def test_padding_does_not_hide_what_eager_refuses(name: str) -> None:
    function, arguments = OF_CHANGING_SIZES[name]
    with pytest.raises(RuntimeError) as expected:
        function(*arguments)
    changing = torch.compile(function, backend="pjrt", dynamic=True)
    with pytest.raises(type(expected.value)) as found:
        changing(*arguments)
    assert str(found.value) == str(expected.value)


def test_what_is_not_refused_is_padded_whatever_the_example_sizes() -> None:
    def function(x: torch.Tensor, at: torch.Tensor) -> Any:
        y = x.index_add(0, at, x.bfloat16().topk(3).values.float().sum(1, keepdim=True) * x)
        return y.std(1), functional.nll_loss(y, at), y.kthvalue(2), at.median()

    args = [torch.randn(SIZE, 9), torch.arange(SIZE)]
    graph = symbolic(function, *args)
    assert GraphPadding(graph, [64], refused=refusals.refused_for_types).refusals(args) == []


ACCEPTED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "max along another": (lambda x: x.max(1).values, (EMPTY,)),
    "sum": (lambda x: x.sum(0), (EMPTY,)),
    "mixed sum": (torch.add, (torch.ones(3), torch.ones(3, dtype=torch.int64))),
    "division": (torch.div, (torch.ones(3).int(), torch.ones(3, dtype=torch.int64))),
    "slice": (
        lambda x, y: x.slice_scatter(y, 1, 3, 13),
        (torch.ones(20, 20, 20).long(), torch.ones(20, 10, 20).long()),
    ),
    "repetitions": (
        lambda x: torch.repeat_interleave(x, output_size=5),
        (torch.tensor([1, 3, 0, 1]),),
    ),
    "large half": (torch.mm, (torch.ones(300, 200).half(), torch.ones(200, 100).half())),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_eager_accepts_stays_on_the_device(name: str) -> None:
    function, arguments = ACCEPTED[name]
    torch.testing.assert_close(compiled(function)(*arguments), function(*arguments))


def test_what_only_a_decomposition_refuses_is_not_decomposed() -> None:
    x = torch.tensor([complex(1, float("nan")), 2 + 3j])
    found = compiled(torch.nan_to_num, fallback="host")(x)
    assert torch.equal(found, torch.nan_to_num(x))


def tensor(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtypes.of(dtype))


def refusal(operator: Any, *arguments: Any, result: TensorType) -> str | None:
    return refusals.refusal(operator, (arguments, {}), (result,))


def test_a_trial_changes_no_generator_and_warns_of_nothing() -> None:
    state = torch.get_rng_state()
    aten = torch.ops.aten
    assert refusal(aten.bernoulli.p, tensor(3), 0.5, result=tensor(3)) is None
    assert refusal(aten.rrelu_with_noise_functional.default, tensor(3), result=tensor(3))
    assert refusal(aten.exp.default, tensor(3), result=tensor(3)) is None
    assert torch.equal(state, torch.get_rng_state())


def test_a_draw_changes_no_generator() -> None:
    draw = torch.ops.aten.multinomial.default
    weights, result = tensor(4), tensor(2, dtype="int64")
    state = torch.get_rng_state()
    assert refusal(draw, weights, 2, result=result) is None
    said = refusal(draw, weights, 5, result=result)
    assert said is not None
    assert "n_sample > prob_dist.size(-1)" in said
    assert torch.equal(state, torch.get_rng_state())


def test_what_is_unknown_is_not_refused() -> None:
    view = torch.ops.aten._unsafe_view.default
    whole = tensor(100, 100, dtype="float16")
    # With the sizes replaced the product is none of the new ones.
    assert refusal(view, whole, [10000], result=tensor(10000, dtype="float16")) is None
    assert refusal(torch.ops.mylib, tensor(3), result=tensor(3)) is None


def test_autocast_of_the_caller_does_not_matter() -> None:
    mm = torch.ops.aten.mm.default
    with torch.autocast("cpu"):
        said = refusal(mm, tensor(5, 6), tensor(6, 5, dtype="bfloat16"), result=tensor(5, 5))
    assert said is not None
    assert "dtype" in said


def test_the_reason_is_what_pytorch_says() -> None:
    mm = torch.ops.aten.mm.default
    said = refusal(mm, tensor(3, 3), tensor(3, 3, dtype="int64"), result=tensor(3, 3))
    assert said == "expected m1 and m2 to have the same dtype, but got: float != long int"


def test_backward_takes_what_forward_gave_whatever_fakes_promise() -> None:
    # Of float32 weights and a bfloat16 input fakes promise other types of the statistics than
    # kernels give; ATen's kernel of backward refuses the promised ones.
    norm = torch.nn.LayerNorm(16)
    x = torch.randn(2, 3, 16, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return norm((x * 2).bfloat16()).float().square().mean()

    compiled(step)(x).backward()
    assert x.grad is not None
    assert_compiled(*TRAINING)


def test_a_kernel_that_reads_whole_blocks() -> None:
    """It ends the process where it is tried with sizes that are no multiples."""
    x = torch.rand(32, 32, dtype=torch.bfloat16)
    weight = torch.randint(-9, 9, (48, 32), dtype=torch.int8)
    scales = torch.rand(48, dtype=torch.bfloat16)

    def product(x: torch.Tensor) -> torch.Tensor:
        return torch._weight_int8pack_mm(x, weight, scales) + 1

    found = torch.compile(product, backend="pjrt")(x)
    # One unit in the last place of the product, before the addition.
    torch.testing.assert_close(found, product(x), rtol=0.02, atol=0.05)


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "merged": lambda x: torch.stack([x, x], 1).reshape(-1),
    "padded": lambda x: functional.pad(x, (1, 2)),
    "last": lambda x: x[-2:],
    "repeated": lambda x: x.repeat(2),
    "rolled": lambda x: x.roll(1),
    "all": lambda x: x.all(),
    "all along": lambda x: x[None].all(1),
}


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2])
@pytest.mark.parametrize("move", MOVES)
def test_the_bridge_may_use_what_pytorch_refuses(move: str, dtype: torch.dtype) -> None:
    """`index_select` knows no unsigned types; the one of padding is no call of the program's."""
    forbidding = {"fallback": "error"}
    run = torch.compile(MOVES[move], backend="pjrt", dynamic=True, options=forbidding)
    for size in (3, 5, 6):
        x = torch.arange(size).to(dtype)
        torch.testing.assert_close(run(x), MOVES[move](x), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dynamic", [False, True])
def test_all_of_a_type_that_pytorch_does_not_negate(dynamic: bool) -> None:
    """No plugin has it, so that PyTorch runs the graph: with the operator that was called."""
    run = torch.compile(lambda x: (x.all(), x.all(0)), backend="pjrt", dynamic=dynamic)
    for size in (2, 3):
        x = torch.tensor([[1, 0, 2]] * size, dtype=torch.complex32)
        torch.testing.assert_close(run(x), (x.all(), x.all(0)))

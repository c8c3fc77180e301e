"""Running sums and products by the custom call: values, operators of PyTorch, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.kernel_attributes import Scan
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import scans
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.scans import HOWS, TARGET
from tests.cpu.helpers import emitted
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("fresh")
RUNNING: dict[Scan, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda x, dim: x.cumsum(dim, dtype=x.dtype),
    "prod": lambda x, dim: x.cumprod(dim, dtype=x.dtype),
    "logsumexp": torch.logcumsumexp,
}
FLOATS = (torch.float32, torch.bfloat16, torch.float64)
WHOLE = (torch.int32, torch.int64)


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scans.can_scan(client)
    monkeypatch.setattr(scans, "LEAST", 1)


def drawn(seed: int, shape: Sequence[int], dtype: torch.dtype, how: Scan) -> torch.Tensor:
    """Numbers of which none of the results is subnormal, and some that are no numbers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype in WHOLE:
        # They wrap around.
        limits = torch.iinfo(dtype)
        return torch.randint(limits.min, limits.max, shape, dtype=dtype, generator=generator)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if how == "prod":
        x = x.sign() * (1 + x / 1000)
    if seed % 2:
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
        places = torch.rand(shape, generator=generator) < 1e-2
        chosen = special[torch.randint(5, shape, generator=generator)]
        x = torch.where(places, chosen.double(), x)
    return x.to(dtype)


def by_call(
    client: Client, how: Scan, x: torch.Tensor, dim: int, *, backward: bool = False
) -> torch.Tensor:
    """A scan that is a program of its own."""
    kernels = XlaKernels()
    kernels.can_scan = True
    b = Builder([TensorType(tuple(x.shape), dtypes.from_torch(x.dtype))])
    made = kernels.scan(b, how, b.parameters[0], dim, backward=backward)
    assert made is not None
    return torch.from_dlpack(client.compile(b.finish([made]))(x)[0])


def expected(how: Scan, x: torch.Tensor, dim: int, *, backward: bool) -> torch.Tensor:
    """What PyTorch gives."""
    return RUNNING[how](x.flip(dim), dim).flip(dim) if backward else RUNNING[how](x, dim)


@settings(max_examples=examples(120), deadline=None)
@given(st.data())
def test_they_are_those_of_pytorch(client: Client, data: st.DataObject) -> None:
    """Bit for bit where the elements are combined in order, or are integers."""
    how = data.draw(st.sampled_from(HOWS))
    takes = {"sum": (*FLOATS, *WHOLE), "prod": FLOATS, "logsumexp": FLOATS[:2]}[how]
    dtype = data.draw(st.sampled_from(takes))
    # Vectors, blocks of columns, lines side by side, and what is left of each.
    lengths, widths = (1, 7, 8, 63, 200, 1100), (1, 2, 5, 15, 16, 33, 600)
    shape = [data.draw(st.sampled_from(each)) for each in ((1, 3, 21), lengths, widths)]
    x = drawn(data.draw(st.integers(0, 99)), shape, dtype, how)
    backward = data.draw(st.booleans())
    found = by_call(client, how, x, 1, backward=backward)
    wanted = expected(how, x, 1, backward=backward)
    if dtype in WHOLE or (how != "logsumexp" and (shape[2] > 1 or dtype == torch.float64)):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    else:
        close = 2e-2 if dtype == torch.bfloat16 else 2e-7
        torch.testing.assert_close(found, wanted, rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("shape", [(200_001,), (3, 70_000), (300, 2000), (2, 400, 700), (900, 40)])
@pytest.mark.parametrize("backward", [False, True])
def test_large_ones_are_divided_among_threads(
    client: Client, how: Scan, shape: tuple[int, ...], backward: bool
) -> None:
    types = (torch.float32, torch.int64) if how == "sum" else (torch.float32,)
    for dtype in types:
        x = drawn(0, shape, dtype, how)
        for dim in range(len(shape)):
            found = by_call(client, how, x, dim, backward=backward)
            wanted = expected(how, x, dim, backward=backward)
            close = 0 if dtype in WHOLE else 3e-7
            torch.testing.assert_close(found, wanted, rtol=close, atol=close)


def test_sums_of_float32_are_in_float64(client: Client) -> None:
    """Errors are one rounding of each result, as PyTorch's are, along rows and columns."""
    x = drawn(0, (60_000, 20), torch.float32, "sum").abs()
    exact = x.double().cumsum(0)
    for found in (by_call(client, "sum", x, 0), by_call(client, "sum", x.T.contiguous(), 1).T):
        assert ((found - exact).abs() <= exact * 2.0**-24).all()


def test_logarithms_near_zero_have_all_their_digits(client: Client) -> None:
    """The sum of a 1 and of what is small is not rounded."""
    x = torch.tensor([0.0, -30.0, -25.0, -60.0, 0.0, -10.0, 5.0, -torch.inf, 90.0])
    x = x[:, None].expand(-1, 40).contiguous()
    for found in (by_call(client, "logsumexp", x, 0), by_call(client, "logsumexp", x.T, 1).T):
        torch.testing.assert_close(found, x.logcumsumexp(0), rtol=2e-7, atol=0)


def test_logarithms_of_what_is_not_finite(client: Client) -> None:
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[-inf, -inf, 1, 2, inf, 3, inf, nan, 4], [-inf, nan, 1, 2, 3, 4, 5, 6, 7]])
    for dim, turned in ((1, x), (0, x.T.contiguous())):
        found = by_call(client, "logsumexp", turned, dim)
        torch.testing.assert_close(found, turned.logcumsumexp(dim), equal_nan=True)


def test_sums_are_the_same_whatever_threads_there_are(client: Client) -> None:
    x = drawn(0, (1, 300_000), torch.float32, "sum")
    first = by_call(client, "sum", x, 1)
    assert all(torch.equal(by_call(client, "sum", x, 1), first) for _ in range(20))


def graph(x: torch.Tensor) -> list[torch.Tensor]:
    """Along all dimensions, of other types, of no element, and of one that has no dimension."""
    return [
        x.cumsum(0),
        x.cumprod(1),
        x.cumsum(-1),
        x.logcumsumexp(1),
        (x > 0).cumsum(2),
        x.bfloat16().cumsum(0, dtype=torch.float32),
        x.permute(2, 0, 1).cumsum(0),
        x[:0].cumsum(1),
        x[:, :0].cumsum(1),
        x[0, 0, 0].cumsum(0),
        x[:0].logcumsumexp(0),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_operators_of_pytorch(dtype: torch.dtype) -> None:
    x = torch.randn(5, 30, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    torch.testing.assert_close(torch.compile(graph, backend="pjrt")(x), graph(x))
    calls = emitted(lambda *given: graph(*given), x).count(f"@{TARGET}(")
    assert calls >= (6 if dtype == torch.float64 else 7)


def test_what_is_reversed_before_and_behind_is_scanned_backward() -> None:
    """As gradients are: nothing is reversed in memory."""
    x = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))

    def suffixes(x: torch.Tensor) -> torch.Tensor:
        return x.flip(0).cumsum(0).flip(0)

    text = emitted(suffixes, x)
    assert text.count(f"@{TARGET}(") == 1
    assert "stablehlo.reverse" not in text
    torch.testing.assert_close(torch.compile(suffixes, backend="pjrt")(x), suffixes(x))
    one = torch.compile(lambda x: x.flip(0).cumsum(0), backend="pjrt")(x)
    torch.testing.assert_close(one, x.flip(0).cumsum(0))
    other = torch.compile(lambda x: x.flip(0, 1).cumsum(0).flip(1), backend="pjrt")(x)
    torch.testing.assert_close(other, x.flip(0, 1).cumsum(0).flip(1))


def test_gradients() -> None:
    x = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    sides = [x.clone().requires_grad_() for _ in range(2)]

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x.cumsum(0).sin() + x.logcumsumexp(1)).sum()

    loss(sides[0]).backward()
    torch.compile(loss, backend="pjrt")(sides[1]).backward()
    torch.testing.assert_close(sides[1].grad, sides[0].grad)


X, HOW = TensorType((4, 8, 2), dtypes.of("float32")), {"how": np.array([0, 0])}
REFUSED: dict[str, tuple[Sequence[TensorType], TensorType, dict[str, Any], str]] = {
    "two operands": ((X, X), X, HOW, "one operand and one result"),
    "no attribute": ((X,), X, {}, "not those that the bridge writes"),
    "another way": ((X,), X, {"how": np.array([3, 0])}, "not those that the bridge writes"),
    "a negative way": ((X,), X, {"how": np.array([-1, 0])}, "not those that the bridge writes"),
    "another direction": ((X,), X, {"how": np.array([0, 2])}, "not those that the bridge writes"),
    "a longer attribute": ((X,), X, {"how": np.zeros(3, int)}, "not those that the bridge writes"),
    "another result": ((X,), TensorType(X.shape, dtypes.of("float64")), HOW, "element types"),
    "complex numbers": ((TensorType(X.shape, dtypes.of("complex64")),), X, HOW, "element types"),
    "logarithms of integers": (
        (TensorType(X.shape, dtypes.of("int32")),),
        TensorType(X.shape, dtypes.of("int32")),
        {"how": np.array([2, 0])},
        "element types",
    ),
    "another shape": ((X,), TensorType((8, 4, 2), X.dtype), HOW, "do not fit each other"),
    "another rank": ((X,), TensorType((64,), X.dtype), HOW, "do not fit each other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    types, result, config, reason = REFUSED[name]
    b = Builder(types)
    program = b.finish(b.custom_call(TARGET, b.parameters, [result], backend_config=config))
    arrays: list[Any] = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(client.compile(program)(*arrays)[0])


@pytest.mark.parametrize("shape", [(0, 8, 2), (4, 0, 2), (4, 8, 0)])
def test_of_no_element(client: Client, shape: tuple[int, ...]) -> None:
    b = Builder([TensorType(shape, X.dtype)])
    made = scans.scan_along(b, "sum", b.parameters[0], backward=True)
    (found,) = client.compile(b.finish([made]))(np.zeros(shape, np.float32))
    assert np.asarray(found).shape == shape


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_scan

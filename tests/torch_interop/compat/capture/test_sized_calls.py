"""Calls that take a size as a plain integer need no graph for each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

from pjrt_bridge.torch_interop import compat, compiled_graphs
from tests.torch_interop.compat.capture.helpers import (
    LENGTHS,
    MATRICES,
    SIGNALS,
    check_few_graphs,
)
from tests.torch_interop.helpers import assert_same, compiled


def _pairs(x: torch.Tensor) -> torch.Tensor:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1)
    return x[first] - x[second]


def _warped(x: torch.Tensor) -> torch.Tensor:
    theta = torch.tensor([[[0.9, 0.1, 0.2], [-0.1, 0.8, 0.0]]]).expand(x.shape[0], 2, 3)
    return functional.grid_sample(
        x, functional.affine_grid(theta, x.shape, align_corners=False), align_corners=False
    )


def _written(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    made[torch.tensor([1, 0]), :, x.shape[2] - 2] = 3.0
    # AOTAutograd cannot trace the gradient of what is written where a mask is true.
    rows = made.detach()
    rows[:, torch.tensor([[True, False, True]])[0], x.shape[2] // 2] = x.detach()[:, :2, 0]
    return made


def _written_at_numbers(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    made[:, 1, x.shape[2] // 2] = 3.0
    made[0, x.shape[1] - 1, x.shape[2] - 1] = x[0, 0, 0]
    made.mT[x.shape[0] - 1, x.shape[2] // 3] += 1
    return made


def _written_at_lists(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    made[..., [0, x.shape[2] // 2]] = x[..., [x.shape[2] - 1, 1]]
    made[:, [1, 0], [[x.shape[2] // 3], [0]]] += 1
    return made


def _in_blocks(x: torch.Tensor) -> torch.Tensor:
    made = [x[:, :, at : at + 10].softmax(2) * at for at in range(0, x.shape[2], 10)]
    last = [x[:, :, at] for at in range(x.shape[2] - 2, x.shape[2])]
    behind = [x[:, :, at] for at in range(x.shape[2] - 1, -1, -10)]
    third = x.shape[2] // 3
    starts = [x[:, :, at] for at in range(0, 3 * third, third)]
    whole = [x[:, :, at : at + x.shape[2]] for at in range(0, x.shape[2], x.shape[2])]
    rest = sum(last) + sum(starts)
    return torch.cat(made, 2) + rest[..., None] + behind[-1][..., None] + whole[0]


IMAGES = [(2, 3, length, 5) for (length,) in LENGTHS]
VOLUMES = [(2, 3, length, 5, 2) for (length,) in LENGTHS]

CASES: dict[str, tuple[list[Any], Callable[[torch.Tensor], Any]]] = {
    "linspace": (LENGTHS, lambda x: x * torch.linspace(-1, 3, x.shape[0])),
    "linspace of one step": (LENGTHS, lambda x: torch.linspace(-1, 3, x.shape[0] - 2)),
    "linspace by names": (
        LENGTHS,
        lambda x: torch.linspace(start=0.5, end=3, steps=len(x), dtype=torch.float64),
    ),
    "logspace": (LENGTHS, lambda x: x * torch.logspace(-1, 1, x.shape[0], 2.0)),
    "remainders as floating-point numbers": (
        SIGNALS,
        lambda x: (
            functional.interpolate(functional.pad(x, (0, (-x.shape[2]) % 4)), scale_factor=2.0)
            * ((-x.shape[2]) % 4 / 4)
        ),
    ),
    "fftfreq": (LENGTHS, lambda x: x * torch.fft.fftfreq(x.shape[0], d=0.5)),
    "rfftfreq": (LENGTHS, lambda x: torch.fft.rfft(x).abs() * torch.fft.rfftfreq(len(x))),
    "hann_window": (
        LENGTHS,
        lambda x: x * torch.hann_window(len(x)) + torch.hann_window(len(x), periodic=False),
    ),
    "hamming_window": (LENGTHS, lambda x: x * torch.hamming_window(x.shape[0], False, 0.5, 0.3)),
    "blackman_window": (
        LENGTHS,
        lambda x: x * torch.blackman_window(x.shape[0], dtype=torch.float64),
    ),
    "bartlett_window": (LENGTHS, lambda x: x * torch.bartlett_window(x.shape[0])),
    "bartlett_window of both ends": (LENGTHS, lambda x: x * torch.bartlett_window(len(x), False)),
    "kaiser_window": (
        LENGTHS,
        lambda x: x * torch.kaiser_window(len(x), True, beta=9.0) + torch.kaiser_window(len(x)),
    ),
    "windows of one element": (
        LENGTHS,
        lambda x: x[:1] * torch.kaiser_window(1) * torch.bartlett_window(1, periodic=False),
    ),
    "one_hot": (
        LENGTHS,
        lambda x: functional.one_hot(x.argsort(), num_classes=x.shape[0]).float() @ x,
    ),
    "histc": (LENGTHS, lambda x: x.detach().histc(x.shape[0])),
    "histc of a range": (
        LENGTHS,
        lambda x: torch.histc(x.detach(), bins=x.shape[0] // 2 + 2, min=-1, max=2),
    ),
    "adaptive_avg_pool1d": (
        SIGNALS,
        lambda x: functional.adaptive_avg_pool1d(x, x.shape[2] // 2 + 1),
    ),
    "numbers among indices": (SIGNALS, lambda x: x[torch.tensor([1, 0]), :, x.shape[2] - 2]),
    "numbers among indices of other dimensions": (
        SIGNALS,
        lambda x: x[None, ..., torch.tensor([0, 2, 1]), x.shape[2] // 2],
    ),
    "written at numbers among indices": (SIGNALS, _written),
    "numbers as indices": (
        SIGNALS,
        lambda x: x[:, 1, x.shape[2] // 2] * x[..., -(x.shape[2] // 3)].sum() + x[:, 0, -1],
    ),
    "numbers and bools as indices": (
        SIGNALS,
        lambda x: x[True, ..., x.shape[2] // 2] * x[0, True, x.shape[1] - 1, x.shape[2] - 1],
    ),
    "a number as an index": (LENGTHS, lambda x: x.sin()[len(x) // 2] * x[: len(x) // 2].sum()),
    "written at numbers": (SIGNALS, _written_at_numbers),
    "lists of numbers": (SIGNALS, lambda x: x[:, [2, 0], :][..., [0, x.shape[2] // 2, -1]] * 2),
    "lists of lists of numbers": (SIGNALS, lambda x: x[0, (1, 2), [[x.shape[2] - 1], [0]]].exp()),
    "a list of numbers": (MATRICES, lambda x: x.sin()[[0, len(x) // 2]] @ x),
    "written at lists of numbers": (SIGNALS, _written_at_lists),
    "kron": (MATRICES, lambda x: torch.kron(x, torch.eye(2))),
    "kron of other ranks": (MATRICES, lambda x: torch.kron(torch.ones(3), x)),
    "tril_indices": (MATRICES, lambda x: x[tuple(torch.tril_indices(*x.shape))]),
    "triu_indices": (MATRICES, _pairs),
    "max_pool1d": (
        SIGNALS,
        lambda x: functional.max_pool1d(functional.relu(x), x.shape[2]).squeeze(2),
    ),
    "max_pool1d with strides": (SIGNALS, lambda x: functional.max_pool1d(x, x.size(2), stride=1)),
    "avg_pool1d": (SIGNALS, lambda x: functional.avg_pool1d(x, kernel_size=x.shape[2])),
    "max_pool1d of pairs": (SIGNALS, lambda x: functional.max_pool1d(x.exp(), 2)),
    "max_pool1d with borders": (
        SIGNALS,
        lambda x: functional.max_pool1d(x.exp(), 3, 2, padding=1, ceil_mode=True),
    ),
    "a layer of maximum pooling of pairs": (SIGNALS, lambda x: nn.MaxPool1d(2)(x[0].exp())),
    "taken along a dimension": (
        SIGNALS,
        lambda x: (
            torch.take_along_dim(x, x.argsort(2), 2)
            * x.take_along_dim(x[:1, :, :1].argmax(1, keepdim=True), dim=1)
        ),
    ),
    "taken of all": (SIGNALS, lambda x: torch.take_along_dim(x, x.reshape(-1).argsort())),
    "parts, the first with what is left over": (
        SIGNALS,
        lambda x: torch.cat([part * at for at, part in enumerate(x.tensor_split(3, -1))], 2),
    ),
    "parts between indices": (
        SIGNALS,
        lambda x: torch.tensor_split(x, (1, x.shape[2] - 1), dim=2)[1].exp(),
    ),
    "parts of one size": (
        SIGNALS,
        lambda x: torch.stack([x.sum(2) for x in torch.split(x, x.shape[2] // 2 + 1, dim=-1)]),
    ),
    "parts of given sizes": (
        SIGNALS,
        lambda x: x.split([1, x.shape[2] - 1], 2)[1] * x.split(100, 2)[0].sum(),
    ),
    # Of one, two and three blocks; one of a single element is a graph of its own.
    "blocks": ([(2, 3, length) for length in (3, 4, 5, 8, 12, 13, 17, 22, 26)], _in_blocks),
    "powers": (SIGNALS, lambda x: torch.vander(x.detach()[0, 0], 4) @ torch.ones(4, 2)),
    "as many powers as elements": (
        LENGTHS,
        lambda x: (
            torch.vander(x.detach() / 4, increasing=True)
            + torch.linalg.vander(x.detach() / 4).sin()
        ),
    ),
    "gradients of samples": (SIGNALS, lambda x: torch.stack(torch.gradient(x, dim=(0, 2)))),
    "gradients of samples at distances": (
        SIGNALS,
        lambda x: torch.gradient(x, spacing=0.5, dim=-1, edge_order=2)[0],
    ),
    "gradients of samples at points": (
        SIGNALS,
        lambda x: torch.stack(
            [
                torch.gradient(x, spacing=(torch.arange(x.shape[2]) ** 2.0,), dim=2, edge_order=at)[
                    0
                ]
                for at in (1, 2)
            ]
        ),
    ),
    "max_pool2d": (IMAGES, lambda x: functional.max_pool2d(functional.relu(x), x.shape[2:])),
    "avg_pool2d": (IMAGES, lambda x: functional.avg_pool2d(x, x.shape[-2:])),
    "avg_pool3d": (VOLUMES, lambda x: functional.avg_pool3d(x, x.shape[-3:])),
    "max_pool1d of halves": (
        SIGNALS,
        lambda x: functional.max_pool1d(functional.relu(x), x.shape[2] // 2),
    ),
    "max_pool2d of thirds": (
        IMAGES,
        lambda x: functional.max_pool2d(functional.relu(x), (x.shape[2] // 3, 2), stride=1),
    ),
    "avg_pool1d of halves": (SIGNALS, lambda x: functional.avg_pool1d(x, x.shape[2] // 2)),
    "a layer of average pooling": (SIGNALS, lambda x: nn.AvgPool1d(x.shape[2] // 2)(x)),
    "a layer of average pooling in two dimensions": (
        IMAGES,
        lambda x: nn.AvgPool2d((x.shape[2] // 2, 2), 1)(x),
    ),
    "a layer of maximum pooling": (SIGNALS, lambda x: nn.MaxPool1d(x.shape[2] // 2, 1)(x.exp())),
    "avg_pool2d of thirds": (
        IMAGES,
        lambda x: functional.avg_pool2d(x, (x.shape[2] // 3, 2), (x.shape[2] // 3 + 1, 3)),
    ),
    "avg_pool3d of halves": (
        VOLUMES,
        lambda x: functional.avg_pool3d(x, (x.shape[2] // 2, 2, 1), stride=1),
    ),
    "affine_grid": (IMAGES, _warped),
    "affine_grid in three dimensions": (
        IMAGES,
        lambda x: functional.affine_grid(
            torch.arange(24.0).reshape(2, 3, 4), (*x.shape, 6), align_corners=True
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_few_graphs_serve_all_sizes(name: str) -> None:
    check_few_graphs(*CASES[name])


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("side", ["right", "left"])
def test_any_of_several_sequences_may_be_the_longest(side: str) -> None:
    def function(several: list[torch.Tensor], number: float = -1.5) -> torch.Tensor:
        padded = nn.utils.rnn.pad_sequence(several, True, number, side)
        return padded.cumsum(1) * nn.utils.rnn.pad_sequence(several).amax(0)[:, None]

    run = torch.compile(function, backend="pjrt")
    before = compat.graphs_made()
    for lengths in ((5, 3, 7), (8, 4, 2), (3, 9, 5), (6, 2, 11), (12, 13, 4), (4, 9, 9)):
        given = [torch.randn(length, 2, requires_grad=True) for length in lengths]
        own = [x.detach().clone().requires_grad_() for x in given]
        expected, found = function(given), run(own)
        assert_same(found, expected, rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(own, given, strict=True):
            ours_grad, theirs_grad = (
                torch.autograd.grad(made.square().sum(), x, retain_graph=True)[0]
                for made, x in ((found, ours), (expected, theirs))
            )
            torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-4, atol=1e-4)
    assert compat.graphs_made() - before <= 2
    assert len(compiled_graphs()) <= 4


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("offset", [-30, -2, 0, 1, 4, 30])
@pytest.mark.parametrize("kind", [torch.tril_indices, torch.triu_indices])
def test_triangles_of_changing_sizes_are_one_graph(
    kind: Callable[..., torch.Tensor], offset: int
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        rows, columns = kind(*x.shape, offset=offset, dtype=torch.int32)
        return x[rows, columns]

    run = torch.compile(function, backend="pjrt", fullgraph=True)
    before = compat.graphs_made()
    for shape in ((5, 7), (6, 9), (9, 6), (8, 8), (7, 5), (20, 21), (21, 20)):
        x = torch.randn(shape)
        assert_same(run(x), function(x))
    assert compat.graphs_made() - before <= 6


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linspace(0, 30, x.shape[0], dtype=torch.int64),
        lambda x: functional.max_pool1d(x[None], x.shape[0] // 2, padding=1),
        lambda x: functional.avg_pool1d(x[None], x.shape[0], 1, 1),
        lambda x: functional.avg_pool2d(x.expand(2, 4, -1).mT, (x.shape[0] // 2, 1)),
        lambda x: functional.avg_pool3d(x.expand(2, 4, 4, -1), x.shape[0] // 2, 1, 1, True, False),
        lambda x: functional.max_pool1d(x[None], x.shape[0], return_indices=True),
    ],
)
def test_what_is_not_traced_instead(function: Callable[[torch.Tensor], Any]) -> None:
    run = compiled(function)
    for length in (4, 5, 6):
        x = torch.randn(length)
        assert_same(run(x), function(x))


@pytest.mark.parametrize("shape", [None, (1, 3), (3,), (1, 1), ()], ids=str)
def test_rows_written_where_a_mask_is_true(shape: tuple[int, ...] | None) -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        made = x * 2
        made[mask] = rows * 3
        return made.sin()

    run = torch.compile(function, backend="pjrt", fullgraph=True)
    before = compat.graphs_made()
    for length in (5, 7, 9, 20, 30):
        x = torch.randn(4, length, 3)
        mask = torch.arange(4 * length).reshape(4, length) % 3 == 1
        rows = x[mask] + 1 if shape is None else torch.randn(shape)
        results, gradients = [], []
        for call in (run, function):
            given = [item.detach().clone().requires_grad_() for item in (x, rows)]
            results.append(call(given[0], mask, given[1]))
            gradients.append(torch.autograd.grad(results[-1].square().sum(), given))
        assert_same(*results)
        assert_same(*gradients, rtol=1e-4, atol=1e-5)
    assert compat.graphs_made() - before <= 2
    if shape is None:
        with pytest.raises(RuntimeError, match="shape mismatch"):
            run(x, mask, x[mask][1:])


def test_other_backends_are_left_alone() -> None:
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(lambda x: x * torch.linspace(-1, 3, x.shape[0]), backend=counter)
    for length in (3, 4, 5, 6):
        run(torch.ones(length))
    assert counter.frame_count == 4


def test_powers_of_what_needs_a_gradient() -> None:
    """PyTorch refuses the gradient, but not the powers."""
    run = compiled(lambda x: torch.vander(x, 3))
    for length in (3, 4, 5):
        x = torch.randn(length, requires_grad=True)
        assert_same(run(x).detach(), torch.vander(x.detach(), 3))


@pytest.mark.parametrize("label", [-1, 20])
def test_classes_out_of_range(label: int) -> None:
    run = compiled(lambda x, y: functional.one_hot(x, y.shape[0]))
    for length in (5, 6, 7):
        assert run(torch.tensor([4, 0]), torch.ones(length)).shape == (2, length)
        with pytest.raises(RuntimeError, match="Class values must be"):
            run(torch.tensor([4, label]), torch.ones(length))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.bartlett_window(x.shape[0], dtype=torch.int64),
        lambda x: torch.histc(x, x.shape[0] - 20),
        lambda x: torch.histc(x, x.shape[0], 2, 1),
        lambda x: functional.avg_pool1d(x[None], x.shape[0] * 2),
        lambda x: functional.max_pool1d(x[None], x.shape[0] // 10),
        lambda x: x[None][torch.tensor([0]), x.shape[0]],
    ],
)
def test_what_pytorch_refuses_is_refused(function: Callable[[torch.Tensor], Any]) -> None:
    run = torch.compile(function, backend="pjrt")
    for length in (4, 5, 6):
        x = torch.ones(length)
        with pytest.raises((RuntimeError, IndexError)):
            function(x)
        with pytest.raises((RuntimeError, IndexError)):
            run(x)


def test_sizes_that_pytorch_refuses() -> None:
    run = compiled(lambda x: functional.affine_grid(x, (2, 3, x.shape[0], 5), align_corners=True))
    for length in (2, 3, 4):
        with pytest.raises((RuntimeError, ValueError)):
            run(torch.ones(length, 5, 3))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_histogram_between_extremes_that_are_not_finite(number: float) -> None:
    on_device = compiled(lambda x: torch.histc(x, len(x)))
    for length in (3, 4, 5):
        x = torch.arange(float(length))
        assert_same(on_device(x), torch.histc(x, length))
    with pytest.raises(RuntimeError, match=r"torch\.histc: .* not finite"):
        on_device(torch.tensor([number, 1.0, 2.0, 3.0, 4.0, 5.0]))


def test_nothing_to_count_and_no_window() -> None:
    def function(x: torch.Tensor, size: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.histc(x, len(size)), torch.hann_window(len(x))

    on_device = compiled(function)
    for size in (4, 5, 6):
        assert_same(
            on_device(torch.zeros(0), torch.ones(size)), (torch.zeros(size), torch.empty(0))
        )


@pytest.mark.parametrize(
    "index",
    [
        lambda n: [0, n // 2],
        lambda n: [[0, 1], [n // 5, 0]],
        lambda n: [0, slice(0, n // 4)],
        lambda n: [n > 6, *[True] * 5, *[False] * (n - 6)],
        lambda n: (None, [n / 2, 0], ..., [1, 0]),
        lambda n: [0, n],
    ],
    ids=["numbers", "for each dimension", "with slices", "bools", "fractions", "out of range"],
)
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
def test_lists_as_an_index_are_those_of_eager(index: Callable[[int], Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin()[index(len(x))]

    compiled = torch.compile(function, backend="pjrt")
    for length in (6, 9, 7):
        x = torch.arange(length * 3.0).reshape(length, 3)
        try:
            expected = function(x)
        except IndexError:
            with pytest.raises(IndexError):
                compiled(x)
        else:
            assert_same(compiled(x), expected)


def test_what_a_number_selects_is_a_view() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        row = x[len(x) // 2]
        row.add_(1)
        return row

    compiled = torch.compile(function, backend="pjrt")
    for length in (6, 9, 7):
        mine, eager = torch.zeros(length, 2), torch.zeros(length, 2)
        compiled(mine).add_(2)
        function(eager).add_(2)
        torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("columns", [4, 6])
def test_the_gradient_of_parts_of_repeated_rows(columns: int) -> None:
    """Elements that share memory have gradients of their own (found by the fuzzer, seed 40036)."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*x.split(4, 1), x.view(torch.int16))

    call = torch.compile(function, backend="pjrt", dynamic=True)
    gradients = []
    for run in (function, call):
        x = torch.arange(float(columns)).expand(3, columns).requires_grad_()
        first, *_ = run(x)
        (first * torch.arange(12.0).view(3, 4)).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.usefixtures("fresh")
@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid behavior has changed")
@pytest.mark.parametrize("size", [(2, 3, 1, 4), (2, 3, 5, 1), (2, 3, 1, 1), (2, 3, 2, 1, 3)])
@pytest.mark.parametrize("align", [False, True])
def test_grids_of_one_row_or_column(size: tuple[int, ...], align: bool) -> None:
    count = len(size) - 2

    def grid(theta: torch.Tensor) -> torch.Tensor:
        return functional.affine_grid(theta, size, align_corners=align)

    theta = torch.randn(2, count, count + 1, requires_grad=True)
    other = theta.detach().clone().requires_grad_()
    found, expected = compiled(grid)(theta), grid(other)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(theta.grad, other.grad, atol=1e-5, rtol=1e-5)

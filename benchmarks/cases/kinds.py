"""Kinds of work beyond whole models, each of 1 to 300 ms, but for tiny networks.

Together they stand for what a model that nobody measured may consist of: each kind is one case or
two, of sizes that nothing else here has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.case import Array, Asked, Case, Suite, TorchWork, tensors
from benchmarks.cases.decoding import one_token
from benchmarks.cases.training import mlp_step

_SIDES = ("eager", "inductor", "pjrt")
_BETTER = ("eager", "inductor")
_Made = Callable[[Any], Callable[..., Any]]


def _case(name: str, work: Callable[[], TorchWork]) -> Case:
    return Case(name, _SIDES, work)


def _function(name: str, function: _Made, *arrays: Array) -> Case:
    """A function of arrays; `function` takes the module `torch`."""

    def work() -> TorchWork:
        import torch

        return TorchWork(function(torch), tensors(arrays))

    return _case(name, work)


def _module(name: str, module: _Made, *arrays: Array, training: bool = False) -> Case:
    """A module on arrays: its result, or the gradients of the mean of the result's square."""

    def work() -> TorchWork:
        import torch

        class Loss(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = made

            def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
                found = self.inner(*inputs)
                found = found[0] if isinstance(found, tuple) else found
                return found.square().mean() if training else found

        torch.manual_seed(0)
        made = module(torch)
        return TorchWork(Loss().train(training), tensors(arrays), training=training)

    return _case(name, work)


def _written_attention(q: Any, k: Any, v: Any) -> Any:
    """As models write it that do not call torch's operator."""
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v


def _convolutions(dims: int, channels: int, kernel: int, groups: int = 1) -> _Made:
    """Two convolutions with a GELU between them."""

    def made(torch: Any) -> Any:
        layer = getattr(torch.nn, f"Conv{dims}d")
        each = partial(layer, channels, channels, kernel, padding=kernel // 2, groups=groups)
        return torch.nn.Sequential(each(), torch.nn.GELU(), each())

    return made


def _sizes_of_batches() -> TorchWork:
    """A perceptron on batches of 1 to 16 rows, which one program of unknown size may take."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
    batches = tuple(torch.randn(size, 512) for size in range(1, 17))
    for batch in batches:
        torch._dynamo.maybe_mark_dynamic(batch, 0)

    def each(*given: torch.Tensor) -> torch.Tensor:
        return torch.cat([net(batch) for batch in given]).sum()

    return TorchWork(each, batches)


def _recommender(torch: Any) -> Any:
    """Four bags of embeddings beside dense numbers, and a perceptron."""

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bags = torch.nn.ModuleList(
                torch.nn.EmbeddingBag(20_000, 64, mode="sum") for _ in range(4)
            )
            self.top = torch.nn.Sequential(
                torch.nn.Linear(4 * 64 + 16, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
            )

        def forward(self, dense: Any, *indices: Any) -> Any:
            found = [bag(index) for bag, index in zip(self.bags, indices, strict=True)]
            return self.top(torch.cat([dense, *found], 1))

    return Net()


def _bags_by_offsets(mode: str, torch: Any) -> Callable[..., Any]:
    """Bags of 24 to 44 indices of one list."""
    offsets = torch.arange(0, 20_480, 40) + torch.arange(512) % 5 * 4

    def bags(table: Any, indices: Any) -> Any:
        return torch.nn.functional.embedding_bag(indices, table, offsets, mode=mode)

    return bags


def _tiny(torch: Any) -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.Linear(32, 4)
    )


def _tiny_images(torch: Any) -> Any:
    layer = torch.nn.Conv2d
    return torch.nn.Sequential(
        layer(1, 8, 3), torch.nn.ReLU(), layer(8, 8, 3, stride=2), torch.nn.Flatten(1)
    )


def _augmented(torch: Any) -> Callable[..., Any]:
    """Pictures turned by an angle for each, and their colours scaled."""

    def augment(pictures: Any, angles: Any, gains: Any) -> Any:
        sine, cosine, zero = angles.sin(), angles.cos(), torch.zeros_like(angles)
        rows = [torch.stack(row, -1) for row in ((cosine, -sine, zero), (sine, cosine, zero))]
        grid = torch.nn.functional.affine_grid(
            torch.stack(rows, 1), list(pictures.shape), align_corners=False
        )
        turned = torch.nn.functional.grid_sample(pictures, grid, align_corners=False)
        return (turned * gains[:, None, None, None]).clamp(0, 1)

    return augment


def _norms_and_softmax(torch: Any) -> Callable[..., Any]:
    def chain(x: Any) -> Any:
        for _ in range(3):
            x = torch.nn.functional.layer_norm(x, x.shape[-1:]) + x
            x = torch.softmax(x, -1) * x
        return x

    return chain


_WAVE = Array((3_000_000,))
_DOUBLES = Array((600_000,), "float64")
_POSITIONS = Array((50_000,), "int64", below=4000)

CASES = (
    *(
        _case(f"decoding, batch {batch}, {weights}", partial(one_token, weights, batch))
        for weights in ("f32", "bf16", "int8")
        for batch in (1, 8)
    ),
    _case("decoding, batch 1, bf16, shared heads", partial(one_token, "bf16", 1, sharing=4)),
    *(
        _function(
            f"attention, {heads} heads of {length} tokens, {dtype}",
            lambda torch: torch.nn.functional.scaled_dot_product_attention,
            *[Array((1, heads, length, 64), dtype)] * 3,
        )
        for heads, length, dtype in ((8, 2048, "float32"), (2, 8192, "bfloat16"))
    ),
    _function(
        "attention written out, 12 heads of 1024 tokens, f32",
        lambda torch: _written_attention,
        *[Array((1, 12, 1024, 64))] * 3,
    ),
    _module(
        "embedding bags and a perceptron",
        _recommender,
        Array((512, 16)),
        *[Array((512, 20), "int64", below=20_000)] * 4,
    ),
    *(
        _function(
            f"embedding bags by offsets, {mode}",
            partial(_bags_by_offsets, mode),
            Array((20_000, 64)),
            Array((20_480,), "int64", below=20_000),
        )
        for mode in ("sum", "mean")
    ),
    _module("LSTM", lambda torch: torch.nn.LSTM(96, 160, 2), Array((40, 8, 96))),
    _module(
        "GRU, training", lambda torch: torch.nn.GRU(96, 160), Array((30, 8, 96)), training=True
    ),
    _module("1-D convolution", _convolutions(1, 96, 5), Array((4, 96, 1500))),
    _module("3-D convolution", _convolutions(3, 24, 3), Array((1, 24, 16, 32, 32))),
    _module("depthwise 7x7", _convolutions(2, 96, 7, 96), Array((4, 96, 48, 48))),
    _module(
        "depthwise 7x7, training",
        _convolutions(2, 64, 7, 64),
        Array((2, 64, 40, 40)),
        training=True,
    ),
    _function(
        "scatter of sums",
        lambda torch: (
            lambda x, index, updates: x.scatter_add(0, index[:, None].expand(-1, 32), updates)
        ),
        Array((4000, 32)),
        _POSITIONS,
        Array((50_000, 32)),
    ),
    _function(
        "gather along columns",
        lambda torch: lambda x, index: x.gather(1, index),
        Array((800, 2000)),
        Array((800, 1500), "int64", below=2000),
    ),
    _case("batches of 1 to 16", _sizes_of_batches),
    _module("tiny perceptron, batch 1", _tiny, Array((1, 16))),
    _module("tiny convolutions, batch 1", _tiny_images, Array((1, 1, 28, 28))),
    _case("step of a perceptron with AdamW", partial(mlp_step, "float32", 64, 640)),
    _function("norms and softmax of rows", _norms_and_softmax, Array((1500, 700))),
    *(
        _module(
            f"group norm, {side} x {side}",
            lambda torch: torch.nn.GroupNorm(16, 128),
            Array((4, 128, side, side)),
        )
        for side in (40, 72)
    ),
    _function(
        "sums of integers", lambda torch: lambda x: x.sum(-1), Array((1500, 1200), "int64", 99)
    ),
    _function("roll", lambda torch: lambda x: x.roll(5000), _WAVE),
    _function(
        "roll of two dimensions",
        lambda torch: lambda x: x.roll((3, -5), (1, 2)),
        Array((16, 112, 112, 8)),
    ),
    _function(
        "Fourier transform, filter and back",
        lambda torch: lambda x, y: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(y)),
        *[Array((256, 2048))] * 2,
    ),
    _function("sines, f32", lambda torch: lambda x: x.sin() + x.cos(), _WAVE),
    _function("sines, f64", lambda torch: lambda x: x.sin() + x.cos(), _DOUBLES),
    _function(
        "augmentation of pictures",
        _augmented,
        Array((16, 3, 96, 96)),
        Array((16,)),
        Array((16,)),
    ),
)

SUITE = Suite("kinds", ("kinds",), Asked("pjrt", 1.05, _BETTER), slowest=1.25)
"""What is asked of the mean of all kinds, and of the slowest."""

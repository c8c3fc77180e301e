"""Exported models write through views with repeated memory as the model does, or are refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export


class Writing(nn.Module):
    def __init__(self, write: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.write(x)
        self.write(y)
        return y


def _filled_twice(x: torch.Tensor) -> None:
    wide = x.expand(2, 2, 3)[:, :, 1:]
    wide.fill_(float("inf"))
    wide.fill_(1.25)


def _turned(x: torch.Tensor) -> None:
    wide = x[0].expand(2, 3)
    wide.t_()
    wide.fill_(2.0)


def _broadcast(x: torch.Tensor) -> None:
    one, other = torch.broadcast_tensors(x[0], x)
    one.fill_(2.0)
    other[0].add_(1)


def _split(x: torch.Tensor) -> None:
    parts = x.expand(3, 2, 3).split(2)
    parts[0][0].mul_(3)
    parts[1][0, 1].fill_(1e10)


def _of_lists(x: torch.Tensor) -> None:
    torch._foreach_add_([x.expand(2, 2, 3)[0], x * 2], 1.5)


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "whole": lambda x: x.expand(2, -1, -1).fill_(3.0),
    "columns": lambda x: x[:, 1:2].expand(-1, 4).fill_(4.0),
    "part": lambda x: x.expand(2, 2, 3)[1, :1].add_(0.1),
    "rounding": lambda x: x.mul_(1e10).expand(2, 2, 3)[0].fill_(1.25),
    "column": lambda x: x[0].expand(2, 3)[:, 1].zero_(),
    "strides": lambda x: x.as_strided((2, 3), (0, 1)).fill_(5.0),
    "windows": lambda x: x.view(-1).unfold(0, 3, 1).fill_(5.0),
    "window": lambda x: x.view(-1).unfold(0, 3, 1)[1].mul_(2.0),
    "apart": lambda x: x.unfold(0, 2, 2).mul_(2.0),
    "nothing": lambda x: x.expand(0, 2, 3).fill_(5.0),
    "twice": _filled_twice,
    "turned": _turned,
    "broadcast": _broadcast,
    "split": _split,
    "lists": _of_lists,
}


@pytest.mark.parametrize("name", WRITES)
def test_values_are_those_of_the_model(name: str, client: Client) -> None:
    model = Writing(WRITES[name])
    x = torch.arange(6.0).view(2, 3) + 0.37
    given = x.clone().numpy()
    with export(model, (x.clone(),)).load_on(client) as loaded:
        found = np.asarray(loaded(given))
    assert np.array_equal(found, model(x))
    assert np.array_equal(given, x)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.expand(2, 2, 3).fill_(3.0),
        lambda x: x.expand(2, 2, 3)[0].mul_(2),
        lambda x: x.view(-1).unfold(0, 3, 1)[1].mul_(2),
    ],
)
def test_what_a_write_gives_is_returned(
    write: Callable[[torch.Tensor], torch.Tensor], client: Client
) -> None:
    class Returning(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = x * 1
            return y, write(y)

    x = torch.arange(6.0).view(2, 3) + 0.37
    with export(Returning(), (x,)).load_on(client) as loaded:
        found = loaded(x)
    for ours, theirs in zip(found, Returning()(x), strict=True):
        assert np.array_equal(np.asarray(ours), theirs)


def test_sizes_that_change(client: Client) -> None:
    model = Writing(lambda x: x[:, :1].expand(-1, 3)[:, 1].add_(1e-3))
    exported = export(
        model,
        (torch.ones(4, 3),),
        dynamic_shapes=({0: Dim("n")},),
        sizes=[{"n": 4}, {"n": 5}],
    )
    with exported.load_on(client) as loaded:
        for count in (5, 4):
            x = torch.rand(count, 3) * 1e3
            given = x.clone().numpy()
            assert np.array_equal(np.asarray(loaded(given)), model(x))
            assert np.array_equal(given, x)


def test_training_steps(client: Client) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(6.0).view(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.weight
            y[:1].expand(3, -1)[1, :2].zero_()
            return y.square().sum()

    net, x = Net(), torch.ones(2, 3)
    with export(net, (x,), training=True).load_on(client) as loaded:
        found = loaded(x)
    net(x).backward()
    assert np.array_equal(np.asarray(found["gradients"]["weight"]), net.weight.grad)


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (
            lambda x: x[0].expand(2, 3).index_fill_(0, torch.tensor([1]), 9.0),
            r"aten.index_fill_.int_Scalar writes into a view .*depends on their order \(.*py:\d+",
        ),
        (
            lambda x: torch._foreach_add_([x.expand(2, 2, 3)[0], x[0]], 1.5),
            r"aten._foreach_add_.Scalar writes .* into other views of its memory \(",
        ),
        (
            lambda x: torch.view_as_real(torch.complex(x, x).expand(2, 2, 3))[0].add_(1),
            r"aten.add_.Tensor writes into a view with repeated memory",
        ),
    ],
)
def test_what_cannot_be_told_is_refused(write: Callable[..., object], text: str) -> None:
    with pytest.raises(NotExportable, match=text):
        export(Writing(write), (torch.rand(2, 3),))

"""Operators that never lower, so that a graph with one of them is split."""

import torch
from torch import Tensor

from tests.torch_interop.helpers import Refused

REFUSED_NUMBER = 666.0


order: list[str] = []
"""What `noted` was called with, in running order."""


@torch.library.custom_op("pjrt_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda ctx, grad: twice(grad))


@torch.library.custom_op("pjrt_test::squared", mutates_args=())
def squared(x: Tensor) -> Tensor:
    return x * x


def _save_input(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: Tensor):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[0])


squared.register_fake(torch.empty_like)
squared.register_autograd(
    lambda ctx, grad: grad * 2 * ctx.saved_tensors[0], setup_context=_save_input
)


@torch.library.custom_op("pjrt_test::guarded", mutates_args=())
def guarded(x: Tensor) -> Tensor:
    if x.numel() and float(x.flatten()[0]) == REFUSED_NUMBER:
        raise Refused("not this number")
    return x.clone()


guarded.register_fake(torch.empty_like)
guarded.register_autograd(lambda ctx, grad: guarded(grad))


@torch.library.custom_op("pjrt_test::noted", mutates_args=())
def noted(x: Tensor, name: str) -> Tensor:
    order.append(name)
    return x.clone()


noted.register_fake(lambda x, name: torch.empty_like(x))


@torch.library.custom_op("pjrt_test::add_into", mutates_args=("x",))
def add_into(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("pjrt_test::swap", mutates_args=("x", "y"))
def swap(x: Tensor, y: Tensor) -> None:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


@torch.library.custom_op("pjrt_test::pop", mutates_args=("x",))
def pop(x: Tensor) -> Tensor:
    """The sum of a tensor, which is set to zero."""
    total = x.sum()
    x.zero_()
    return total


pop.register_fake(lambda x: x.new_empty(()))


@torch.library.custom_op("pjrt_test::fill_all", mutates_args=("xs",))
def fill_all(xs: list[Tensor], value: float) -> None:
    for index, x in enumerate(xs):
        x.fill_(value + index)


@torch.library.custom_op("pjrt_test::pieces", mutates_args=())
def pieces(
    x: Tensor, sizes: list[int], scale: float, flip: bool, extra: Tensor | None
) -> list[Tensor]:
    made = [piece * scale for piece in x.split(sizes)]
    if extra is not None:
        made = [piece + extra for piece in made]
    return made[::-1] if flip else made


@pieces.register_fake
def _(x: Tensor, sizes: list[int], scale: float, flip: bool, extra: Tensor | None) -> list[Tensor]:
    made = [torch.empty_like(piece) for piece in x.split(sizes)]
    return made[::-1] if flip else made


@torch.library.custom_op("pjrt_test::moments", mutates_args=())
def moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.mean(), x.var(), x.argmax()


@moments.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(()), x.new_empty(()), x.new_empty((), dtype=torch.int64)


@torch.library.custom_op("pjrt_test::turned", mutates_args=())
def turned(x: Tensor) -> Tensor:
    """Column-major memory."""
    return (x.t() * 2).t()


turned.register_fake(lambda x: torch.empty_like(x.t()).t())


@torch.library.custom_op("pjrt_test::misaligned", mutates_args=())
def misaligned(x: Tensor) -> Tensor:
    """Memory that starts one element into its allocation."""
    memory = x.new_zeros(x.numel() + 1)
    return memory[1:].view(x.shape).copy_(x)


misaligned.register_fake(torch.empty_like)


@torch.library.custom_op("pjrt_test::gappy", mutates_args=())
def gappy(x: Tensor) -> Tensor:
    """Memory with a hole after each element."""
    return torch.stack([x, x + 100], -1).select(-1, 0)


gappy.register_fake(lambda x: x.new_empty((*x.shape, 2)).select(-1, 0))


@torch.library.custom_op("pjrt_test::spread", mutates_args=())
def spread(x: Tensor) -> Tensor:
    """One column, shown four times."""
    return (x[:, :1] * 3).expand(-1, 4)


spread.register_fake(lambda x: x.new_empty((x.shape[0], 1)).expand(-1, 4))


@torch.library.custom_op("pjrt_test::unlike_its_promise", mutates_args=())
def unlike_its_promise(x: Tensor) -> Tensor:
    """Column-major where row-major was promised."""
    return (x.t() * 2).contiguous().t()


unlike_its_promise.register_fake(lambda x: x.new_empty(x.shape))


@torch.library.custom_op("pjrt_test::strides", mutates_args=())
def strides(x: Tensor) -> Tensor:
    """The strides that the operator is given."""
    return torch.tensor(x.stride())


strides.register_fake(lambda x: torch.empty(x.dim(), dtype=torch.int64))


@torch.library.custom_op("pjrt_test::count", mutates_args=())
def count(x: Tensor) -> int:
    return int((x > 0).sum())


@count.register_fake
def _(x: Tensor) -> int:
    return torch.library.get_ctx().new_dynamic_size()


@torch.library.custom_op("pjrt_test::positives", mutates_args=())
def positives(x: Tensor) -> Tensor:
    return x[x > 0].clone()


@positives.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())

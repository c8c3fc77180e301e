"""Memory formats, and layers of images, whose results have them."""

from __future__ import annotations

import torch

from tests.differential.draft import Draft, is_float
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Name


def _image(draft: Draft) -> tuple[str, Name]:
    """How a tensor of four dimensions is written, and what of."""
    x = draft.tensor(lambda value: value.dim() in (3, 4) and is_float(value))
    return ("{0}" if draft.value(x.name).dim() == 4 else "{0}[None]"), x


@production("formats", "channels_last", 3)
def _channels_last(draft: Draft) -> Made:
    image, x = _image(draft)
    how = draft.rng.choice([".to(", ".contiguous(", ".clone("])
    return Made(f"{image}{how}memory_format=torch.channels_last)", (x,))


@production("formats", "copied", 2)
def _copied(draft: Draft) -> Made:
    x = draft.tensor()
    name = draft.rng.choice(["preserve_format", "contiguous_format"])
    how = draft.rng.choice(
        ["{0}.clone(memory_format=torch.", "{0}.to(torch.float64, copy=True, memory_format=torch.",
         "torch.zeros_like({0}, memory_format=torch.",
         "torch.full_like({0}, 2, memory_format=torch."]
    )  # fmt: skip
    return Made(f"{how}{name})", (x,))


@production("formats", "layer", 3)
def _layer(draft: Draft) -> Made:
    image, x = _image(draft)
    how = draft.rng.choice(
        ["max_pool2d({0}, 2)", "avg_pool2d({0}, 2, 1)", "adaptive_avg_pool2d({0}, 2)",
         "interpolate({0}, scale_factor=2)", "conv2d({0}, {0}[:, :, :2, :2])",
         "batch_norm({0}, None, None, training=True)", "pad({0}, (1, 1, 0, 1))",
         "group_norm({0}, 1)", "pixel_unshuffle({0}, 2)", "relu({0})"]
    )  # fmt: skip
    return Made(f"torch.nn.functional.{how.replace('{0}', image)}", (x,), rough=True)


@production("formats", "whole", 1)
def _whole(draft: Draft) -> Made:
    image, x = _image(draft)
    how = draft.rng.choice(
        [".sum((2, 3))", ".mean(1)", ".flatten(1)", ".permute(0, 2, 3, 1)", " + 1"]
    )
    return Made(f"{image}{how}", (x,), rough=draft.value(x.name).dtype is not torch.float64)

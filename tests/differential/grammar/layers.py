"""What networks are made of: layers with weights, pools, norms, resizing and activations.

Weights are arguments of their own, as those of a module are to a compiled function. A layer takes a
tensor whose channels are as many in all calls; other sizes may change.
"""

from __future__ import annotations

import torch

from tests.differential.draft import Draft, Unfit, is_float
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Name, Operand, Statement

_F = "torch.nn.functional."


def weight(draft: Draft, *shape: int, dtype: torch.dtype) -> Name:
    """A new argument of the program, with gradients where the program has some.

    Raises:
        Unfit: it would have no elements.
    """
    trains = "arguments.requires_grad" in draft.features and draft.chance(0.8)
    return _argument(draft, shape, dtype, ".requires_grad_()" if trains else "")


def _argument(draft: Draft, shape: tuple[int, ...], dtype: torch.dtype, how: str) -> Name:
    if any(size < 1 for size in shape):
        raise Unfit
    operands = (shape, dtype, draft.rng.randrange(100))
    name = draft.new("w")
    text = f"(fine({{0}}, {{1}}, {{2}}) / 4){how}"
    if not draft.prepare(Statement(text, operands, name, "", ("arguments.weight",))):
        raise Unfit
    draft.parameters.append(name)
    draft.visible.append(name)
    return Name(name)


def image(draft: Draft, dims: int) -> tuple[Name, int]:
    """A tensor with so many dimensions behind its channels, and how many channels it has.

    Raises:
        Unfit: there is none.
    """
    x = draft.tensor(lambda value: is_float(value) and value.dim() in (dims + 1, dims + 2))
    return x, constant(draft, x, draft.value(x.name).dim() - dims - 1)


def constant(draft: Draft, x: Name, dim: int) -> int:
    """The size of a dimension that is the same in all calls.

    Raises:
        Unfit: it changes, or is 0.
    """
    sizes = set(draft.sizes(x, dim))
    if len(sizes) != 1 or 0 in sizes:
        raise Unfit
    return sizes.pop()


def _dtype(draft: Draft, x: Name) -> torch.dtype:
    found: torch.dtype = draft.value(x.name).dtype
    return found


def bias_of(draft: Draft, size: int, dtype: torch.dtype) -> Operand:
    """A new argument, or None."""
    return weight(draft, size, dtype=dtype) if draft.chance(0.5) else None


@production("layers", "linear", 3)
def _linear(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() >= 1)
    size, out, dtype = constant(draft, x, -1), draft.rng.choice([1, 2, 5]), _dtype(draft, x)
    w = weight(draft, out, size, dtype=dtype)
    return Made(f"{_F}linear({{0}}, {{1}}, {{2}})", (x, w, bias_of(draft, out, dtype)), rough=True)


@production("layers", "convolution", 4)
def _convolution(draft: Draft) -> Made:
    rng, dims = draft.rng, draft.rng.choice([1, 1, 2, 2, 2, 3])
    x, channels = image(draft, dims)
    dtype = _dtype(draft, x)
    groups = rng.choice([1, 1, channels])
    out = groups * rng.choice([1, 2, 3])
    kernel = [rng.choice([1, 2, 3]) for _ in range(dims)]
    w = weight(draft, out, channels // groups, *kernel, dtype=dtype)
    stride = rng.choice([1, 1, 2, 3])
    padding: Operand = rng.choice([0, 1, 1, tuple(size // 2 for size in kernel), "valid"])
    if stride == 1 and draft.chance(0.2):
        padding = "same"
    options = {"stride": stride, "padding": padding, "dilation": rng.choice([1, 1, 2])}
    text = f"{_F}conv{dims}d({{0}}, {{1}}, {{2}}, groups={{3}}{_text(options, 4)})"
    return Made(text, (x, w, bias_of(draft, out, dtype), groups, *options.values()), rough=True)


@production("layers", "convolution_transposed", 2)
def _convolution_transposed(draft: Draft) -> Made:
    rng, dims = draft.rng, draft.rng.choice([1, 2, 2])
    x, channels = image(draft, dims)
    dtype = _dtype(draft, x)
    groups = rng.choice([1, 1, channels])
    each = rng.choice([1, 2])
    w = weight(draft, channels, each, *[rng.choice([1, 2, 3]) for _ in range(dims)], dtype=dtype)
    stride = rng.choice([1, 2, 3])
    options = {
        "stride": stride,
        "padding": rng.choice([0, 0, 1]),
        "output_padding": rng.randrange(stride),
        "dilation": rng.choice([1, 1, 2]),
    }
    text = f"{_F}conv_transpose{dims}d({{0}}, {{1}}, {{2}}, groups={{3}}{_text(options, 4)})"
    bias = bias_of(draft, each * groups, dtype)
    return Made(text, (x, w, bias, groups, *options.values()), rough=True)


def _text(options: dict[str, Operand], first: int) -> str:
    return "".join(f", {name}={{{at}}}" for at, name in enumerate(options, first))


@production("layers", "pool", 4)
def _pool(draft: Draft) -> Made:
    rng, dims = draft.rng, draft.rng.choice([1, 1, 2, 2, 2, 3])
    x, _ = image(draft, dims)
    kind = rng.choice(["max", "avg", "lp"] if dims < 3 else ["max", "avg"])
    size = rng.choice([1, 2, 2, 3])
    options: dict[str, Operand] = {"stride": rng.choice([None, 1, 2, 3])}
    options["ceil_mode"] = rng.choice([False, True])
    if kind != "lp":
        options["padding"] = rng.choice([0, size // 2])
    if kind == "max":
        options["dilation"] = rng.choice([1, 1, 2])
        options["return_indices"] = rng.choice([False, False, True])
    if kind == "avg":
        options["count_include_pad"] = rng.choice([False, True])
        if dims > 1:
            options["divisor_override"] = rng.choice([None, None, 3])
    given = f"{{0}}.abs() + 1, {rng.choice([1.0, 2.0, 3.0])}" if kind == "lp" else "{0}"
    text = f"{_F}{kind}_pool{dims}d({given}, {{1}}{_text(options, 2)})"
    if options.get("return_indices"):
        text += rng.choice(["[0]", "[1]"])
    return Made(text, (x, size, *options.values()), rough=kind != "max")


@production("layers", "adaptive_pool", 2)
def _adaptive_pool(draft: Draft) -> Made:
    rng, dims = draft.rng, draft.rng.choice([1, 2, 2, 3])
    x, _ = image(draft, dims)
    kind = rng.choice(["avg", "max"])
    size: Operand = rng.choice([1, 2, 3, 5])
    if dims > 1 and draft.chance(0.4):
        size = tuple(rng.choice([1, 2, 4, None]) for _ in range(dims))
    return Made(f"{_F}adaptive_{kind}_pool{dims}d({{0}}, {{1}})", (x, size), rough=kind == "avg")


@production("layers", "unpool", 0.7)
def _unpool(draft: Draft) -> Made:
    dims = draft.rng.choice([1, 2, 2])
    x, _ = image(draft, dims)
    pooled = f"{_F}max_pool{dims}d({{0}}, 2, return_indices=True)"
    return Made(f"{_F}max_unpool{dims}d(*{pooled}, 2, output_size={{0}}.shape)", (x,))


_MODES = {
    1: ("nearest", "linear", "area", "nearest-exact"),
    2: ("nearest", "bilinear", "bicubic", "area", "nearest-exact"),
    3: ("nearest", "trilinear", "area", "nearest-exact"),
}


@production("layers", "interpolate", 2)
def _interpolate(draft: Draft) -> Made:
    rng, dims = draft.rng, draft.rng.choice([1, 2, 2, 3])
    x = draft.tensor(lambda value: is_float(value) and value.dim() == dims + 2)
    mode = rng.choice(_MODES[dims])
    options: dict[str, Operand] = {"mode": mode}
    if rng.random() < 0.5:
        options["size"] = tuple(rng.choice([1, 2, 3, 5]) for _ in range(dims))
    else:
        options["scale_factor"] = rng.choice([2, 0.5, 1.5, 3.0])
        options["recompute_scale_factor"] = rng.choice([None, None, True])
    if mode in ("linear", "bilinear", "bicubic", "trilinear"):
        options["align_corners"] = rng.choice([False, True])
        if mode in ("bilinear", "bicubic"):
            options["antialias"] = rng.choice([False, False, True])
    return Made(f"{_F}interpolate({{0}}{_text(options, 1)})", (x, *options.values()), rough=True)


@production("layers", "pad", 2)
def _pad(draft: Draft) -> Made:
    rng, dims = draft.rng, draft.rng.choice([1, 2, 2, 3])
    mode = rng.choice(["constant", "reflect", "replicate", "circular"])
    if mode == "constant":
        x = draft.tensor(lambda value: value.dim() >= dims)
    else:
        x, _ = image(draft, dims)
    low = -1 if mode == "constant" else 0
    sides = tuple(rng.choice([low, 0, 1, 2]) for _ in range(2 * dims))
    more = f", {rng.choice([1, 2])}" if mode == "constant" and draft.chance(0.3) else ""
    return Made(f"{_F}pad({{0}}, {{1}}, {{2}}{more})", (x, sides, mode))


@production("layers", "batch_norm", 3)
def _batch_norm(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() >= 2)
    channels, dtype = constant(draft, x, 1), _dtype(draft, x)
    training = draft.chance(0.6)
    mean: Operand = None
    variance: Operand = None
    if not training or draft.chance(0.7):
        mean = _argument(draft, (channels,), dtype, "")
        variance = _argument(draft, (channels,), dtype, ".abs() + 0.5")
    w, bias = _affine(draft, channels, dtype)
    text = f"{_F}batch_norm({{0}}, {{1}}, {{2}}, {{3}}, {{4}}, training={{5}}, momentum={{6}})"
    momentum = draft.rng.choice([0.1, 0.5])
    return Made(text, (x, mean, variance, w, bias, training, momentum), rough=True)


def _affine(draft: Draft, size: int, dtype: torch.dtype) -> tuple[Operand, Operand]:
    if draft.chance(0.3):
        return None, None
    return weight(draft, size, dtype=dtype), weight(draft, size, dtype=dtype)


@production("layers", "norm", 3)
def _norm(draft: Draft) -> Made:
    kind = draft.rng.choice(["group", "instance", "layer", "rms"])
    x = draft.tensor(lambda value: is_float(value) and value.dim() >= 2)
    dtype = _dtype(draft, x)
    if kind in ("layer", "rms"):
        size = constant(draft, x, -1)
        w, bias = _affine(draft, size, dtype)
        if kind == "rms":
            return Made(f"{_F}rms_norm({{0}}, {{1}}, {{2}}, 1e-3)", (x, (size,), w), rough=True)
        text = f"{_F}layer_norm({{0}}, {{1}}, {{2}}, {{3}}, 1e-3)"
        return Made(text, (x, (size,), w, bias), rough=True)
    channels = constant(draft, x, 1)
    w, bias = _affine(draft, channels, dtype)
    if kind == "instance":
        text = f"{_F}instance_norm({{0}}, weight={{1}}, bias={{2}}, eps=1e-3)"
        return Made(text, (x, w, bias), rough=True)
    groups = draft.rng.choice([1, channels])
    text = f"{_F}group_norm({{0}}, {{1}}, {{2}}, {{3}}, 1e-3)"
    return Made(text, (x, groups, w, bias), rough=True)


@production("layers", "across", 1.5)
def _across(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() >= 2)
    ways = [
        f"{_F}normalize({{0}}, p={{1}}, dim={{2}})",
        f"{_F}cosine_similarity({{0}}, {{0}} + 1, dim={{2}})",
        f"{_F}pairwise_distance({{0}}, {{0}} * 2, p={{1}})",
        f"{_F}softmin({{0}}, {{2}})",
        f"{_F}glu({{0}}, {{2}})",
    ]
    if draft.value(x.name).dim() >= 3:
        ways.append(f"{_F}local_response_norm({{0}}, 2)")
    operands = (x, draft.rng.choice([1.0, 2.0, 3.0]), draft.dim(x))
    return Made(draft.rng.choice(ways), operands, rough=True)


_ACTIVATIONS = (
    "relu({0})", "relu6({0})", "elu({0}, 0.5)", "celu({0}, 2.0)", "selu({0})", "gelu({0})",
    'gelu({0}, approximate="tanh")', "silu({0})", "mish({0})", "softplus({0}, 2.0, 3.0)",
    "softplus({0})", "hardtanh({0}, -0.5, 1.5)", "hardswish({0})", "hardsigmoid({0})",
    "leaky_relu({0}, 0.1)", "threshold({0}, 0.3, -2.0)", "softshrink({0}, 0.3)",
    "hardshrink({0}, 0.3)", "tanhshrink({0})", "softsign({0})", "logsigmoid({0})",
    "rrelu({0}, 0.2, 0.4)", "dropout({0}, 0.5, training=False)", "dropout({0}, 0.0)",
    "feature_dropout({0}, 0.5, False)", "alpha_dropout({0}, 0.5)",
)  # fmt: skip

_IN_PLACE = (
    "relu({0}, inplace=True)", "elu({0}, inplace=True)", "silu({0}, inplace=True)",
    "leaky_relu({0}, 0.2, inplace=True)", "hardtanh({0}, -1.0, 1.0, inplace=True)",
    "relu6({0}, inplace=True)", "hardswish({0}, inplace=True)", "mish({0}, inplace=True)",
    "threshold({0}, 0.0, 1.0, inplace=True)", "selu({0}, inplace=True)",
    "hardsigmoid({0}, inplace=True)", "dropout({0}, 0.0, inplace=True)",
    "celu({0}, inplace=True)",
)  # fmt: skip


@production("layers", "activation", 3)
def _activation(draft: Draft) -> Made:
    x = draft.tensor(is_float)
    how = draft.rng.choice(_ACTIVATIONS)
    if how.startswith("feature"):
        return Made(f"torch.{how}", (x,))
    return Made(f"{_F}{how}", (x,), rough=True)


@production("layers", "activation_in_place", 2)
def _activation_in_place(draft: Draft) -> Made:
    x = draft.target(is_float)
    how = _F + draft.rng.choice(_IN_PLACE)
    return Made(how, (x,), makes=draft.rng.choice(["", "v"]), rough=True)


@production("layers", "prelu")
def _prelu(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() >= 2)
    count = draft.rng.choice([1, constant(draft, x, 1)])
    w = weight(draft, count, dtype=_dtype(draft, x))
    return Made(f"{_F}prelu({{0}}, {{1}})", (x, w), rough=True)


@production("layers", "rearranged", 2)
def _rearranged(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() == 4)
    options = {"dilation": draft.rng.choice([1, 2]), "padding": draft.rng.choice([0, 1])}
    unfold = f"{_F}unfold({{0}}, 2, stride={{1}}{_text(options, 2)})"
    ways = [
        f"{_F}pixel_unshuffle({{0}}, {{1}})",
        f"{_F}pixel_shuffle({{0}}.repeat(1, 4, 1, 1), 2)",
        f"{_F}channel_shuffle({{0}}, {{1}})",
        unfold,
        f"{_F}fold({unfold}, {{0}}.shape[2:], 2, stride={{1}}{_text(options, 2)})",
    ]
    operands = (x, draft.rng.choice([1, 2]), *options.values())
    return Made(draft.rng.choice(ways), operands, rough=True)


@production("layers", "sampled")
def _sampled(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() == 4)
    corners = draft.rng.choice([False, True])
    theta = "(torch.eye(2, 3, dtype={0}.dtype).expand({0}.shape[0], 2, 3) * {1})"
    text = (
        f"{_F}grid_sample({{0}}, {_F}affine_grid({theta}, {{0}}.shape, {corners}), "
        f"mode={{2}}, padding_mode={{3}}, align_corners={corners})"
    )
    mode = draft.rng.choice(["bilinear", "nearest", "bicubic"])
    outside = draft.rng.choice(["zeros", "border", "reflection"])
    return Made(text, (x, draft.rng.choice([0.9, 1.3]), mode, outside), rough=True)

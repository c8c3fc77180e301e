"""Recurrent layers: loops over the steps of time, forward and backward.

`recurrent/operators.py` states the cells: Elman networks, GRUs (Cho et al., 2014) and LSTMs
(Hochreiter and Schmidhuber, 1997) with torch's order of gates. The products with the inputs are one
product of matrices before the loop. Half precision is computed in float32 and rounded at the end of
each step, like the state in ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.kernel_attributes import Recurrence
from pjrt_bridge.torch_interop.lowering.context import INT64, Context, OptionalValues
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.recurrent.operators import SAVED

_LSTM = 2
"""ideep's number of this kind of layer, the only one in torch's graphs."""


@lowering("aten.mkldnn_rnn_layer.default")
def recurrent_layer(
    c: Context,
    x: Value,
    weight_input: Value,
    weight_state: Value,
    bias_input: Value,
    bias_state: Value,
    hidden: Value,
    cell: Value,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[Value, Value, Value, Value]:
    """One layer in one direction: (time, batch, inputs) to (time, batch, hidden_size).

    Gives also the last hidden and cell states, (1, batch, hidden_size), and oneDNN's workspace,
    which is empty. `reverse` runs from the last step to the first; every output stays at its step.
    """
    if mode != _LSTM or num_layers != 1 or bidirectional or batch_first or batch_sizes or train:
        raise NotLowerable("a fused recurrent layer other than one of an LSTM in inference")
    b, dtype = c.b, x.dtype
    steps, batch, inputs = x.shape
    rows = b.reshape(c.widen(x), (steps * batch, inputs))
    given = _product(c, rows, _turned(c, c.widen(weight_input)))
    given = b.reshape(given, (steps, batch, given.shape[1]))
    if has_biases:
        bias = b.add(c.widen(bias_input), c.widen(bias_state))
        given = b.add(given, b.broadcast_in_dim(bias, given.shape, (2,)))
    state = (batch, hidden_size)
    h, s = b.reshape(hidden, state), b.reshape(cell, state)
    scanned = _forward(c, given, h, s, weight_state, None, "lstm", reverse, None, dtype, save=False)
    outputs, _, _, h, s = scanned
    workspace = c.outputs[3]
    if workspace is None or workspace.size:
        raise NotLowerable("a fused recurrent layer that keeps a workspace")
    empty = b.full(workspace.shape, 0, workspace.dtype)
    return outputs, b.reshape(h, (1, *state)), b.reshape(s, (1, *state)), empty


@lowering("pjrt_bridge.recurrence.default")
def recurrence(
    c: Context,
    given: Value,
    h: Value,
    s: Value,
    weight: Value,
    bias: Value | None,
    kind: str,
    reverse: bool,
    save: bool,
    length: Value | None = None,
) -> OptionalValues:
    """A layer in one direction, of the products with its inputs; see `recurrent/operators.py`."""
    how = Recurrence(kind, reverse)
    made = c.kernels.recurrence(c.b, given, (h, s), weight, bias, length, how, save=save)
    if made is not None:
        return c.promised(*made)
    found = _forward(c, given, h, s, weight, bias, kind, reverse, length, h.dtype, save=save)
    return c.promised(*found[:3])


def _forward(
    c: Context,
    given: Value,
    h: Value,
    s: Value,
    weight: Value,
    bias: Value | None,
    kind: str,
    reverse: bool,
    length: Value | None,
    dtype: DType,
    *,
    save: bool,
) -> tuple[Value, Value, Value, Value, Value]:
    """States, cells and what gradients need of all steps; the last state and the last cells."""
    b, (batch, size) = c.b, h.shape
    given, recurrent = c.widen(given), _turned(c, c.widen(weight))
    offset = None if bias is None else c.widen(bias)
    has_cells, saved = kind == "lstm", SAVED[kind] * size if save else 0
    widths = (size, size if has_cells else 0, saved)

    def step(at: Value, values: tuple[Value, ...]) -> tuple[Value, ...]:
        h, s, *made = values
        row = _row(c, given, at)
        wide = c.widen(h)
        product = _product(c, wide, recurrent)
        if offset is not None:
            product = b.add(product, b.broadcast_in_dim(offset, product.shape, (1,)))
        wide, cells, gates = _cell(c, kind, row, product, wide, c.widen(s))
        h = b.convert(wide, dtype)
        results = [h]
        if has_cells:
            s = b.convert(cells, dtype)
            results.append(s)
        if saved:
            results.append(b.convert(b.concatenate(gates, 1), dtype))
        return h, s, *(_placed(c, into, at, row) for into, row in zip(made, results, strict=True))

    steps = given.shape[0]
    stacks = [c.full((steps, batch, width), 0, dtype) for width in widths]
    kept = [True, has_cells, bool(saved)]
    start = (h, s, *(stack for stack, keep in zip(stacks, kept, strict=True) if keep))
    h, s, *made = _scan(c, _count(c, steps, length), start, step, backwards=reverse)
    outputs, cells, gates = (
        made.pop(0) if keep else stack for stack, keep in zip(stacks, kept, strict=True)
    )
    return outputs, cells, gates, h, s


def _cell(
    c: Context, kind: str, given: Value, product: Value, h: Value, s: Value
) -> tuple[Value, Value, list[Value]]:
    """The next state, the next cells, and what gradients need."""
    b = c.b
    if kind == "gru":
        (r, z, n), (reset, update, new) = _gates(c, given, 3), _gates(c, product, 3)
        r, z = b.logistic(b.add(r, reset)), b.logistic(b.add(z, update))
        n = b.tanh(b.add(n, b.multiply(r, new)))
        return b.add(n, b.multiply(z, b.subtract(h, n))), s, [r, z, n, new]
    total = b.add(given, product)
    if kind == "tanh":
        return b.tanh(total), s, []
    if kind == "relu":
        return b.maximum(total, b.full(total.shape, 0, total.dtype)), s, []
    i, f, g, o = _gates(c, total, 4)
    i, f, g, o = b.logistic(i), b.logistic(f), b.tanh(g), b.logistic(o)
    s = b.add(b.multiply(f, s), b.multiply(i, g))
    return b.multiply(o, b.tanh(s)), s, [i, f, g, o]


@lowering("pjrt_bridge.recurrence_backward.default")
def recurrence_backward(
    c: Context,
    of_outputs: Value,
    of_cells: Value,
    outputs: Value,
    cells: Value,
    saved: Value,
    h: Value,
    s: Value,
    weight: Value,
    kind: str,
    reverse: bool,
    length: Value | None = None,
) -> OptionalValues:
    """Gradients of `recurrence` by what it was given, its products, and its first state."""
    b, dtype = c.b, outputs.dtype
    called = c.kernels.recurrence_gradients(
        b,
        (of_outputs, of_cells),
        (outputs, cells, saved),
        (h, s),
        weight,
        length,
        Recurrence(kind, reverse),
    )
    if called is not None:
        return c.promised(*called)
    recurrent = c.widen(weight)
    count = _count(c, outputs.shape[0], length)
    states = (cells, s) if kind == "lstm" else (outputs, h)
    last = _before(c, *states, count, reverse)

    def step(at: Value, values: tuple[Value, ...]) -> tuple[Value, ...]:
        of_h, of_s, *made = values
        of_h = b.add(of_h, _row(c, of_outputs, at))
        output, direct, through = _row(c, outputs, at), None, None
        one = b.full(output.shape, 1, output.dtype)
        if kind == "tanh":
            total = b.multiply(of_h, b.subtract(one, b.multiply(output, output)))
        elif kind == "relu":
            zero = b.full(output.shape, 0, output.dtype)
            total = b.select(b.compare(output, zero, "GT"), of_h, zero)
        elif kind == "gru":
            r, z, n, new = _gates(c, _row(c, saved, at), 4)
            of_n = b.multiply(b.multiply(of_h, b.subtract(one, z)), _slope_of_tanh(c, n))
            of_r = b.multiply(b.multiply(of_n, new), _slope_of_logistic(c, r))
            change = b.subtract(_row(c, last, at), n)
            of_z = b.multiply(b.multiply(of_h, change), _slope_of_logistic(c, z))
            total = b.concatenate([of_r, of_z, of_n], 1)
            through = b.concatenate([of_r, of_z, b.multiply(of_n, r)], 1)
            direct = b.multiply(of_h, z)
        else:
            i, f, g, o = _gates(c, _row(c, saved, at), 4)
            bent = b.tanh(_row(c, cells, at))
            by_output = b.multiply(b.multiply(of_h, o), _slope_of_tanh(c, bent))
            of_s = b.add(b.add(of_s, _row(c, of_cells, at)), by_output)
            gates = [
                b.multiply(b.multiply(of_s, g), _slope_of_logistic(c, i)),
                b.multiply(b.multiply(of_s, _row(c, last, at)), _slope_of_logistic(c, f)),
                b.multiply(b.multiply(of_s, i), _slope_of_tanh(c, g)),
                b.multiply(b.multiply(of_h, bent), _slope_of_logistic(c, o)),
            ]
            total, of_s = b.concatenate(gates, 1), b.multiply(of_s, f)
        results = [total] if through is None else [total, through]
        of_h = _product(c, results[-1], recurrent)
        if direct is not None:
            of_h = b.add(of_h, direct)
        rows = [_placed(c, into, at, row) for into, row in zip(made, results, strict=True)]
        return of_h, of_s, *rows

    steps, batch, _ = outputs.shape
    shape = (steps, batch, weight.shape[0])
    # In half precision gradients are summed in float32 and rounded once.
    stacks = [c.full(shape, 0, recurrent.dtype)] * (2 if kind == "gru" else 1)
    first = (c.full(state.shape, 0, recurrent.dtype) for state in (h, s))
    of_h, of_s, *made = _scan(c, count, (*first, *stacks), step, backwards=not reverse)
    if kind != "gru":
        made.append(c.full((steps, batch, 0), 0, recurrent.dtype))
    return c.promised(*(b.convert(item, dtype) for item in (*made, of_h, of_s)))


# -- steps -----------------------------------------------------------------------------------------


def _count(c: Context, steps: int, length: Value | None) -> Value:
    """How many steps there are."""
    if length is None:
        return c.b.full((), steps, INT64)
    return c.b.convert(c.b.reshape(length, ()), INT64)


def _scan(
    c: Context,
    steps: Value,
    start: Sequence[Value],
    step: Callable[[Value, tuple[Value, ...]], tuple[Value, ...]],
    *,
    backwards: bool,
) -> tuple[Value, ...]:
    """What `step` makes of its values, from the first index to the last, or backwards."""
    b = c.b
    one = b.full((), 1, INT64)
    last = b.subtract(steps, one)

    def more(values: tuple[Value, ...]) -> Value:
        return b.compare(values[0], steps, "LT")

    def turn(values: tuple[Value, ...]) -> tuple[Value, ...]:
        count, *others = values
        at = b.subtract(last, count) if backwards else count
        return b.add(count, one), *step(at, tuple(others))

    _, *made = b.while_((b.full((), 0, INT64), *start), more, turn)
    return tuple(made)


def _product(c: Context, x: Value, y: Value) -> Value:
    """A product of matrices, in the type that a step computes in."""
    return c.kernels.product(c.b, x, y, accumulator=x.dtype, dtype=x.dtype)


def _turned(c: Context, weight: Value) -> Value:
    """Weights as torch has them, one row for each result, as the right side of a product."""
    return c.b.transpose(weight, (1, 0))


def _row(c: Context, x: Value, at: Value) -> Value:
    """The row that a step reads, in the type that it computes in."""
    zero = c.b.full((), 0, INT64)
    _, *sizes = x.shape
    found = c.b.dynamic_slice(x, (at, *[zero] * len(sizes)), (1, *sizes))
    return c.widen(c.b.reshape(found, sizes))


def _placed(c: Context, into: Value, at: Value, row: Value) -> Value:
    """The stack with a step's row in its place."""
    zero = c.b.full((), 0, INT64)
    row = c.b.reshape(row, (1, *row.shape))
    return c.b.dynamic_update_slice(into, row, (at, *[zero] * (len(into.shape) - 1)))


def _before(c: Context, states: Value, first: Value, count: Value, reverse: bool) -> Value:
    """For each step the state before it; what is behind the last step is read by none."""
    b, (steps, *sizes) = c.b, states.shape
    first = b.reshape(first, (1, *sizes))
    if not reverse:
        rest = b.slice(states, (0, *[0] * len(sizes)), (steps - 1, *sizes))
        return b.concatenate([first, rest], 0)
    rest = b.slice(states, (1, *[0] * len(sizes)), (steps, *sizes))
    zero = b.full((), 0, INT64)
    at = (b.subtract(count, b.full((), 1, INT64)), *[zero] * len(sizes))
    return b.dynamic_update_slice(b.concatenate([rest, first], 0), first, at)


def _gates(c: Context, x: Value, count: int) -> list[Value]:
    """The parts of a row, one for each gate."""
    batch, width = x.shape
    size = width // count
    return [c.b.slice(x, (0, k * size), (batch, (k + 1) * size)) for k in range(count)]


def _slope_of_tanh(c: Context, y: Value) -> Value:
    return c.b.subtract(c.b.full(y.shape, 1, y.dtype), c.b.multiply(y, y))


def _slope_of_logistic(c: Context, y: Value) -> Value:
    return c.b.multiply(y, c.b.subtract(c.b.full(y.shape, 1, y.dtype), y))

"""The fused recurrent layer that LSTMs become in inference.

Hochreiter and Schmidhuber, "Long short-term memory" (1997), with torch's order of gates: input,
forget, cell, output. The products with the inputs are one product of matrices; a loop over time has
those with the state. Half precision is computed in float32 and rounded at the end of each step,
like the state in ATen.
"""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT64, Context
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

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
    time, batch, _ = x.shape
    state = (batch, hidden_size)
    gates = (batch, 4 * hidden_size)
    given = b.dot_general(c.widen(x), c.widen(weight_input), lhs_contract=(2,), rhs_contract=(1,))
    if has_biases:
        bias = b.add(c.widen(bias_input), c.widen(bias_state))
        given = b.add(given, b.broadcast_in_dim(bias, given.shape, (2,)))
    recurrence = c.widen(weight_state)
    zero, one = b.full((), 0, INT64), b.full((), 1, INT64)
    last = b.full((), time - 1, INT64)

    def more(values: tuple[Value, ...]) -> Value:
        return b.compare(values[0], b.full((), time, INT64), "LT")

    def step(values: tuple[Value, ...]) -> tuple[Value, ...]:
        turn, h, s, outputs = values
        at = b.subtract(last, turn) if reverse else turn
        row = b.reshape(b.dynamic_slice(given, (at, zero, zero), (1, *gates)), gates)
        product = b.dot_general(c.widen(h), recurrence, lhs_contract=(1,), rhs_contract=(1,))
        total = b.add(row, product)
        i, f, g, o = (
            b.slice(total, (0, k * hidden_size), (batch, (k + 1) * hidden_size)) for k in range(4)
        )
        remembered = b.multiply(b.logistic(f), c.widen(s))
        s = b.add(remembered, b.multiply(b.logistic(i), b.tanh(g)))
        h = b.convert(b.multiply(b.logistic(o), b.tanh(s)), dtype)
        outputs = b.dynamic_update_slice(outputs, b.reshape(h, (1, *state)), (at, zero, zero))
        return b.add(turn, one), h, b.convert(s, dtype), outputs

    start = (
        zero,
        b.reshape(hidden, state),
        b.reshape(cell, state),
        c.full((time, *state), 0, dtype),
    )
    _, h, s, outputs = b.while_(start, more, step)
    workspace = c.outputs[3]
    if workspace is None or workspace.size:
        raise NotLowerable("a fused recurrent layer that keeps a workspace")
    empty = b.full(workspace.shape, 0, workspace.dtype)
    return outputs, b.reshape(h, (1, *state)), b.reshape(s, (1, *state)), empty

"""`torch.lstm`, `gru`, `rnn_tanh` and `rnn_relu` of padded sequences, over one operator a layer.

Arguments and results are those of torch's functions, which `nn.LSTM` and its like call: the input
is (time, batch, features), or (batch, time, features) with `batch_first`; hidden states are
(layers * directions, batch, size). `is_supported` tells of which calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pjrt_bridge.torch_interop import compat

# Importing it defines the operator.
from pjrt_bridge.torch_interop.recurrent.operators import NAMESPACE


def is_supported(
    weights: int, has_biases: bool, num_layers: int, bidirectional: bool = False
) -> bool:
    """Whether a layer has so many weights as one without projections of its state.

    Args:
        weights: how many.
        has_biases: see `torch.lstm`.
        num_layers: see there.
        bidirectional: see there.
    """
    return weights == num_layers * (1 + bidirectional) * (4 if has_biases else 2)


def lstm(input: Tensor, hx: Sequence[Tensor], *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """`torch.lstm`: the outputs, the last hidden states and the last cells."""
    return _layers("lstm", input, hx[0], hx[1], *others)


def _without_cells(kind: str, input: Tensor, hx: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    cells = hx.new_empty(hx.shape[0], hx.shape[1], 0)
    output, hidden, _ = _layers(kind, input, hx, cells, *others)
    return output, hidden


def gru(input: Tensor, hx: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """`torch.gru`: the outputs and the last hidden states."""
    return _without_cells("gru", input, hx, *others)


def rnn_tanh(input: Tensor, hx: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """`torch.rnn_tanh`: the outputs and the last hidden states."""
    return _without_cells("tanh", input, hx, *others)


def rnn_relu(input: Tensor, hx: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """`torch.rnn_relu`: the outputs and the last hidden states."""
    return _without_cells("relu", input, hx, *others)


def _layers(
    kind: str,
    x: Tensor,
    hidden: Tensor,
    cells: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    save = torch.is_grad_enabled() and any(
        item.requires_grad for item in (x, hidden, cells, *params)
    )
    recurrence = getattr(torch.ops, NAMESPACE).recurrence
    directions, count = (2 if bidirectional else 1), (4 if has_biases else 2)
    if batch_first:
        x = x.transpose(0, 1)
    if x.shape[0] == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    last_hidden, last_cells = [], []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            weight_input, weight_state, *biases = params[at * count : (at + 1) * count]
            bias_input, bias_state = biases if has_biases else (None, None)
            given = functional.linear(x, weight_input, bias_input)
            # Under autocast the product has another type than the state, which a GRU adds up.
            dtype = hidden.dtype if kind == "gru" else given.dtype
            bias = None if bias_state is None else bias_state.to(dtype)
            state = (hidden[at].to(dtype), cells[at].to(dtype), weight_state.to(dtype), bias)
            output, memory, _ = recurrence(given.to(dtype), *state, kind, direction == 1, save)
            outputs.append(output)
            last_hidden.append(output[0 if direction else -1])
            last_cells.append(memory[0 if direction else -1])
        x = outputs[0] if directions == 1 else torch.cat(outputs, 2)
        if dropout and train and layer < num_layers - 1:
            x = functional.dropout(x, dropout, True)
    if batch_first:
        x = x.transpose(0, 1)
    return x, torch.stack(last_hidden), torch.stack(last_cells)


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    torch.lstm: lstm,
    torch.gru: gru,
    torch.rnn_tanh: rnn_tanh,
    torch.rnn_relu: rnn_relu,
}
"""By torch's function that of this module."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The functions by ATen's operators, for graphs that hold these."""
    found = {
        compat.operator(f"aten.{function.__name__}.input"): instead
        for function, instead in FUNCTIONS.items()
    }
    return {operator: _decomposed(operator, instead) for operator, instead in found.items()}


def _decomposed(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def decompose(input: Tensor, hx: Any, params: Sequence[Tensor], *options: Any) -> Any:
        has_biases, num_layers, _, _, bidirectional, _ = options
        if is_supported(len(params), has_biases, num_layers, bidirectional):
            return function(input, hx, params, *options)
        return operator.decompose(input, hx, params, *options)

    return decompose

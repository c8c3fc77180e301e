"""Modules of recurrent layers: loops on the device, forward and backward, as in eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import compat, compiled_graphs, export
from tests.torch_interop.helpers import assert_same

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

KINDS: dict[str, Any] = {
    "rnn": nn.RNN,
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "two layers": {"num_layers": 2},
    "both directions": {"bidirectional": True, "num_layers": 2},
    "without biases": {"bias": False},
}


def states(kind: str, layer: Any, batch: int) -> Any:
    """First states that require gradients."""
    shape = (layer.num_layers * (1 + layer.bidirectional), batch, layer.hidden_size)
    made = [torch.linspace(-1, 1, 4 * batch * 5)[: torch.Size(shape).numel()] for _ in range(2)]
    first = [(item + at).view(shape).requires_grad_() for at, item in enumerate(made)]
    return tuple(first) if kind == "lstm" else first[0]


def gradients(function: Any, layer: Any, x: torch.Tensor, first: Any = None) -> list[Any]:
    """What a call gives, and the gradients of all that it takes."""
    layer.zero_grad()
    leaves = [x, *(first if isinstance(first, tuple) else [] if first is None else [first])]
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    given = leaves[1:]
    state = tuple(given) if isinstance(first, tuple) else given[0] if given else None
    output, last = function(leaves[0], state)
    lasts = last if isinstance(last, tuple) else (last,)
    weights = torch.linspace(-1, 2, output.numel()).view(output.shape).to(output.device)
    ((output * weights).sum() + sum(item.square().sum() for item in lasts)).backward()
    found = [output, *lasts, *(leaf.grad for leaf in leaves)]
    return [item.detach().clone() for item in (*found, *(p.grad for p in layer.parameters()))]


def on_device() -> bool:
    """Whether all that was compiled runs on the device."""
    found = compiled_graphs()
    return bool(found) and all(
        segment.placement == "device" for graph in found for segment in graph.segments
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_training(kind: str, form: str) -> None:
    layer = KINDS[kind](3, 5, **FORMS[form])
    batch = 7 if layer.batch_first else 2
    x, first = torch.randn(7, 2, 3), states(kind, layer, batch)
    run = torch.compile(layer, backend="pjrt", fullgraph=True)
    for state in (None, first):
        for found, expected in zip(
            gradients(run, layer, x, state), gradients(layer, layer, x, state), strict=True
        ):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert found.stride() == expected.stride()
    assert on_device()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_inference(kind: str, dtype: torch.dtype) -> None:
    layer = KINDS[kind](4, 6, num_layers=2, bidirectional=True, dropout=0.5).eval().to(dtype)
    x = torch.randn(9, 3, 4, dtype=dtype)
    run = torch.compile(layer, backend="pjrt", fullgraph=True)
    bound = 2e-2 if dtype is torch.bfloat16 else 1e-5
    with torch.no_grad():
        for given in (x, x[:, 0]):
            found, last = run(given)
            expected, theirs = layer(given)
            torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
            torch.testing.assert_close(last, theirs, rtol=bound, atol=bound)
    assert on_device()


@pytest.mark.parametrize("kind", KINDS)
def test_pytorch_runs_the_same_on_the_host(kind: str) -> None:
    layer, x = KINDS[kind](3, 5, bidirectional=True), torch.randn(4, 2, 3)
    operators = ["pjrt_bridge.recurrence", "pjrt_bridge.recurrence_backward"]
    run = torch.compile(layer, backend="pjrt", options={"host_ops": operators})
    first = states(kind, layer, 2)
    for found, expected in zip(
        gradients(run, layer, x, first), gradients(layer, layer, x, first), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not on_device()


def test_the_number_of_steps_makes_no_more_nodes() -> None:
    layer = nn.LSTM(3, 4)
    run = torch.compile(layer, backend="pjrt", fullgraph=True, dynamic=True)
    before = compat.graphs_made()
    for steps in (2, 5, 40, 300):
        x = torch.randn(steps, 2, 3)
        for found, expected in zip(
            gradients(run, layer, x), gradients(layer, layer, x), strict=True
        ):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert compat.graphs_made() <= before + 2
    counts = [sum(map(len, (s.operators for s in graph.segments))) for graph in compiled_graphs()]
    assert max(counts) < 40


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_and_batches_that_change_share_programs(kind: str) -> None:
    layer = KINDS[kind](3, 4, bidirectional=True)
    run = torch.compile(layer, backend="pjrt", fullgraph=True, dynamic=True)
    sizes = [(5, 2), (6, 3), (9, 2), (11, 7), (7, 5), (12, 4), (10, 6), (8, 3), (13, 2), (14, 9)]
    for steps, batch in sizes:
        x, first = torch.randn(steps, batch, 3), states(kind, layer, batch)
        for state in (None, first):
            for found, expected in zip(
                gradients(run, layer, x, state), gradients(layer, layer, x, state), strict=True
            ):
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert on_device()
    # Forward and backward, of the first sizes and of padded ones, with a state and without.
    assert len(compiled_graphs()) < 30


def test_dropout_between_layers_is_drawn_anew() -> None:
    layer = nn.GRU(3, 8, num_layers=2, dropout=0.5)
    run = torch.compile(layer, backend="pjrt", fullgraph=True)
    x = torch.randn(6, 2, 3)
    torch.manual_seed(1)
    one, other = run(x)[0], run(x)[0]
    assert not torch.equal(one, other)
    torch.manual_seed(1)
    assert_same(run(x)[0], one)
    layer.eval()
    torch.testing.assert_close(run(x)[0], layer(x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind: str) -> None:
    layer, x = KINDS[kind](8, 16), torch.randn(5, 3, 8)
    run = torch.compile(layer, backend="pjrt")
    with torch.autocast("cpu", torch.bfloat16):
        found = run(x)
        try:
            expected = layer(x)
        except RuntimeError as error:
            # OneDNN has an LSTM in bfloat16 for some processors only.
            if "primitive descriptor" not in str(error):
                raise
            expected = None
    is_eager = expected is not None
    for one, other in zip(found, expected if is_eager else layer(x), strict=True):
        torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2, check_dtype=is_eager)


class Tagger(nn.Module):
    """Sequences of several lengths."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True, **options)
        self.head = nn.Linear(self.layer.proj_size or 4, 2)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of all positions."""
        if lengths is None:
            return self._of(self.layer(x)[0])
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, _ = pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self._of(output)

    def _of(self, output: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(output)
        return logits


def test_packed_sequences_run_in_pytorch() -> None:
    model, x = Tagger(), torch.randn(3, 6, 3)
    run = torch.compile(model, backend="pjrt")
    for lengths in ([6, 4, 1], [2, 6, 3]):
        found = run(x, torch.tensor(lengths))
        torch.testing.assert_close(found, model(x, torch.tensor(lengths)), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("pjrt_device")
@pytest.mark.parametrize("kind", KINDS)
def test_eager_calls_on_the_device(kind: str) -> None:
    layer = KINDS[kind](3, 4, num_layers=2, bidirectional=True)
    resident = copy.deepcopy(layer).to("pjrt")
    for steps in (3, 8):
        x = torch.randn(steps, 2, 3)
        ours = gradients(resident, resident, x.to("pjrt"))
        for found, expected in zip(ours, gradients(layer, layer, x), strict=True):
            assert found.device.type == "pjrt"
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["plain", "batch first", "both directions"])
def test_sequences_of_no_steps_are_refused_as_by_pytorch(kind: str, form: str) -> None:
    layer = KINDS[kind](3, 4, **FORMS[form])
    compiled = torch.compile(layer, backend="pjrt")
    x = torch.ones(2, 0, 3) if form == "batch first" else torch.ones(0, 2, 3)
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        compiled(x)
    layer.to("pjrt")
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        layer(x.to("pjrt"))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_projected_states_run_in_pytorch() -> None:
    model, x = Tagger(proj_size=2), torch.randn(3, 6, 3)
    run = torch.compile(model, backend="pjrt")
    torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="its state is projected"):
        torch.compile(model, backend="pjrt", fullgraph=True)(x)


def test_other_backends_are_as_before() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match="allow_rnn"):
        torch.compile(nn.GRU(3, 4), backend="aot_eager", fullgraph=True)(torch.randn(2, 1, 3))


def test_what_torch_func_transforms_runs_in_pytorch() -> None:
    layer, x = nn.GRU(3, 4), torch.randn(5, 2, 3)
    gradient = torch.func.grad(lambda x: layer(x)[0].sum())
    found = torch.compile(lambda x: gradient(x) * 2, backend="pjrt")(x)
    torch.testing.assert_close(found, gradient(x) * 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_exported(client: Client, kind: str) -> None:
    layer, x = KINDS[kind](3, 5, bidirectional=True).eval(), torch.randn(40, 2, 3)
    with torch.no_grad(), export(layer, (x,)).load_on(client) as loaded:
        found = torch.from_dlpack(loaded(x)[0])
        torch.testing.assert_close(found, layer(x)[0], rtol=1e-4, atol=1e-5)
        text = export(layer, (x,)).program.text
    assert text.count("stablehlo.while") == 2


@pytest.mark.parametrize(("kind", "gates"), [("rnn_tanh", 1), ("rnn_relu", 1), ("gru", 3)])
def test_results_that_are_written_into_without_gradients(kind: str, gates: int) -> None:
    """Eager mode refuses it of an LSTM alone."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = x.new_ones(1, x.shape[1], 3)
        layer = getattr(torch, kind)
        outputs, last = layer(x, state, list(weights), False, 1, 0.0, False, False, False)
        with torch.no_grad():
            outputs.add_(1)
            last.mul_(2)
        return outputs, last

    x = torch.randn(4, 2, 5)
    weights = [torch.randn(3 * gates, size, requires_grad=True) for size in (5, 3)]
    found = []
    for run in (torch.compile(function, backend="pjrt"), function):
        results = run(x, *weights)
        gradients = torch.autograd.grad(results[0].square().sum(), weights)
        found.append([*(result.detach() for result in results), *gradients])
    torch.testing.assert_close(*found)

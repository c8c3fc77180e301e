"""Sizes that change, as users have them: without options."""

import copy
import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same, assert_same_gradients

pytestmark = pytest.mark.usefixtures("fresh")


class Encoder(nn.Module):
    """Attends within a text of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.places = nn.Embedding(600, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        x = self.layer(x, src_mask=mask)
        pooled = x.mean(1) + x.amax(1) + x[:, -1]
        return F.cross_entropy(self.head(x + pooled[:, None]).flatten(0, 1), labels.flatten())


def texts(length: int, batch: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 50, (batch, length))
    labels[0, :1] = -100
    return torch.randint(0, 50, (batch, length)), labels


def test_five_hundred_lengths_share_twelve_programs() -> None:
    model = Encoder().eval()
    run = torch.compile(model, backend="pjrt")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for at, length in enumerate(torch.randint(2, 513, (500,), generator=generator).tolist()):
            given = texts(length, 1)
            found = run(*given)
            if at % 10 == 0 or at < 20:
                assert_same(found, model(*given), rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) <= 12
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


def test_training_with_lengths_and_batches_that_change() -> None:
    model = Encoder()
    run = torch.compile(model, backend="pjrt")
    for length, batch in ((5, 3), (9, 3), (12, 3), (13, 2), (11, 5), (30, 4), (31, 4)):
        given = texts(length, batch)
        gradients = []
        for candidate in (run, model):
            model.zero_grad()
            candidate(*given).backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        assert_same(*gradients, rtol=1e-4, atol=1e-5)


def test_what_is_dropped_is_the_same_in_both_directions() -> None:
    run = torch.compile(lambda x: F.dropout(x.exp(), 0.3).square(), backend="pjrt")
    for length in (5, 9, 120, 112):
        x = torch.zeros(2, length, 4, requires_grad=True)
        made = run(x)
        made.sum().backward()
        assert x.grad is not None
        assert_same(x.grad, 2 * made)
        assert 0 < made.detach().count_nonzero() < made.numel()
    assert len(compiled_graphs()) == 2 * 3


def test_samples_of_any_length_are_those_without_padding() -> None:
    def sample(x: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=x.transpose(1, 2)).sample()

    run = torch.compile(sample, backend="pjrt")
    exact = torch.compile(lambda x: sample(x), backend="pjrt", options={"buckets": []})
    for length in (5, 9, 17, 120, 112, 13):
        x = torch.randn(2, length, 3)
        found = []
        for way in (run, exact) if length in (9, 17) else (run,):
            torch.manual_seed(length)
            found.append(way(x))
        assert torch.equal(found[0], found[-1])
        assert int(found[0].max()) < length
    padded = [graph for graph in compiled_graphs() if not graph.fallback_reasons]
    assert len(padded) <= 3 + 2
    with pytest.raises(RuntimeError, match=r"aten.multinomial.*nan"):
        compiled_weights()(torch.full((2, 9), torch.nan))


def compiled_weights() -> Any:
    """Draws by weights, compiled for sizes that change already."""
    run = torch.compile(lambda x: torch.multinomial(x.t() + 0, 1), backend="pjrt")
    for size in (5, 6):
        run(torch.ones(2, size))
    return run


def attention(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Queries, keys and values are parts of one product."""
    q, k, v = layer(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).sum()


def next_words(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """The last place has no next word."""
    words = torch.arange(x.shape[1]).remainder(24).expand(2, -1)
    scores = layer(x)[:, :-1].reshape(-1, 24)
    return F.cross_entropy(scores, words[:, 1:].reshape(-1), label_smoothing=0.1)


@pytest.mark.parametrize("function", [attention, next_words])
def test_forward_and_backward_graphs_are_padded(function: Any) -> None:
    layer = nn.Linear(8, 24)
    run = torch.compile(function, backend="pjrt")
    for length in (5, 9, 120, 112, 118, 110, 115):
        gradients = []
        for candidate in (run, function):
            layer.zero_grad()
            x = torch.linspace(-1, 1, 16 * length).view(2, length, 8)
            candidate(layer, x).backward()
            gradients.append([parameter.grad for parameter in layer.parameters()])
        assert_same(*gradients, rtol=1e-4, atol=1e-5)
    # Static, as it came, and padded; forward and backward may choose other sizes.
    assert len(compiled_graphs()) <= 8


def shifted_words(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Of the words, the first has no scores: torch has symbols of their own for their sizes."""
    scores, labels = scores.flatten(0, 1), words[:, 1:].flatten()
    return F.cross_entropy(scores, labels, ignore_index=0, label_smoothing=0.1)


def test_sizes_of_labels_follow_from_those_of_scores(capfd: pytest.CaptureFixture[str]) -> None:
    run = torch.compile(shifted_words, backend="pjrt")
    for length, batch in ((28, 7), (33, 9), (21, 7), (24, 8), (15, 10), (10, 9), (31, 3), (4, 8)):
        scores = torch.randn(batch, length, 20)
        words = torch.randint(0, 20, (batch, length + 1))
        gradients = []
        for candidate in (run, shifted_words):
            given = scores.clone().requires_grad_()
            candidate(given, words).backward()
            gradients.append(given.grad)
        assert_same(*gradients, rtol=1e-4, atol=1e-5)
    graphs = compiled_graphs()
    assert len(graphs) <= 2 * 3
    assert all(graph.on_device == len(graph.segments) for graph in graphs)
    assert "failed while attempting" not in capfd.readouterr().err


@pytest.mark.parametrize("training", [False, True])
def test_images_of_any_size(training: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2)
    ).train(training)
    other = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2)
    ).train(training)
    other.load_state_dict(model.state_dict())
    run = torch.compile(lambda x: model(x).mean((2, 3)), backend="pjrt")
    for size in (8, 9, 10, 11, 13, 14):
        x = torch.randn(2, 2, size, size + 1)
        found, expected = run(x), other(x).mean((2, 3))
        assert_same(found, expected, rtol=1e-4, atol=1e-5)
        if training:
            found.square().sum().backward()
            expected.square().sum().backward()
            assert_same_gradients(model, other)
    assert_same(list(model.buffers()), list(other.buffers()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [None, "causal", "padding"])
def test_the_encoder_layer_in_inference(mask: str | None) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    run = torch.compile(layer, backend="pjrt")
    with torch.no_grad():
        for length, batch in ((5, 2), (6, 2), (7, 3), (9, 3), (12, 4)):
            x = torch.randn(batch, length, 16)
            settings = {}
            if mask == "causal":
                settings["src_mask"] = torch.ones(length, length).triu(1).bool()
            elif mask == "padding":
                hidden = torch.zeros(batch, length, dtype=torch.bool)
                hidden[0, 3:] = True
                settings["src_key_padding_mask"] = hidden
            found, expected = run(x, **settings), layer(x, **settings)
            if mask == "padding":
                # Eager packs the words that are there and gives zeros for the others.
                found, expected = found[1:], expected[1:]
            assert_same(found, expected, rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) <= 5


@pytest.mark.parametrize("mask", [None, "causal", "padding"])
@pytest.mark.parametrize("averaged", [None, False, True])
def test_multi_head_attention_in_inference(averaged: bool | None, mask: str | None) -> None:
    layer = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    weights = {"need_weights": averaged is not None, "average_attn_weights": bool(averaged)}

    def run(x: torch.Tensor, **settings: Any) -> tuple[torch.Tensor, ...]:
        found = layer(x, x, x, **weights, **settings)
        return found if averaged is not None else found[:1]

    compiled = torch.compile(run, backend="pjrt")
    with torch.no_grad():
        for length, batch in ((5, 2), (6, 2), (7, 3), (9, 3), (12, 4)):
            x = torch.randn(batch, length, 16)
            settings = {}
            if mask == "causal":
                settings["attn_mask"] = torch.ones(length, length).triu(1).bool()
            elif mask == "padding":
                settings["key_padding_mask"] = torch.zeros(batch, length, dtype=torch.bool)
                settings["key_padding_mask"][0, 3:] = True
            assert_same(compiled(x, **settings), run(x, **settings), rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) <= 5


def generated(model: Any, prompt: torch.Tensor, **settings: Any) -> Any:
    with torch.no_grad():
        return model.generate(prompt, max_new_tokens=40, min_new_tokens=40, **settings)


@pytest.mark.parametrize("settings", [{"do_sample": False}, {"num_beams": 3}], ids=str)
def test_generation_with_the_default_cache(settings: dict[str, Any]) -> None:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=128,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    prompts = [torch.randint(1, 64, (1, length)) for length in (5, 11, 7)]
    expected = [generated(model, prompt, **settings) for prompt in prompts]
    model.forward = torch.compile(model.forward, backend="pjrt")
    counts = []
    for prompt, one in zip(prompts, expected, strict=True):
        assert torch.equal(generated(model, prompt, **settings), one)
        counts.append(len(compiled_graphs()))
    assert counts[0] <= 8
    assert counts[1] - counts[0] <= 2
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


def windows(x: torch.Tensor) -> torch.Tensor:
    """Attends within windows of four by four."""
    batch, height, width, channels = x.shape
    parts = x.roll((-2, -2), (1, 2)).view(batch, height // 4, 4, width // 4, 4, channels)
    rows = parts.transpose(2, 3).reshape(-1, 16, channels)
    rows = (rows @ rows.transpose(1, 2)).softmax(-1) @ rows
    parts = rows.view(batch, height // 4, width // 4, 4, 4, channels).transpose(2, 3)
    return parts.reshape(batch, height, width, channels)


def test_sizes_that_a_model_divides() -> None:
    run = torch.compile(windows, backend="pjrt")
    for count in (6, 3, 1, 4, 9, 8, 2, 7):
        gradients = []
        for candidate in (run, windows):
            shape = (1, 4 * (count + 1), 4 * (count + 2), 6)
            x = torch.linspace(-1, 1, math.prod(shape)).view(shape).requires_grad_()
            made = candidate(x)
            made.square().sum().backward()
            gradients.append([made.detach(), x.grad])
        assert_same(*gradients, rtol=1e-4, atol=1e-5)
    # Forward and backward: the first, the second as it came, and padded ones.
    assert len(compiled_graphs()) <= 12


def test_two_lengths_that_change_need_few_programs() -> None:
    layer = nn.TransformerDecoderLayer(8, 2, 8, dropout=0.0, batch_first=True).eval()
    run = torch.compile(layer, backend="pjrt")
    random = Random(0)
    with torch.no_grad():
        for at in range(120):
            target, memory = (torch.randn(1, random.randint(2, 300), 8) for _ in range(2))
            found = run(target, memory)
            if at % 10 == 0:
                assert_same(found, layer(target, memory), rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) <= 12


def test_first_sizes_share_a_program_where_padding_costs_little() -> None:
    run = torch.compile(lambda x: x.sum(0) + x, backend="pjrt")
    for size in (5, 5, 7, 5, 7, 8):
        x = torch.randn(size, 4)
        torch._dynamo.mark_dynamic(x, 0)
        assert_same(run(x), x.sum(0) + x, rtol=1e-5, atol=1e-5)
    (graph,) = compiled_graphs()
    assert graph.trigger is None


def test_training_with_sizes_that_changed_pads_the_first_of_them() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256))
    run = torch.compile(model, backend="pjrt")
    for rows in (500, 300, 310, 315):
        x = torch.randn(rows, 256)
        gradients = []
        for candidate in (run, model):
            model.zero_grad()
            candidate(x).square().sum().backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        assert_same(*gradients, rtol=1e-4, atol=1e-3)
    # Forward and backward: the sizes before they changed, and padded ones.
    assert len(compiled_graphs()) == 2 * 2


def test_a_size_that_falls_as_another_grows() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[y.shape[0] :].sum(0) + y.sum(0)

    run = torch.compile(function, backend="pjrt", dynamic=True)
    for rows in (9, 10, 11, 13, 14, 15, 16):
        x, y = torch.randn(rows, 4), torch.randn(3, 4)
        assert_same(run(x, y), function(x, y), rtol=1e-5, atol=1e-5)
    # The rows of one tensor are padded, those of the other are as they are.
    assert len(compiled_graphs()) == 1


def test_a_position_that_a_call_brings() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        x.view(-1)[n:].fill_(2)
        return x[: n + 1].sum(0)

    run = torch.compile(function, backend="pjrt", dynamic=True)
    for rows, n in ((3, 2), (4, 3), (5, 1), (6, 3), (6, -2)):
        found, expected = torch.randn(rows, 2), torch.zeros(rows, 2)
        expected.copy_(found)
        assert_same(run(found, n), function(expected, n))
        assert_same(found, expected)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_rows_move_around_by_a_number_that_changes_in_pytorch() -> None:
    def function(x: torch.Tensor, count: int) -> torch.Tensor:
        return (x * 2).roll((count, 1), (0, 1)).sum(0)

    options = {"host_ops": ["aten.roll"]}
    run = torch.compile(function, backend="pjrt", dynamic=True, options=options)
    for length, count in ((5, 1), (6, 2), (7, 3), (3, -1), (5, 9)):
        x = torch.randn(length, 3)
        assert_same(run(x, count), function(x, count), rtol=1e-5, atol=1e-6)


def test_numbers_that_sizes_give_keep_their_types() -> None:
    def function(x: torch.Tensor) -> Any:
        n = x.shape[0]
        given = (n > 3, n == x.shape[1], n / 2, n & 3, (n | 4) * 2, n**0.5, round(n / 3), n * 1.5)
        return x * 2, *given

    run = torch.compile(function, backend="pjrt", dynamic=True)
    for size in (4, 5, 2, 7):
        found, expected = (f(torch.ones(size, 2))[1:] for f in (run, function))
        assert found == expected
        assert [*map(type, found)] == [*map(type, expected)]


def test_strides_of_results_whose_sizes_are_differences_of_sizes_that_change() -> None:
    def function(x: torch.Tensor, count: int) -> torch.Tensor:
        return x[count:] * 2

    run = torch.compile(function, backend="pjrt", dynamic=True)
    for size, count in ((4, 2), (4, 1), (6, 2), (6, 0)):
        x = torch.randn(size, size).t()
        found, expected = run(x, count), function(x, count)
        assert_same(found, expected)
        assert found.stride() == expected.stride()


COLUMNS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "copied": lambda x: x.t()[:, :3].fill_(0.5).clone(memory_format=torch.preserve_format),
    "last, sorted": lambda x: x.split(x.shape[0] - 1)[-1][None].mT.clamp(min=0).sort(1).indices,
    "like": lambda x: torch.full_like(x.mT[:, :3], 2),
    "channels last": lambda x: x[:3].reshape(1, 3, 2, 2).clone(memory_format=torch.channels_last),
    "with gaps": lambda x: torch.empty_strided((2, 4), (8, 2)).copy_(x[1:3]),
}


@pytest.mark.parametrize("options", [{}, {"buckets": [8, 16]}], ids=["auto", "buckets"])
@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_strides_of_padded_copies_of_columns(
    columns: Callable[[torch.Tensor], torch.Tensor], options: dict[str, Any]
) -> None:
    run = torch.compile(columns, backend="pjrt", dynamic=True, options=options)
    for rows in (6, 4, 9):
        x = torch.arange(4.0 * rows).reshape(rows, 4)
        found, expected = run(x), columns(x)
        assert_same(found, expected)
        assert found.stride() == expected.stride()


def test_labels_and_words_have_batches_of_their_own() -> None:
    """Torch gives each a symbol, and the backward graph has only one of the two."""
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.BertForMaskedLM(config)

        def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=words, labels=labels).loss

    model = Loss()
    other = copy.deepcopy(model)
    run = torch.compile(model, backend="pjrt")
    for length, batch in ((50, 2), (70, 3), (80, 4), (33, 2), (60, 2), (90, 4), (17, 3), (100, 4)):
        words, labels = texts(length, batch)
        for one in (model, other):
            one.zero_grad()
        run(words, labels).backward()
        other(words, labels).backward()
        assert_same_gradients(model, other)
    graphs = compiled_graphs()
    assert all(graph.on_device == len(graph.segments) for graph in graphs)
    assert not any("not padded" in (graph.trigger or "") for graph in graphs)
    assert len(graphs) <= 8


def test_squares_are_cut_out_of_the_middle_of_images() -> None:
    def cut(x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        return x[..., top : top + side, left : left + side] * 2

    run = torch.compile(cut, backend="pjrt", fullgraph=True)
    random = Random(0)
    for _ in range(30):
        x = torch.randn(2, random.randint(4, 70), random.randint(4, 70))
        assert_same(run(x), cut(x))
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())
    assert len(compiled_graphs()) <= 12

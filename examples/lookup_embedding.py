"""Sentences to intents: a lookup table feeds an embedding model, trained and used as one function.

    python -m examples.lookup_embedding

Splitting a sentence and looking its words up are operators that no device runs: TensorFlow computes
them, and the plugin all the rest, the optimizer's step included. Nothing is downloaded.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from rich.console import Console
from rich.table import Table

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import HostFallbackWarning

PHRASES = {
    "weather": (
        ["will it rain", "how cold is it", "is it sunny"],
        ["today", "outside", "up north"],
    ),
    "music": (["play a song", "turn it up", "skip the song"], ["please", "a bit later", "for me"]),
    "travel": (["book a train", "find a flight", "when can I leave"], ["to the north", "today"]),
}
SENTENCES = {
    label: [f"{one} {other}" for one in first for other in second]
    for label, (first, second) in PHRASES.items()
}
NEW = [
    "is it cold up north",
    "please skip it",
    "Book me a flight to London",
    "how are you",
    "hello",
]
LABELS = list(SENTENCES)


class Intents(tf.Module):
    """Words are looked up, embedded and averaged; two dense layers tell the intent."""

    def __init__(self, vocabulary: Sequence[str], labels: int) -> None:
        super().__init__()
        words = tf.constant(list(vocabulary))
        # 0 is padding, and every word that is not in the vocabulary.
        indices = tf.range(1, len(vocabulary) + 1, dtype=tf.int64)
        entries = tf.lookup.KeyValueTensorInitializer(words, indices)
        self.table = tf.lookup.StaticHashTable(entries, default_value=0)
        start = tf.random.stateless_normal
        self.embedding = tf.Variable(start([len(vocabulary) + 1, 64], [0, 1]))
        self.hidden = tf.Variable(start([64, 512], [0, 2]) / 8)
        self.out = tf.Variable(start([512, labels], [0, 3]) / 23)
        self.optimizer = tf.keras.optimizers.Adam(0.001)
        self.optimizer.build(self.weights)

    @property
    def weights(self) -> list[tf.Variable]:
        """What is trained."""
        return [self.embedding, self.hidden, self.out]

    def logits(self, sentences: tf.Tensor) -> tf.Tensor:
        """A score for each sentence and intent, (n,) strings to (n, labels)."""
        words = tf.strings.split(tf.strings.lower(sentences))
        indices = tf.ragged.map_flat_values(self.table.lookup, words).to_tensor()
        known = tf.cast(indices > 0, tf.float32)[..., None]
        total = tf.reduce_sum(tf.gather(self.embedding, indices) * known, axis=1)
        mean = total / tf.maximum(tf.reduce_sum(known, axis=1), 1)
        return tf.nn.relu(mean @ self.hidden) @ self.out

    def predict(self, sentences: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The intent of each sentence in words, and how sure that is."""
        chances = tf.nn.softmax(self.logits(sentences))
        names = tf.gather(tf.constant(LABELS), tf.argmax(chances, axis=-1))
        return names, tf.reduce_max(chances, axis=-1)

    def step(self, sentences: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """One step of training; the loss before it."""
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=labels, logits=self.logits(sentences)
            )
            loss = tf.reduce_mean(losses)
        found = tape.gradient(loss, self.weights)
        self.optimizer.apply_gradients(zip(found, self.weights, strict=True))
        return loss


def microseconds(functions: Sequence[Callable[[], Any]], rounds: int = 100) -> list[float]:
    """The median of each function's calls, which take turns."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, own in zip(functions, times, strict=True):
            started = time.perf_counter()
            function()
            own.append(time.perf_counter() - started)
    return [statistics.median(own) * 1e6 for own in times]


def main() -> None:
    """Train on a few sentences, ask about new ones, and show what ran where."""
    warnings.simplefilter("ignore", HostFallbackWarning)
    console = Console()
    vocabulary = sorted({word for some in SENTENCES.values() for s in some for word in s.split()})
    model, plain = Intents(vocabulary, len(LABELS)), Intents(vocabulary, len(LABELS))
    sentences = tf.constant([sentence for some in SENTENCES.values() for sentence in some])
    labels = tf.constant([LABELS.index(name) for name, some in SENTENCES.items() for _ in some])

    step, reference = tf_interop.function(model.step), tf.function(plain.step)
    losses = [
        (float(step(sentences, labels)), float(reference(sentences, labels))) for _ in "." * 60
    ]
    console.print("loss with the bridge and with TensorFlow:")
    for number in (0, 19, 39, 59):
        console.print(f"  step {number + 1:2}  {losses[number][0]:.5f}  {losses[number][1]:.5f}")

    predict, asked = tf_interop.function(model.predict), tf.constant(NEW)
    names, chances = predict(asked)
    table = Table("sentence", "intent", "sure")
    for sentence, name, chance in zip(NEW, names.numpy(), chances.numpy(), strict=True):
        table.add_row(sentence, name.decode(), f"{chance:.2f}")
    console.print(table)

    ours, theirs = microseconds(
        [lambda: step(sentences, labels), lambda: reference(sentences, labels)]
    )
    console.print(f"one step: {ours:.0f} us with the bridge, {theirs:.0f} us with tf.function")
    console.print(tf_interop.explain(predict, asked))


if __name__ == "__main__":
    main()

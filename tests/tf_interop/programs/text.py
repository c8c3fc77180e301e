"""Strings, tables and parsing: what comes before a model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.tf_interop.programs.case import (
    Arguments,
    Generator,
    Instance,
    floats,
    given,
    mixed,
    numbers,
    weights,
    words,
)

ANIMALS = ["ant", "bee", "cat", "dog", "elk", "fox"]
STRANGERS = [*ANIMALS, "gnu", ""]


@mixed("StringToNumber AsString")
def string_conversion() -> Instance:
    """Numbers read from text, computed with, and written as text."""
    w = weights(4, 3)

    def run(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        scores = tf.tanh(tf.strings.to_number(text) @ w)
        # Rounded: the last digit of a float may differ.
        return scores, tf.strings.as_string(tf.argmax(scores, axis=-1))

    def inputs(rng: Generator) -> Arguments:
        return given(words(rng, ["1.5", "-2", "0.25", "3e-1"], 5, 4))

    return Instance(run, inputs, [w])


@mixed("LookupTableFindV2")
def static_table() -> Instance:
    """A vocabulary in front of an embedding and a dense layer."""
    keys = tf.constant(ANIMALS)
    entries = tf.lookup.KeyValueTensorInitializer(keys, tf.range(6, dtype=tf.int64))
    table = tf.lookup.StaticHashTable(entries, default_value=6)
    embedding, w = weights(7, 8), weights(8, 2, seed=1)

    def run(names: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        found = tf.gather(embedding, table.lookup(names))
        return tf.nn.softmax((tf.reduce_mean(found, axis=1) + x) @ w)

    def inputs(rng: Generator) -> Arguments:
        return given(words(rng, STRANGERS, 4, 5), floats(rng, 4, 8))

    return Instance(run, inputs, [embedding, w])


@mixed("LookupTableInsertV2 LookupTableFindV2", segments=2)
def mutable_table() -> Instance:
    """What is computed goes into a table, and is looked up after that."""
    table: Any = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, default_value=-1.0)
    w = weights(4, 4)

    def run(keys: tf.Tensor, x: tf.Tensor, asked: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        table.insert(keys, tf.reduce_sum(tf.tanh(x @ w), axis=-1))
        found = table.lookup(asked)
        return tf.reshape(found, [2, 4]) @ w, table.size()

    def inputs(rng: Generator) -> Arguments:
        keys = tf.identity(rng.permutation(20)[:6])
        return given(keys, floats(rng, 6, 4), numbers(rng, 20, 8, dtype=tf.int64))

    def seen() -> Any:
        keys, values = table.export()
        order = tf.argsort(keys)
        return tf.gather(keys, order), tf.gather(values, order)

    return Instance(run, inputs, [w], seen)


@mixed("LookupTableFindV2")
def keras_string_lookup() -> Instance:
    """StringLookup, Embedding and an MLP as one Keras model."""
    keras = tf.keras
    names = keras.Input((3,), dtype="string")
    index = keras.layers.StringLookup(vocabulary=ANIMALS)(names)
    x = keras.layers.Flatten()(keras.layers.Embedding(8, 4)(index))
    x = keras.layers.Dense(16, activation="relu")(x)
    model = keras.Model(names, keras.layers.Dense(2)(x))
    return Instance(
        model, lambda rng: given(words(rng, STRANGERS, 6, 3)), [v.value for v in model.variables]
    )


@mixed("StringUpper StringJoin")
def strings_beside_floats() -> Instance:
    """Texts that pass by a computation, changed and unchanged."""
    w = weights(4, 4)

    def run(text: tf.Tensor, x: tf.Tensor) -> dict[str, tf.Tensor]:
        joined = tf.strings.join([tf.strings.upper(text), tf.constant("!")], separator=" ")
        return {"y": tf.nn.relu(x @ w), "text": joined, "same": text, "x": x}

    return Instance(run, lambda rng: given(words(rng, ANIMALS, 3), floats(rng, 3, 4)), [w])


@mixed("ParseExampleV2")
def parse_example() -> Instance:
    """Serialized examples with dense, sparse and text features."""
    w = weights(4, 2)
    features = {
        "x": tf.io.FixedLenFeature([4], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
        "name": tf.io.FixedLenFeature([], tf.string, default_value=""),
        "tags": tf.io.VarLenFeature(tf.int64),
    }

    def run(serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        parsed = tf.io.parse_example(serialized, features)
        logits = tf.tanh(parsed["x"]) @ w
        tags = tf.sparse.to_dense(parsed["tags"], default_value=0)
        return logits, parsed["label"] * 2, parsed["name"], tags

    def inputs(rng: Generator) -> Arguments:
        return given(tf.constant([_example(rng, i) for i in range(5)]))

    return Instance(run, inputs, [w])


def _example(rng: Generator, index: int) -> bytes:
    """One serialized example; some lack their label, or have no tags."""
    make = tf.train.Feature
    found = {
        "x": make(float_list=tf.train.FloatList(value=rng.standard_normal(4))),
        "name": make(bytes_list=tf.train.BytesList(value=[ANIMALS[index].encode()])),
        "tags": make(int64_list=tf.train.Int64List(value=range(rng.integers(0, 3)))),
    }
    if index % 2:
        found["label"] = make(int64_list=tf.train.Int64List(value=[index]))
    return tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString()


@mixed("StringSplitV2 LookupTableFindV2 RaggedTensorToTensor")
def bag_of_words() -> Instance:
    """Sentences of different lengths: split, looked up, padded, embedded and averaged."""
    entries = tf.lookup.KeyValueTensorInitializer(ANIMALS, tf.range(1, 7, dtype=tf.int64))
    table = tf.lookup.StaticHashTable(entries, default_value=0)
    embedding, w = weights(7, 8), weights(8, 3, seed=1)

    def run(sentences: tf.Tensor) -> tf.Tensor:
        tokens = tf.ragged.map_flat_values(table.lookup, tf.strings.split(sentences))
        padded = tokens.to_tensor(default_value=0)
        mask = tf.cast(padded > 0, tf.float32)[..., None]
        total = tf.reduce_sum(tf.gather(embedding, padded) * mask, axis=1)
        return total / (1 + tf.reduce_sum(mask, axis=1)) @ w

    def inputs(rng: Generator) -> Arguments:
        return given(tf.constant([" ".join(rng.choice(ANIMALS, 1 + i)) for i in range(4)]))

    return Instance(run, inputs, [embedding, w])


@mixed("DecodeCSV")
def decode_csv() -> Instance:
    """Columns of a CSV file as features."""
    w = weights(3, 2)

    def run(lines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        a, b, name, c = tf.io.decode_csv(lines, [0.0, 0.0, "", 0])
        x = tf.stack([a, b, tf.cast(c, tf.float32)], axis=-1)
        return tf.sigmoid(x @ w), name

    def inputs(rng: Generator) -> Arguments:
        return given(tf.constant([f"{rng.normal():.3f},,{name},7" for name in ANIMALS]))

    return Instance(run, inputs, [w])


@mixed("DecodeRaw StringToHashBucketFast")
def raw_bytes() -> Instance:
    """Bytes read as numbers, beside a hash of them."""
    w = weights(8, 2)

    def run(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.reshape(tf.io.decode_raw(data, tf.float32), [-1, 8])
        return x @ w, tf.strings.to_hash_bucket_fast(data, 11) + 1

    def inputs(rng: Generator) -> Arguments:
        return given(tf.constant([rng.normal(size=8).astype("f4").tobytes() for _ in range(3)]))

    return Instance(run, inputs, [w])

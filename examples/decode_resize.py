"""JPEG files to classes: decode_jpeg, resize, a convnet, in one function.

    python -m examples.decode_resize

Decoding is an operator of TensorFlow's kernels; resizing and the convnet run on the plugin, and the
pixels cross without a copy. Images come in several sizes: each is compiled when it comes first. The
images are drawn here; nothing is downloaded.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import HostFallbackWarning

SHAPES = ["disc", "square", "stripes"]
SIZES = [(48, 64), (64, 64), (96, 80)]
SIDE = 32


def draw(shape: str, height: int, width: int, rng: np.random.Generator) -> tf.Tensor:
    """The bytes of a JPEG file with one shape of a random colour at a random place."""
    y, x = np.mgrid[:height, :width]
    cy, cx = rng.uniform(0.35, 0.65, 2) * (height, width)
    radius = rng.uniform(0.2, 0.3) * min(height, width)
    inside = {
        "disc": (y - cy) ** 2 + (x - cx) ** 2 < radius**2,
        "square": np.maximum(abs(y - cy), abs(x - cx)) < radius,
        "stripes": (x + y + cx).astype(int) % 16 < 8,
    }[shape]
    ground, colour = rng.uniform(0, 90, 3), rng.uniform(160, 255, 3)
    pixels = np.where(inside[..., None], colour, ground).astype(np.uint8)
    return tf.io.encode_jpeg(tf.constant(pixels), quality=90)


def convnet() -> tf.keras.Model:
    """Two convolutions and a dense layer on images of 32 by 32 pixels."""
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((SIDE, SIDE, 3)),
            layers.Conv2D(16, 5, strides=2, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(len(SHAPES)),
        ]
    )


def pixels(data: tf.Tensor) -> tf.Tensor:
    """One file's bytes as a picture for the convnet, (32, 32, 3) from 0 to 1."""
    decoded = tf.cast(tf.io.decode_jpeg(data, channels=3), tf.float32)
    return tf.image.resize(decoded, (SIDE, SIDE)) / 255


def main() -> None:
    """Train on 48 drawn images, classify new files of several sizes, show what ran where."""
    warnings.simplefilter("ignore", HostFallbackWarning)
    console, rng = Console(), np.random.default_rng(0)
    model = convnet()

    names = [SHAPES[i % 3] for i in range(48)]
    load = tf_interop.function(pixels)
    batch = tf.stack([load(draw(name, *SIZES[i % 2], rng)) for i, name in enumerate(names)])
    labels = tf.constant([SHAPES.index(name) for name in names])
    # Keras calls the step as it is; the bridge makes one program of it.
    model.compile(
        optimizer=tf.keras.optimizers.Adam(3e-3),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        run_eagerly=True,
    )
    model.train_step = tf_interop.function(model.train_step)
    history = model.fit(batch, labels, batch_size=16, epochs=15, verbose=0).history
    for epoch in (0, 4, 9, 14):
        loss, accuracy = history["loss"][epoch], history["accuracy"][epoch]
        console.print(f"  epoch {epoch + 1:2}  loss {loss:.4f}  accuracy {accuracy:.2f}")

    def classify(data: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(model(pixels(data)[None]))[0]

    fast, plain = tf_interop.function(classify), tf.function(classify)
    table = Table("file", "bytes", "found", "sure", "difference", "first [ms]", "later [ms]")
    for name, size in zip(SHAPES, SIZES, strict=True):
        data = draw(name, *size, rng)
        times = []
        for _ in range(5):
            started = time.perf_counter()
            chances = fast(data).numpy()
            times.append((time.perf_counter() - started) * 1e3)
        table.add_row(
            f"{name} {size[1]}x{size[0]}",
            str(len(data.numpy())),
            SHAPES[int(chances.argmax())],
            f"{chances.max():.2f}",
            f"{abs(chances - plain(data).numpy()).max():.0e}",
            f"{times[0]:.1f}",
            f"{min(times[1:]):.2f}",
        )
    console.print(table)
    console.print(tf_interop.explain(fast, data))


if __name__ == "__main__":
    main()

"""Images and boxes: decoding, cropping and choosing, around convolutions."""

from __future__ import annotations

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
    whole,
)


def image(rng: Generator, height: int, width: int) -> tf.Tensor:
    """Coloured noise, smooth enough that JPEG keeps some of it."""
    small = tf.identity(rng.uniform(0, 255, (4, 4, 3)))
    return tf.cast(tf.image.resize(small, (height, width)), tf.uint8)


@mixed("DecodeJpeg", "Conv2D ResizeBilinear")
def decode_jpeg() -> Instance:
    """A file's bytes, of an image whose size only the file knows, to scores."""
    kernel, w = weights(3, 3, 3, 8), weights(8, 4, seed=1)

    def run(data: tf.Tensor) -> tf.Tensor:
        pixels = tf.cast(tf.io.decode_jpeg(data, channels=3), tf.float32) / 255
        x = tf.image.resize(pixels, (16, 16))[None]
        x = tf.nn.relu(tf.nn.conv2d(x, kernel, strides=2, padding="SAME"))
        return tf.nn.softmax(tf.reduce_mean(x, axis=(1, 2)) @ w)

    def inputs(rng: Generator) -> Arguments:
        # The second and later calls may bring a size that was not there yet.
        return given(tf.io.encode_jpeg(image(rng, 24, int(rng.choice([20, 32])))))

    return Instance(run, inputs, [kernel, w])


@whole("ResizeBilinear ResizeBilinearGrad")
def resized_to_whole_positions() -> Instance:
    """Some positions are whole numbers but for rounding; jit_compile reads the neighbours there."""

    def run(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            larger = tf.image.resize(x, (20, 15))
            smaller = tf.image.resize(larger, (12, 9))
            loss = tf.reduce_sum(tf.square(smaller))
        return larger, smaller, tape.gradient(loss, x)

    return Instance(run, lambda rng: given(floats(rng, 2, 12, 9, 3)))


@mixed("EncodePng", "Conv2D")
def encode_png() -> Instance:
    """What was computed leaves as a file's bytes."""
    kernel = weights(3, 3, 1, 1)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = tf.nn.conv2d(x, kernel, strides=1, padding="SAME")
        # Few levels, far from the borders between them.
        levels = tf.cast(y > 0, tf.uint8) * 255
        return tf.io.encode_png(levels[0]), levels

    return Instance(run, lambda rng: given(floats(rng, 1, 8, 8, 1)), [kernel])


@mixed("CropAndResize", "Conv2D")
def crop_and_resize() -> Instance:
    """Boxes are cut out of features and given to a head."""
    kernel, w = weights(3, 3, 3, 4), weights(4 * 4 * 4, 2, seed=1)

    def run(pixels: tf.Tensor, boxes: tf.Tensor, owners: tf.Tensor) -> tf.Tensor:
        features = tf.nn.conv2d(pixels, kernel, strides=1, padding="SAME")
        crops = tf.image.crop_and_resize(features, boxes, owners, (4, 4))
        return tf.reshape(crops, [-1, 64]) @ w

    def inputs(rng: Generator) -> Arguments:
        corner = rng.uniform(0, 0.5, (3, 2))
        boxes = tf.constant([[*c, *(c + 0.4)] for c in corner], tf.float32)
        return given(floats(rng, 2, 12, 12, 3), boxes, numbers(rng, 2, 3))

    return Instance(run, inputs, [kernel, w])


@mixed("NonMaxSuppressionV3", "MatMul")
def non_max_suppression() -> Instance:
    """As many boxes are kept as the data says, and scored anew."""
    w = weights(4, 1)

    def run(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        scores = tf.sigmoid(tf.reshape(boxes @ w, [-1]))
        kept = tf.image.non_max_suppression(boxes, scores, 6, iou_threshold=0.3)
        return tf.gather(boxes, kept) * 2, tf.gather(scores, kept)

    def inputs(rng: Generator) -> Arguments:
        corner = rng.uniform(0, 1, (10, 2))
        return given(tf.constant([[*c, *(c + 0.4)] for c in corner], tf.float32))

    return Instance(run, inputs, [w])


@mixed("EagerPyFunc", "Conv2D")
def augmented() -> Instance:
    """Python draws a box on pixels between two layers."""
    first, second = weights(3, 3, 3, 4), weights(3, 3, 4, 2, seed=1)

    def cut(pixels: tf.Tensor) -> tf.Tensor:
        held = pixels.numpy().copy()
        held[:, 2:4, 2:4] = 0
        return tf.constant(held)

    def run(pixels: tf.Tensor) -> tf.Tensor:
        x = tf.nn.conv2d(pixels, first, strides=1, padding="SAME")
        y = tf.ensure_shape(tf.py_function(cut, [x], tf.float32), x.shape)
        return tf.nn.conv2d(y, second, strides=1, padding="SAME")

    return Instance(run, lambda rng: given(floats(rng, 2, 8, 8, 3)), [first, second])

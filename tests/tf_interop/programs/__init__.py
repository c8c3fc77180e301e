"""TensorFlow programs that tests run by the bridge and by TensorFlow."""

from tests.tf_interop.programs import (
    control,
    effects,
    images,
    layers,
    numerics,
    randomness,
    sizes,
    structures,
    text,
    training,
    updates,
)
from tests.tf_interop.programs.case import MIXED, WHOLE, Case, Instance

__all__ = [
    "MIXED",
    "WHOLE",
    "Case",
    "Instance",
    "control",
    "effects",
    "images",
    "layers",
    "numerics",
    "randomness",
    "sizes",
    "structures",
    "text",
    "training",
    "updates",
]

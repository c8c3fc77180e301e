"""Small models with random weights, by name: what users of torch compile.

Every one is built from a configuration and never from a hub.
"""

from __future__ import annotations

import importlib

from tests.models.zoo.building import Builder, Made, lively
from tests.models.zoo.scale import repeated

FAMILIES = (
    "decoders",
    "encoders",
    "translators",
    "audio",
    "vision",
    "multimodal",
    "diffusion",
    "plain",
)

MODELS: dict[str, Builder] = {
    name: builder
    for family in FAMILIES
    for name, builder in importlib.import_module(f"{__name__}.{family}").MODELS.items()
}


def build(name: str) -> Made:
    """A model and its inputs, from torch's generator as it stands."""
    model, inputs = MODELS[name]()
    return lively(model), repeated(inputs)

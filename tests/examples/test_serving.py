"""The example that serves: requests of many lengths, and nothing compiled after the warm-up."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers

from examples import serving

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
]


def test_serving() -> None:
    transformers.logging.set_verbosity_error()
    torch.compiler.reset()
    prompts = serving.requests()
    assert len(prompts) == 16
    assert len(set(map(len, prompts))) > 8
    new = [3 + index % 4 for index in range(len(prompts))]
    expected = serving.alone(serving.model(layers=1), prompts, new)
    served = serving.serve(serving.model(layers=1), prompts, new)
    assert served.tokens == expected
    before, after = served.programs
    assert before == after > 0
    torch.compiler.reset()

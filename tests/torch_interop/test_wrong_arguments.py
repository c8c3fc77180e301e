"""Arguments of a wrong kind of the functions for PyTorch are errors of the bridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge import torch_interop
from pjrt_bridge.errors import ArgumentError, PjrtBridgeError
from pjrt_bridge.torch_interop import device, sharding

MODEL = torch.nn.Linear(4, 4)
X = torch.ones(2, 4)
ODD = (None, True, -1, 1.5, "x", b"\xff", [None], {"x": 1}, object(), torch.ones(3))

CALLS: dict[str, Callable[[Any], Any]] = {
    "explain": lambda odd: torch_interop.explain(odd, X),
    "export": lambda odd: torch_interop.export(odd, (X,)),
    "args": lambda odd: torch_interop.export(MODEL, odd),
    "kwargs": lambda odd: torch_interop.export(MODEL, (X,), odd),
    "sizes": lambda odd: torch_interop.export(MODEL, (X,), sizes=odd),
    "loss": lambda odd: torch_interop.export(MODEL, (X,), training=True, loss=odd),
    "custom_op": lambda odd: torch_interop.custom_op("kinds::one", odd),
    "buffer_of": device.buffer_of,
    "tensor_of": device.tensor_of,
    "mesh": lambda odd: sharding.mark_sharding(X, odd, ("x", None)),
    "spec": lambda odd: sharding.shard_constraint(X, sharding.Mesh(x=1), odd),
    "tensor": lambda odd: sharding.shard_constraint(odd, sharding.Mesh(x=1), ("x", None)),
    "fully_shard": lambda odd: sharding.fully_shard(MODEL, odd),
    "parallelize": lambda odd: sharding.parallelize(odd, sharding.Mesh(x=1), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_a_wrong_kind(name: str) -> None:
    refused: list[str] = []
    others: list[TypeError] = []
    for odd in ODD:
        try:
            CALLS[name](odd)
        except PjrtBridgeError as error:
            refused.append(str(error))
        except TypeError as error:
            others.append(error)
    assert len(refused) >= 4
    assert all(len(text) > 20 for text in refused)
    # What PyTorch says of arguments that the model does not take.
    assert not others or name in ("args", "kwargs")


def test_errors_of_the_user_stay_theirs() -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        return x + len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError) as caught:
        torch_interop.explain(failing, X)
    assert not isinstance(caught.value, ArgumentError)

"""Results of compiled calls can be resized as torch's own, and give their memory back."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from pjrt_bridge.runtime import live_handles
from pjrt_bridge.torch_interop.compat.devices import resizing
from tests.plugins import run_python
from tests.torch_interop.helpers import compiled, in_threads

pytestmark = pytest.mark.usefixtures("fresh", "way")


@pytest.fixture
def add() -> Callable[[torch.Tensor], torch.Tensor]:
    """A compiled function, called before, so that its results come the shortest way."""
    found = compiled(lambda x: x + 1)
    for _ in range(4):
        found(X)
    return found  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        # As eager says of tensors of another size that `out=` brings.
        warnings.filterwarnings("ignore", "An output with one or more elements was resized")
        yield


X = torch.arange(6.0)

USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "out of a larger size": lambda y: torch.sigmoid(torch.arange(20.0), out=y),
    "out of a smaller size": lambda y: torch.sigmoid(torch.arange(2.0), out=y),
    "out of another rank": lambda y: torch.mm(torch.ones(3, 2), torch.ones(2, 5), out=y),
    "resize_": lambda y: y.resize_(3, 4).fill_(7),
    "resize_ to less": lambda y: y.resize_(2),
    "resize_as_": lambda y: y.resize_as_(torch.ones(2, 2)),
    "set_ to another storage": lambda y: y.set_(torch.arange(9.0)),
    "set_ to nothing": lambda y: y.set_(),
    "data": lambda y: setattr(y, "data", torch.ones(11)),
    "a storage without elements, and back": lambda y: (
        y.untyped_storage().resize_(0),
        y.untyped_storage().resize_(24),
        y.copy_(X),
    ),
    "a larger storage": lambda y: (
        y.untyped_storage().resize_(80),
        y.as_strided((6,), (1,), 1)[:5],
    ),
    "share_memory_": lambda y: y.share_memory_(),
    "share_memory_, then resized": lambda y: y.share_memory_().untyped_storage().resizable(),
    "numpy forbids it": lambda y: (y.numpy().tolist(), y.untyped_storage().resizable()),
}


@pytest.mark.parametrize("use", USES)
def test_a_result_is_used_as_eager_uses_it(
    add: Callable[[torch.Tensor], torch.Tensor], use: str
) -> None:
    outcomes = []
    for y in (add(X), X + 1):
        assert y.untyped_storage().resizable()
        before = y._version
        given = USES[use](y)
        flat = given if isinstance(given, tuple) else (given,)
        outcomes.append(
            (
                y.tolist(),
                y.stride(),
                y.storage_offset(),
                y.untyped_storage().nbytes(),
                y.untyped_storage().resizable(),
                y._version - before,
                [one.tolist() for one in flat if isinstance(one, torch.Tensor)],
                [one for one in flat if isinstance(one, (bool, int, list))],
            )
        )
    assert outcomes[0] == outcomes[1]


def test_what_shares_a_storage_sees_what_becomes_of_it() -> None:
    def views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y[2:]

    found, expected = compiled(views), views
    for _ in range(3):
        outcomes = []
        for whole, rest in (found(X), expected(X)):
            assert whole.untyped_storage()._cdata == rest.untyped_storage()._cdata
            whole.untyped_storage().resize_(48)
            outcomes.append((whole.tolist(), rest.tolist(), rest.untyped_storage().nbytes()))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "again",
    [
        lambda y: pickle.loads(pickle.dumps(y)),
        copy.deepcopy,
        lambda y: torch.load(saved(y)),
        lambda y: y.clone(),
    ],
)
def test_copies(add: Callable[[torch.Tensor], torch.Tensor], again: Callable[..., Any]) -> None:
    y = add(X)
    other = again(y)
    y.untyped_storage().resize_(0)
    assert other.tolist() == (X + 1).tolist()
    expected = again(X + 1).untyped_storage().resizable()
    assert other.untyped_storage().resizable() == expected


def saved(tensor: torch.Tensor) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return file


def test_results_of_a_divided_graph() -> None:
    def divided(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 3
        return y, torch.special.zeta(y + 2, y + 1) + 1

    function = compiled(divided, host_ops=["aten.special_zeta.default"])
    for y in function(X):
        assert y.untyped_storage().resizable()
        torch.sigmoid(torch.ones(9), out=y)
        assert y.tolist() == torch.sigmoid(torch.ones(9)).tolist()


def test_results_that_require_a_gradient(add: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = X.clone().requires_grad_()
    y = add(x)
    size = y.untyped_storage().nbytes()
    # As FSDP does it with what the backward pass does not need.
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(size)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 6


def test_memory_goes_back_when_torch_drops_it(add: Callable[[torch.Tensor], torch.Tensor]) -> None:
    gc.collect()
    before = live_handles()
    y = add(X)
    assert live_handles()["Buffer"] == before.get("Buffer", 0) + 1
    y.untyped_storage().resize_(0)
    assert live_handles() == before
    for index in range(10_000):
        y = add(X)
        y.untyped_storage().resize_(48 * (index % 2))
        y.resize_(12)
    assert live_handles() == before


def test_a_view_of_numpy_keeps_the_memory(add: Callable[[torch.Tensor], torch.Tensor]) -> None:
    y = add(X)
    array = y.numpy()
    with pytest.raises(RuntimeError, match="not resizable"):
        y.resize_(100)
    del y
    assert array.tolist() == (X + 1).tolist()


def test_threads_that_resize(add: Callable[[torch.Tensor], torch.Tensor]) -> None:
    wrong = []

    def work(start: float) -> None:
        for index in range(200):
            x = torch.full((6,), start + index)
            y = add(x)
            y.resize_(600)
            if y[:6].tolist() != (x + 1).tolist():
                wrong.append((x, y))

    in_threads(work, [(1000.0 * number,) for number in range(4)])
    assert not wrong


def test_a_result_that_outlives_its_client(way: str) -> None:
    run_python(
        """
import torch
import pjrt_bridge
add = torch.compile(lambda x: x + 1, backend="pjrt")
kept = [add(torch.ones(100_000)) for _ in range(4)]
pjrt_bridge.client().close()
for y in kept:
    y.resize_(200_000)
    assert bool((y[:100_000] == 2).all())
    y.untyped_storage().resize_(0)
left = kept.pop()
left.untyped_storage().resize_(4)
""",
        prelude=f"import os; os.environ['PJRT_BRIDGE_DISPATCH'] = {way!r}",
    )


def test_this_torch_is_known() -> None:
    """Fails with a torch that keeps its flag elsewhere in another way: `resizing` looks for it."""
    found = resizing.places()
    assert found is not None
    assert len(found.numbers) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        lambda found: None,
        # An offset at which trying it does nothing harmful, and has no effect.
        lambda found: replace(found, resizable=found.resizable - 1, cpu=0),
    ],
)
def test_a_torch_that_is_not_known_is_left_alone(
    wrong: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = resizing._find()
    monkeypatch.setattr(resizing, "_find", lambda: wrong(real))
    resizing.places.cache_clear()
    try:
        assert resizing.places() is None
        y = compiled(lambda x: x - 1)(X)
        assert y.tolist() == (X - 1).tolist()
        with pytest.raises(RuntimeError, match="not resizable"):
            y.resize_(100)
    finally:
        resizing.places.cache_clear()


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_a_torch_without_the_library_is_left_alone(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> int:
        raise error

    monkeypatch.setattr(resizing, "_cpu_allocator", missing)
    resizing.places.cache_clear()
    try:
        assert resizing.places() is None
    finally:
        resizing.places.cache_clear()


def test_it_is_found_while_something_is_traced() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    resizing.places.cache_clear()
    with FakeTensorMode(), torch.device("meta"), torch.inference_mode():
        assert resizing.places() is not None

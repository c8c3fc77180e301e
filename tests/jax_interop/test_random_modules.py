"""Modules of torch that draw random numbers, as functions of a key of JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

jax = pytest.importorskip("jax")

from pjrt_bridge.errors import NotExportable, OptionError  # noqa: E402
from pjrt_bridge.jax_interop import from_torch  # noqa: E402
from tests.plugins import run_python  # noqa: E402

KEY = jax.random.key(0)
X = np.ones((4, 64), np.float32)


class Twice(torch.nn.Module):
    """Two layers of dropout over the same values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((64,), 3.0))
        self.first, self.second = torch.nn.Dropout(0.5), torch.nn.Dropout(0.25)

    def forward(self, x: Any) -> Any:
        return self.first(x * self.weight), self.second(x * self.weight)


def _loss(function: Any) -> Callable[..., Any]:
    def loss(params: Any, x: Any, key: Any) -> Any:
        first, second = function(params, x, rng=key)
        return (2 * first + second).sum(), (first, second)

    return loss


def _equal(found: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_key_decides_what_is_dropped() -> None:
    function, params = from_torch(Twice())
    first, second = function(params, X, rng=KEY)
    assert set(np.unique(first)) == {0.0, 6.0}
    assert set(np.unique(second)) == {0.0, 4.0}
    assert 0.4 < float((first == 0).mean()) < 0.6
    assert 0.15 < float((second == 0).mean()) < 0.35
    assert ((first == 0) != (second == 0)).any()
    _equal(function(params, X, rng=KEY), (first, second))
    _equal(jax.jit(function)(params, X, rng=jax.random.PRNGKey(0)), (first, second))
    other, _ = function(params, X, rng=jax.random.fold_in(KEY, 1))
    assert (other != first).any()


def test_layers_of_the_same_kind_drop_others() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Dropout(0.5) for _ in range(3)))
    function, params = from_torch(layers)
    kept = np.asarray(function(params, np.ones(4096, np.float32), rng=KEY)) != 0
    # Three layers with the same numbers would keep half.
    assert 0.08 < kept.mean() < 0.17


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_any_kind_of_key(impl: str) -> None:
    function, params = from_torch(torch.nn.Dropout(0.5))
    found = function(params, X, rng=jax.random.key(3, impl=impl))
    assert set(np.unique(found)) == {0.0, 2.0}


def test_evaluation_ignores_the_key() -> None:
    module = Twice().eval()
    function, params = from_torch(module)
    _equal(function(params, X, rng=KEY), function(params, X))
    module.train()
    assert (function(params, X, rng=KEY)[0] == 0).any()


def test_gradients_drop_what_the_results_drop() -> None:
    function, params = from_torch(Twice())
    step = jax.jit(jax.value_and_grad(_loss(function), has_aux=True))
    (_, found), gradients = step(params, X, KEY)
    first, second = function(params, X, rng=KEY)
    _equal(found, (first, second))
    np.testing.assert_allclose(gradients["weight"], (2 * first + second).sum(0) / 3, rtol=1e-6)


def test_gradients_of_gradients() -> None:
    function, params = from_torch(Twice())

    def total(params: Any) -> Any:
        return jax.grad(lambda p: (function(p, X, rng=KEY)[0] ** 2).sum())(params)["weight"].sum()

    first, _ = function(params, X, rng=KEY)
    np.testing.assert_allclose(
        jax.grad(total)(params)["weight"], 2 * (first**2).sum(0) / 9, rtol=1e-6
    )


def test_rows_with_one_key_and_with_keys_of_their_own() -> None:
    function, params = from_torch(Twice())
    one = jax.vmap(lambda row: function(params, row, rng=KEY))(X)
    for at in range(4):
        _equal(jax.tree.map(lambda item, at=at: item[at], one), function(params, X[0], rng=KEY))
    keys = jax.random.split(KEY, 4)
    each = [function(params, row, rng=key) for row, key in zip(X, keys, strict=True)]
    found = jax.vmap(lambda row, key: function(params, row, rng=key))(X, keys)
    _equal(found, tuple(np.stack(items) for items in zip(*each, strict=True)))
    assert (found[0][0] != found[0][1]).any()
    loss = _loss(function)
    per_row = jax.jit(jax.vmap(lambda row, key: jax.grad(loss, has_aux=True)(params, row, key)[0]))(
        X, keys
    )
    expected = np.stack([(2 * first + second) / 3 for first, second in each])
    np.testing.assert_allclose(per_row["weight"], expected, rtol=1e-6)
    whole = jax.jit(
        jax.grad(lambda p: jax.vmap(lambda row, key: loss(p, row, key)[0])(X, keys).sum())
    )(params)
    np.testing.assert_allclose(whole["weight"], expected.sum(0), rtol=1e-6)


class Drawing(torch.nn.Module):
    """A module that draws as a function says."""

    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Any) -> Any:
        return self.draw(x)


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bernoulli": lambda x: torch.bernoulli(x / 8),
    "bernoulli of one chance": lambda x: x.bernoulli_(0.3),
    "cauchy": lambda x: x.cauchy_(),
    "exponential": lambda x: x.exponential_(2.0),
    "feature dropout": lambda x: functional.dropout1d(x[None, :, None].expand(2, -1, 3)),
    "geometric": lambda x: x.geometric_(0.2),
    "log normal": lambda x: x.log_normal_(),
    "multinomial": lambda x: torch.multinomial(x, 3),
    "normal": lambda x: torch.normal(x, 0.5),
    "normal of scales": lambda x: torch.normal(x.expand(3, 5), x[:1]),
    "normal in place": lambda x: x.normal_(1.0, 2.0),
    "rand": lambda x: torch.rand(3, 2) + x[0],
    "randint": lambda x: torch.randint(2, 1000, (7,)) + x[0],
    "randint like": lambda x: torch.randint_like(x, 5),
    "randn": lambda x: torch.randn(6) * x[0],
    "randn like": torch.randn_like,
    "randperm": lambda x: torch.randperm(9) + x[0],
    "rrelu": lambda x: functional.rrelu(x - 3, training=True),
    "uniform": lambda x: x.uniform_(-1, 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_row_gets_what_it_gets_alone(name: str) -> None:
    function, params = from_torch(Drawing(DRAWS[name]))
    x = np.arange(1, 16, dtype=np.float32).reshape(3, 5) % 7 + 0.5
    keys = jax.random.split(KEY, 3)
    expected = [function(params, row, rng=key) for row, key in zip(x, keys, strict=True)]
    found = jax.vmap(lambda row, key: function(params, row, rng=key))(x, keys)
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-6)
    assert any((item != expected[0]).any() for item in expected[1:])
    same = jax.vmap(lambda row: function(params, row, rng=KEY), in_axes=1)(x.T)
    np.testing.assert_allclose(
        same, np.stack([function(params, row, rng=KEY) for row in x]), rtol=1e-6
    )


@pytest.mark.parametrize("name", ["feature dropout", "bernoulli", "randn"])
def test_gradients_of_gradients_of_others(name: str) -> None:
    function, _ = from_torch(Drawing(DRAWS[name]))
    x = np.float32([0.5, 1.5, 3.5, 6.5, 2.5])
    scales = jax.jacrev(lambda x: function({}, x, rng=KEY))(x).reshape(-1, 5)
    twice = jax.grad(lambda x: jax.grad(lambda x: (function({}, x, rng=KEY) ** 2).sum())(x).sum())
    np.testing.assert_allclose(twice(x), 2 * (scales.T @ scales).sum(0), rtol=1e-5)


def test_models_with_attention_train() -> None:
    torch.manual_seed(0)
    module = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True)
    function, params = from_torch(module)
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)

    def loss(params: Any, key: Any) -> Any:
        return (function(params, x, rng=key) * x).mean()

    value, gradients = jax.jit(jax.value_and_grad(loss))(params, KEY)
    assert float(value) == pytest.approx(float(loss(params, KEY)), rel=1e-6)
    assert float(value) != pytest.approx(float(loss(params, jax.random.key(1))), rel=1e-6)
    # The difference of a step is what the gradients say: all see the same numbers.
    step = 1e-2 * np.sign(gradients["linear1.weight"])
    moved = {**params, "linear1.weight": params["linear1.weight"] + step}
    back = {**params, "linear1.weight": params["linear1.weight"] - step}
    found = float(loss(moved, KEY) - loss(back, KEY))
    assert found == pytest.approx(2 * float((gradients["linear1.weight"] * step).sum()), rel=0.05)


def test_over_a_mesh_of_jax() -> None:
    run_python(
        """
        import os
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import jax, numpy as np, torch
        from jax.sharding import Mesh, PartitionSpec as P
        from pjrt_bridge.jax_interop import from_torch

        module = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5))
        function, params = from_torch(module)
        mesh = Mesh(np.array(jax.devices()), ("d",))
        x = np.ones((4, 8), np.float32)
        key = jax.random.key(0)

        def loss(params):
            def shard(params, x, key):
                key = jax.random.fold_in(key, jax.lax.axis_index("d"))
                found = function(params, x, rng=key)
                return jax.lax.pmean((found ** 2).mean(), "d"), found
            return jax.shard_map(
                shard, mesh=mesh, in_specs=(P(), P("d"), P()), out_specs=(P(), P("d"))
            )(params, x, key)

        (_, found), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        assert (found[0] != found[1]).any()
        alone = [
            function(params, x[at:at + 1], rng=jax.random.fold_in(key, at)) for at in range(4)
        ]
        np.testing.assert_allclose(found, np.concatenate(alone), rtol=1e-5)
        expected = (2 * found * np.where(found == 0, 0, 2)).sum(0) / found.size
        np.testing.assert_allclose(gradients["0.bias"], expected, rtol=1e-4)
        """
    )


# -- wrong use -------------------------------------------------------------------------------------


def test_a_key_is_needed_and_has_to_be_one() -> None:
    function, params = from_torch(torch.nn.Dropout(0.5).train())
    with pytest.raises(NotExportable, match=r"Dropout: it draws.*pass rng=.*\.eval\(\)"):
        function(params, X)
    with pytest.raises(OptionError, match=r"rng: found 'a', expected a key of jax\.random"):
        function(params, X, rng="a")

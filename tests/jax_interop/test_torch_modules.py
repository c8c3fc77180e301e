"""Modules of torch that JAX calls."""

import dataclasses
from collections import OrderedDict
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from pjrt_bridge.errors import NotExportable, OptionError  # noqa: E402
from pjrt_bridge.jax_interop import from_torch  # noqa: E402
from tests.calling_torch import RNG, drawn, expected_of, mlp  # noqa: E402
from tests.plugins import run_python  # noqa: E402


def _close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=tolerance, atol=tolerance)


def test_a_call_alone_and_in_a_program() -> None:
    module, x = mlp(), drawn(3, 8)
    function, params = from_torch(module)
    assert set(params) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    _close(function(params, x), expected_of(module, x))
    _close(
        jax.jit(lambda params, x: 2 * function(params, x * 2))(params, x),
        2 * expected_of(module, 2 * x),
    )


def test_gradients_are_torchs() -> None:
    module, x = mlp(), drawn(3, 8)
    function, params = from_torch(module)
    step = jax.jit(jax.value_and_grad(lambda params: (function(params, x) ** 2).sum()))
    loss, gradients = step(params)
    expected = module(torch.tensor(x)).square().sum()
    expected.backward()
    _close(loss, expected.item())
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        _close(gradients[name], parameter.grad)


def test_gradients_of_complex_numbers_are_jaxs() -> None:
    class Rotated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = torch.nn.Parameter(torch.tensor([0.3 + 1.1j, -0.7 + 0.2j]))

        def forward(self, x: torch.Tensor) -> Any:
            return x * self.turn * (1 + 2j) * x

    z = (RNG.normal(size=2) + 1j * RNG.normal(size=2)).astype(np.complex64)
    function, params = from_torch(Rotated())

    def of_torch(turn: Any, x: Any) -> Any:
        return jnp.exp((function({"turn": turn}, x) * 0.3j).imag).sum()

    def of_jax(turn: Any, x: Any) -> Any:
        return jnp.exp((x * turn * (1 + 2j) * x * 0.3j).imag).sum()

    for argument in (0, 1):
        gradients = [
            jax.grad(which, argnums=argument)(params["turn"], z) for which in (of_torch, of_jax)
        ]
        _close(*gradients)


def test_gradients_of_gradients() -> None:
    linear = torch.nn.Linear(3, 1)
    function, params = from_torch(linear)
    hessian = jax.jacrev(jax.grad(lambda x: function(params, jnp.sin(x)).sum() ** 2))
    x = np.float32([0.1, 0.2, 0.3])
    expected = torch.func.jacrev(torch.func.grad(lambda x: linear(torch.sin(x)).sum() ** 2))(
        torch.tensor(x)
    )
    _close(hessian(x), expected.detach())


def test_mapped_over_the_batch() -> None:
    module = mlp()
    function, params = from_torch(module)
    x = drawn(5, 8)
    _close(jax.vmap(lambda row: function(params, row))(x), expected_of(module, x))
    per_row = jax.vmap(
        jax.grad(lambda params, row: function(params, row).sum()), in_axes=(None, 0)
    )(params, x)
    assert per_row["0.weight"].shape == (5, 6, 8)
    total = jax.grad(lambda params: function(params, x).sum())(params)
    _close(per_row["0.weight"].sum(0), total["0.weight"])


class _Attention(torch.nn.Module):
    def forward(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)


@pytest.mark.parametrize("masked", [None, 0, "same"])
def test_attention_of_rows_is_one_of_the_whole_batch(masked: Any) -> None:
    function, _ = from_torch(_Attention())
    q, k, v = (drawn(6, 2, 4, 5, 8) for _ in range(3))
    mask = {None: None, 0: drawn(6, 2, 1, 5, 5), "same": drawn(1, 1, 5, 5)}[masked]
    dims = (0, 0, 0, 0 if masked == 0 else None)

    def loss(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return (function({}, q, k, v, mask) ** 2).sum()

    step = jax.jit(jax.vmap(jax.value_and_grad(loss, argnums=(0, 1, 2)), in_axes=dims))
    rows = [(q[at], k[at], v[at], mask[at] if masked == 0 else mask) for at in range(6)]
    for at, row in enumerate(rows):
        given = [torch.tensor(x, requires_grad=True) for x in row[:3]]
        bias = None if row[3] is None else torch.tensor(row[3])
        expected = (_Attention()(*given, bias) ** 2).sum()
        expected.backward()
        found, gradients = jax.tree.map(lambda x, at=at: x[at], step(q, k, v, mask))
        _close(found, expected.item(), 1e-4)
        for one, tensor in zip(gradients, given, strict=True):
            _close(one, tensor.grad, 1e-4)
    assert "stablehlo.slice" not in step.lower(q, k, v, mask).as_text()
    alone = jax.vmap(lambda *given: function({}, *given), in_axes=dims)(q, k, v, mask)
    _close(alone[3], function({}, *rows[3]))


def test_training_equals_torchs() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=20, n_positions=8, use_cache=False
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = GPT2LMHeadModel(config)
    function, params = from_torch(model)
    tokens = RNG.integers(0, 20, (2, 8))
    step = jax.jit(
        jax.value_and_grad(lambda params, ids: function(params, input_ids=ids, labels=ids)["loss"])
    )
    params = jax.tree.map(jnp.copy, params)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        loss, gradients = step(params, tokens)
        params = jax.tree.map(lambda value, gradient: value - 0.1 * gradient, params, gradients)
        optimizer.zero_grad()
        expected = model(input_ids=torch.tensor(tokens), labels=torch.tensor(tokens)).loss
        expected.backward()
        optimizer.step()
        _close(loss, expected.item(), 1e-4)


def test_buffers_that_change_are_results() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    function, params = from_torch(module, mutable=True)
    x = drawn(2, 3, 6, 6)
    _, buffers = jax.jit(function)(params, x)
    found, buffers = function(params, x, buffers=buffers)
    before = module[1].running_mean.clone()
    assert torch.equal(before, torch.zeros(4))
    for _ in range(2):
        expected = expected_of(module, x)
    _close(found, expected)
    _close(buffers["1.running_mean"], module[1].running_mean)
    assert int(buffers["1.num_batches_tracked"]) == 2


class _Writing(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mul_(2).sum(), x


def test_what_is_written_into_arguments_stays_inside() -> None:
    function, _ = from_torch(_Writing())
    x = jnp.asarray(drawn(3))
    before = np.array(x)
    total, doubled = function({}, x)
    _close(x, before)
    _close(doubled, 2 * before)
    _close(total, 2 * before.sum())


def test_gradients_of_what_is_not_trained_are_zero() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    module[0].bias.requires_grad = False
    function, params = from_torch(module, mutable=True)
    x = drawn(2, 3, 6, 6)
    own = {name: jnp.array(buffer.numpy()) for name, buffer in module.named_buffers()}

    def loss(params: Any, buffers: Any) -> Any:
        return (function(params, x, buffers=buffers)[0] ** 3).sum()

    by_params, by_buffers = jax.grad(loss, argnums=(0, 1), allow_int=True)(params, own)
    (module(torch.tensor(x)) ** 3).sum().backward()
    _close(by_params["0.weight"], module[0].weight.grad, 1e-4)
    _close(by_params["0.bias"], np.zeros(4))
    _close(by_buffers["1.running_mean"], np.zeros(4))


def test_results_without_gradients() -> None:
    function, params = from_torch(torch.nn.Linear(3, 4))
    positions, _ = from_torch(_Several())

    def loss(params: Any) -> Any:
        return positions({}, function(params, drawn(2, 3)))["most"].astype(jnp.float32).sum()

    assert not jax.tree.reduce(lambda a, b: a + jnp.abs(b).sum(), jax.grad(loss)(params), 0.0)


def test_rows_of_a_constant_within_a_traced_program() -> None:
    module, x = mlp(), drawn(5, 8)
    function, params = from_torch(module)
    step = jax.jit(
        jax.grad(lambda params: jax.vmap(lambda row: function(params, row).sum())(x).sum())
    )
    module(torch.tensor(x)).sum().backward()
    _close(step(params)["0.bias"], module[0].bias.grad)


def test_classes_and_positions_of_32_bits() -> None:
    module = torch.nn.CrossEntropyLoss()
    function, _ = from_torch(module)
    x, classes = drawn(4, 3), np.int32([0, 2, 1, 1])
    found = jax.jit(jax.grad(lambda x: function({}, x, classes)))(x)
    given = torch.tensor(x, requires_grad=True)
    module(given, torch.tensor(classes).long()).backward()
    _close(found, given.grad)


@pytest.mark.parametrize("train", [False, True])
def test_recurrent_layers(train: bool) -> None:
    module = torch.nn.LSTM(4, 5, batch_first=True).train(train)
    function, params = from_torch(module)
    x = drawn(2, 3, 4)
    found, (hidden, _) = function(params, x)
    expected, (state, _) = module(torch.tensor(x))
    _close(found, expected.detach())
    _close(hidden, state.detach())


class _Several(torch.nn.Module):
    def forward(self, x: Any, dim: int = 0, names: Any = None) -> Any:
        return {"most": x.argmax(dim), "rest": (x.sum(dim), None, x)}


def test_constants_nesting_and_integers() -> None:
    function, params = from_torch(_Several())
    assert params == {}
    x = drawn(2, 3)
    found = jax.jit(lambda x: function({}, x, dim=1, names="rows"))(x)
    assert found["most"].dtype == np.int32
    _close(found["rest"][0], x.sum(1))
    assert found["rest"][1] is None
    _close(found["rest"][2], x)
    with jax.enable_x64(True):
        assert function({}, x)["most"].dtype == np.int64


@dataclasses.dataclass
class _Parts:
    first: Any
    second: Any = None


class _OfClasses(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return tuple(x.max(1)), _Parts(x.sum(), [OrderedDict(a=x)])


def test_results_of_classes() -> None:
    function, _ = from_torch(_OfClasses())
    x = drawn(2, 3)
    found = jax.jit(lambda x: function({}, x))(x)
    _close(found[0][0], x.max(1))
    assert found[1]["second"][0].keys() == {"a"}
    _close(found[1]["first"], x.sum())


def test_a_cache_of_transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=16,
        num_attention_heads=2,
        vocab_size=20,
    )
    model = LlamaForCausalLM(config).eval()
    function, params = from_torch(model)
    tokens = np.ones((1, 4), np.int32)
    found = jax.jit(lambda params: function(params, tokens))(params)
    expected = model(torch.tensor(tokens))
    _close(found["logits"], expected.logits.detach())
    # Its name differs from version to version.
    (name,) = found.keys() - {"logits"}
    assert len(found[name]) == 2
    for (keys, values), layer in zip(found[name], expected[name].layers, strict=True):
        _close(keys, layer.keys.detach())
        _close(values, layer.values.detach())


@pytest.mark.parametrize("checked", [True, False])
def test_over_a_mesh_of_jax(checked: bool) -> None:
    run_python(
        f"CHECKED = {checked}\n"
        + dedent("""
        import os
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import jax, numpy as np, torch
        from jax.sharding import Mesh, PartitionSpec as P
        from pjrt_bridge.jax_interop import from_torch

        module = torch.nn.Linear(8, 4)
        function, params = from_torch(module)
        mesh = Mesh(np.array(jax.devices()), ("d",))
        x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)

        def loss(params):
            def shard(params, x):
                return jax.lax.pmean((function(params, x) ** 2).mean(), "d")
            return jax.shard_map(
                shard, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=CHECKED
            )(params, x)

        found = jax.jit(jax.grad(loss))(params)
        module(torch.tensor(x)).square().mean().backward()
        np.testing.assert_allclose(found["weight"], module.weight.grad, rtol=1e-5, atol=1e-6)
        """)
    )


class _Branching(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


# -- wrong use -------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    with pytest.raises(OptionError, match=r"found a int, expected a torch\.nn\.Module"):
        from_torch(3)
    function, params = from_torch(_Branching())
    with pytest.raises(NotExportable, match=r"_Branching: .*test_torch_modules\.py:\d+: what"):
        function(params, drawn(3))
    function, params = from_torch(torch.nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="same reduction dim"):
        function(params, drawn(2, 4))
    _close(function(params, np.zeros((1, 3), np.float32)).shape, (1, 3))

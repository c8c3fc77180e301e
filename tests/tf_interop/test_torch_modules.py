"""Modules of torch that TensorFlow calls."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import NotExportable, OptionError
from pjrt_bridge.tf_interop import from_torch
from tests.calling_torch import RNG, drawn, expected_of, mlp


def _close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-5)


def _variables(params: dict[str, Any]) -> dict[str, Any]:
    return {name: tf.Variable(value) for name, value in params.items()}


def test_a_call_in_eager_in_functions_and_on_a_plugin() -> None:
    module, x = mlp(), drawn(3, 8)
    function, params = from_torch(module)
    assert set(params) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    _close(function(params, x), expected_of(module, x))

    def doubled(x: Any) -> Any:
        return 2.0 * function(params, x * 2.0)

    expected = 2 * expected_of(module, 2 * x)
    for call in (tf.function(doubled), tf.function(doubled, jit_compile=True)):
        _close(call(tf.constant(x)), expected)
    compiled = tf_interop.function(doubled, fallback="error")
    _close(compiled(tf.constant(x)), expected)
    program = tf_interop.export(doubled, tf.TensorSpec(x.shape))
    assert len(program.signature.results) == 1


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_gradients_are_torchs(jit_compile: bool | None) -> None:
    module, x = mlp(), drawn(3, 8)
    function, params = from_torch(module)
    variables = _variables(params)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(variables, x) ** 2)
        return loss, tape.gradient(loss, [variables, x])

    if jit_compile is not None:
        step = tf.function(step, jit_compile=jit_compile)
    loss, (gradients, of_x) = step(tf.constant(x))
    given = torch.tensor(x, requires_grad=True)
    expected = module(given).square().sum()
    expected.backward()
    _close(loss, expected.item())
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        _close(gradients[name], parameter.grad)
    _close(of_x, given.grad)


def test_a_tape_around_a_function() -> None:
    module, x = mlp(), tf.constant(drawn(3, 8))
    function, params = from_torch(module)
    variables = _variables(params)
    called = tf.function(lambda x: function(variables, x))
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(called(x) ** 2)
        alone = tf.reduce_sum(function(variables, x) ** 2)
    for variable in variables.values():
        _close(tape.gradient(loss, variable), tape.gradient(alone, variable))


def test_gradients_of_gradients() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    function, params = from_torch(module)
    x = tf.constant(drawn(2, 3))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            total = tf.reduce_sum(function(params, x))
        found = tf.reduce_sum(inner.gradient(total, x) ** 2)
    given = torch.tensor(x.numpy(), requires_grad=True)
    (first,) = torch.autograd.grad(module(given).sum(), given, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), given)
    _close(outer.gradient(found, x), second)


def test_gradients_of_complex_numbers_are_tensorflows() -> None:
    class Rotated(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x * (1 + 2j) * x

    z = tf.constant((RNG.normal(size=2) + 1j * RNG.normal(size=2)).astype(np.complex64))
    function, params = from_torch(Rotated())
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(z)
        found = tf.reduce_sum(tf.exp(tf.math.imag(function(params, z) * 0.3j)))
        expected = tf.reduce_sum(tf.exp(tf.math.imag(z * (1 + 2j) * z * 0.3j)))
    _close(tape.gradient(found, z), tape.gradient(expected, z))


def test_training_equals_torchs() -> None:
    module = mlp()
    function, params = from_torch(module)
    variables = _variables(params)
    optimizer = tf.keras.optimizers.SGD(0.1)
    own = torch.optim.SGD(module.parameters(), lr=0.1)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(function(variables, x) ** 2)
        found = tape.gradient(loss, variables)
        optimizer.apply_gradients([(found[name], variables[name]) for name in variables])
        return loss

    for _ in range(3):
        x = drawn(4, 8)
        own.zero_grad()
        expected = module(torch.tensor(x)).square().mean()
        expected.backward()
        own.step()
        _close(step(tf.constant(x)), expected.item())


def test_operators_without_second_gradients_have_first_ones() -> None:
    """PyTorch has none for its attention on the host, which must not be asked for."""
    torch.manual_seed(0)
    module = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    function, params = from_torch(module)
    x = drawn(2, 5, 16)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(params, x) ** 3)
        return tape.gradient(loss, x)

    given = torch.tensor(x, requires_grad=True)
    (expected,) = torch.autograd.grad(module(given).pow(3).sum(), given)
    np.testing.assert_allclose(step(tf.constant(x)), expected, rtol=1e-4, atol=1e-4)


def test_buffers_that_change_are_results() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    function, params = from_torch(module, mutable=True)
    x = drawn(5, 3)
    result, buffers = function(params, x)
    _close(result, expected_of(module, x))
    for name, buffer in module.named_buffers():
        _close(buffers[name], buffer)
    again, _ = function(params, x, buffers=buffers)
    _close(again, expected_of(module, x))


def test_numbers_are_drawn_from_a_seed() -> None:
    module, x = torch.nn.Dropout(0.5), drawn(64)
    function, params = from_torch(module)
    with pytest.raises(NotExportable, match="pass seed="):
        function(params, x)
    first, again, other = (
        function(params, x, seed=seed).numpy() for seed in [(1, 2)] * 2 + [(1, 3)]
    )
    assert (first == again).all()
    assert (first != other).any()
    assert set(np.unique(first == 0)) == {False, True}
    with pytest.raises(OptionError, match="seed: found int32 of shape"):
        function(params, x, seed=3)


def test_integers_nesting_and_constants() -> None:
    class Chosen(torch.nn.Module):
        def forward(self, x: Any, which: torch.Tensor, factor: float) -> Any:
            return {"rows": x["table"][which] * factor, "next": (which + 1, None)}

    function, params = from_torch(Chosen())
    table, which = drawn(4, 2), np.array([2, 0])
    found = function(params, {"table": table}, which, factor=2.0)
    _close(found["rows"], table[which] * 2)
    assert found["next"][0].dtype == tf.int64
    assert found["next"][1] is None
    _close(found["next"][0], which + 1)


def test_a_saved_model_holds_the_module(tmp_path: Path) -> None:
    module, x = mlp(), drawn(3, 8)
    function, params = from_torch(module)
    holder = tf.Module()
    holder.variables_by_name = _variables(params)
    holder.call = tf.function(
        lambda x: {"y": function(dict(holder.variables_by_name), x)},
        input_signature=[tf.TensorSpec((3, 8))],
    )
    tf.saved_model.save(holder, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    _close(loaded.call(tf.constant(x))["y"], expected_of(module, x))


def test_what_is_refused() -> None:
    with pytest.raises(OptionError, match=r"expected a torch\.nn\.Module"):
        from_torch(lambda x: x)
    function, params = from_torch(mlp())
    open_rows = [tf.TensorSpec((None, 8))]
    with pytest.raises(NotExportable, match="expected known sizes"):
        # AutoGraph puts errors of what it converts into errors of its own.
        tf.function(
            lambda x: function(params, x), input_signature=open_rows, autograph=False
        ).get_concrete_function()

"""Composites that JAX writes: in models, in operators of torch, and kept in what is exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from pjrt_bridge import registry  # noqa: E402
from pjrt_bridge.exported import ExportedModel  # noqa: E402
from pjrt_bridge.jax_interop import from_lowered, from_torch, torch_op  # noqa: E402
from pjrt_bridge.registry import brought  # noqa: E402
from pjrt_bridge.registry.targets import for_client  # noqa: E402
from pjrt_bridge.runtime import Client  # noqa: E402
from pjrt_bridge.stablehlo import Builder, Value  # noqa: E402
from pjrt_bridge.stablehlo.builder.values import Body  # noqa: E402
from pjrt_bridge.stablehlo.composites import Composite  # noqa: E402
from pjrt_bridge.stablehlo.kernels import Kernels  # noqa: E402
from pjrt_bridge.torch_interop import composite, export  # noqa: E402
from tests.stablehlo.test_composites import found_in  # noqa: E402

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def normal(x: Any) -> Any:
    def written(x: Any, *, epsilon: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon)

    named = jax.lax.composite(written, name="my.rms_norm", version=1)
    return named(x, epsilon=np.float32(0.5))


def expected(x: Any) -> Any:
    return x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 0.5)


class Own(Kernels):
    """A target whose kernel for the norm gives zeros, so that it is seen."""

    composites = {"my.rms_norm": (1,)}

    def composite(
        self, b: Builder, composite: Composite, operands: Sequence[Value], decomposition: Body
    ) -> Value:
        assert composite.attributes == {"epsilon": 0.5}
        return b.subtract(operands[0], operands[0])


@pytest.mark.parametrize("plugin", ["cpu", "reference"])
def test_any_plugin_runs_a_function(plugin: str) -> None:
    model = from_lowered(jax.jit(normal).lower(X))
    with model.load_on(registry.client(plugin)) as loaded:
        np.testing.assert_allclose(np.asarray(loaded(X)), expected(X), rtol=1e-5)


def test_a_kernel_of_the_plugin_computes_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brought, "kernels", lambda client: Own())
    with from_lowered(jax.jit(normal).lower(X)).load_on(client) as loaded:
        np.testing.assert_array_equal(np.asarray(loaded(X)), np.zeros_like(X))
    function = torch.compile(torch_op(normal), backend="pjrt", fullgraph=True)
    torch.testing.assert_close(function(torch.from_numpy(X)), torch.zeros(2, 3))


def test_an_operator_of_torch_keeps_it_in_what_is_exported(client: Client) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = operator(x)
            return torch.nn.functional.gelu(found)

    operator = torch_op(normal)
    x = torch.from_numpy(X)
    torch.compiler.reset()
    torch.testing.assert_close(
        torch.compile(operator, backend="pjrt", fullgraph=True)(x),
        torch.from_numpy(expected(X)),
    )

    def names(model: ExportedModel) -> list[str]:
        return sorted(item.name for item in found_in(model.specializations[0].program))  # type: ignore[arg-type]

    kept = export(Model(), (x,), composites="keep")
    assert names(kept) == ["aten.gelu.default", "my.rms_norm"]
    assert not names(export(Model(), (x,)))
    with kept.load_on(client) as loaded:
        wanted = torch.nn.functional.gelu(torch.from_numpy(expected(X)))
        torch.testing.assert_close(torch.from_numpy(np.array(loaded(x))), wanted)


def test_a_program_of_the_user(client: Client) -> None:
    model = from_lowered(jax.jit(normal).lower(X))
    program = model.specializations[0].program
    assert [item.name for item in found_in(program)] == ["my.rms_norm"]  # type: ignore[arg-type]
    assert not found_in(for_client(program, client))  # type: ignore[arg-type]


def test_a_module_with_a_marked_function_is_differentiated_and_mapped() -> None:
    marked = composite("my.wave")(lambda x, weight: x * torch.sin(weight))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((3,), 0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = marked(x, self.weight)
            return found

    function, params = from_torch(Model())
    np.testing.assert_allclose(function(params, X), X * np.sin(0.5), rtol=1e-5)
    gradients = jax.grad(lambda params: function(params, X).sum())(params)
    np.testing.assert_allclose(gradients["weight"], X.sum(0) * np.cos(0.5), rtol=1e-5, atol=1e-6)
    rows = jax.jit(jax.vmap(lambda row: function(params, row)))(X)
    np.testing.assert_allclose(rows, X * np.sin(0.5), rtol=1e-5)

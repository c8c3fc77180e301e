"""Functions of JAX that call LAPACK run on every plugin."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import jax.scipy.linalg as jsl  # noqa: E402
from jax.lax import linalg as lax_linalg  # noqa: E402

import pjrt_bridge  # noqa: E402
from pjrt_bridge.errors import PjrtBridgeError  # noqa: E402
from pjrt_bridge.jax_interop import from_exported, from_lowered, torch_op  # noqa: E402
from pjrt_bridge.runtime import Client  # noqa: E402
from tests.plugins import run_python  # noqa: E402

A = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32)
POSITIVE = A @ np.swapaxes(A, -1, -2) + 4 * np.eye(4, dtype=np.float32)
TALL = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
LINE = np.arange(1, 5, dtype=np.float32)


def _upper(x: Any) -> Any:
    return jsl.cholesky(x[0], lower=False)


def _tridiagonal(x: Any) -> Any:
    return lax_linalg.tridiagonal_solve(x[0], x[1] + 9, x[2], x)


def _applied(x: Any) -> Any:
    # The product is a call of its own.
    return jnp.abs(jsl.qr_multiply(x, jnp.ones((2, 5), x.dtype), mode="right")[0])


def _projection(x: Any) -> Any:
    """What singular vectors, which have no sign, make of a matrix."""
    u, s, vt = jnp.linalg.svd(x, full_matrices=False)
    return (u * s**2) @ vt


def _function_of(x: Any) -> Any:
    values, vectors = jnp.linalg.eigh(x)
    return (vectors * jnp.sqrt(values)[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "cholesky": (jnp.linalg.cholesky, POSITIVE),
    "upper cholesky": (_upper, POSITIVE),
    "not positive": (jnp.linalg.cholesky, -POSITIVE),
    "solve": (lambda x: jnp.linalg.solve(x, x[..., :1]), POSITIVE),
    "inv": (jnp.linalg.inv, A),
    "slogdet": (jnp.linalg.slogdet, A),
    "lu": (jsl.lu, A[0]),
    "triangular": (lambda x: jsl.solve_triangular(x, LINE, trans="T", lower=True), POSITIVE[0]),
    "complex triangular": (
        lambda x: jsl.solve_triangular(x + 1j * x.T, LINE + 0j, trans="C", unit_diagonal=True),
        POSITIVE[0],
    ),
    "qr": (lambda x: jnp.abs(jnp.linalg.qr(x)[1]), TALL),
    "complete qr": (lambda x: jnp.abs(jnp.linalg.qr(x, mode="complete")[0][:, :3]), TALL),
    "pivoted qr": (lambda x: jsl.qr(x, pivoting=True)[1:], TALL),
    "qr_multiply": (_applied, TALL),
    "singular values": (lambda x: jnp.linalg.svd(x, compute_uv=False), A),
    "svd": (_projection, TALL),
    "pinv": (jnp.linalg.pinv, TALL.T),
    "lstsq": (lambda x: jnp.linalg.lstsq(x, jnp.ones(5))[0], TALL),
    "eigh": (_function_of, POSITIVE),
    "complex eigvalsh": (lambda x: jnp.linalg.eigvalsh(x + 1j * (x - x.T)), POSITIVE[0]),
    "expm": (jsl.expm, A[0]),
    "tridiagonal": (_tridiagonal, POSITIVE[0]),
    "gradient": (jax.grad(lambda x: jnp.linalg.svd(x, full_matrices=False)[1].sum()), TALL),
}


@pytest.fixture(scope="module")
def plain() -> Client:
    """A client of the plugin that has no functions beside the operations of StableHLO."""
    return pjrt_bridge.client("reference")


@pytest.mark.parametrize("case", CASES)
def test_as_jax_computes_it(case: str, client: Client) -> None:
    function, x = CASES[case]
    lowered = jax.jit(function).lower(x)
    assert "lapack_" in lowered.as_text()
    model = from_lowered(lowered)
    assert not any("lapack" in target for target in model.program.custom_calls)
    with model.load_on(client) as loaded:
        found = loaded(x)
    for one, expected in zip(jax.tree.leaves(found), jax.tree.leaves(function(x)), strict=True):
        np.testing.assert_allclose(np.asarray(one), expected, rtol=2e-4, atol=2e-4)


def test_on_a_plugin_without_functions_of_libraries(plain: Client) -> None:
    function, x = CASES["qr"]
    with from_lowered(jax.jit(function).lower(x)).load_on(plain) as loaded:
        np.testing.assert_allclose(np.asarray(loaded(x)), function(x), rtol=2e-4, atol=2e-4)


def test_of_64_bits(client: Client) -> None:
    with jax.enable_x64(True):
        x = POSITIVE[0].astype(np.float64)
        lowered = jax.jit(jnp.linalg.eigvalsh).lower(x)
    with from_lowered(lowered).load_on(client) as loaded:
        np.testing.assert_allclose(np.asarray(loaded(x)), np.linalg.eigvalsh(x), rtol=1e-12)


def test_exported_for_jaxs_cpu(client: Client) -> None:
    (batch,) = jax.export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((batch, 4, 4), "f4")
    exported = jax.export.export(jax.jit(jnp.linalg.inv), platforms=["cpu"])(shape)
    model = from_exported(exported.serialize(), sizes=[{"batch": 2}])
    with model.load_on(client) as loaded:
        np.testing.assert_allclose(np.asarray(loaded(A)), np.linalg.inv(A), rtol=1e-3, atol=1e-4)


def test_a_function_in_torch_has_gradients() -> None:
    x = torch.tensor(POSITIVE[0], requires_grad=True)
    found = torch.compile(lambda x: torch_op(_function_of)(x).sum(), backend="pjrt")(x)
    (gradient,) = torch.autograd.grad(found, x)
    expected = jax.grad(lambda x: _function_of(x).sum())(POSITIVE[0])
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-3)


def test_what_has_no_counterpart_is_named(client: Client) -> None:
    model = from_lowered(jax.jit(lambda x: jnp.linalg.eig(x)[0]).lower(A[0]))
    with model.load_on(client) as loaded, pytest.raises(PjrtBridgeError, match="lapack_sgeev_ffi"):
        loaded(A[0])


def test_an_artifact_needs_jax_for_them(tmp_path: Path) -> None:
    exported = jax.export.export(jax.jit(jnp.linalg.inv), platforms=["cpu"])(A[0])
    file = tmp_path / "inverse.bin"
    file.write_bytes(exported.serialize())
    source = f"""
import sys
sys.modules["jax"] = None
from pathlib import Path
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.jax_interop import from_exported
try:
    from_exported(Path({str(file)!r}).read_bytes())
except ProgramError as error:
    assert "lapack_sgetrf_ffi" in str(error) and "pjrt-bridge[jax]" in str(error), error
else:
    raise AssertionError
"""
    run_python(source)

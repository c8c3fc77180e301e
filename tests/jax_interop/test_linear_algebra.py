"""Decompositions of matrices as functions of JAX's arrays, compared with NumPy and LAPACK."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
lapack = pytest.importorskip("scipy.linalg.lapack")

from pjrt_bridge.jax_interop import linear_algebra  # noqa: E402

_GEQRF = {"f": lapack.sgeqrf, "d": lapack.dgeqrf, "F": lapack.cgeqrf, "D": lapack.zgeqrf}


@pytest.fixture(autouse=True)
def wide() -> Any:
    with jax.enable_x64(True):
        yield


def _matrices(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(0)
    found = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        found = found + 1j * rng.normal(size=shape)
    return found.astype(dtype)


def _hermitian(shape: tuple[int, ...], dtype: str) -> Any:
    found = _matrices(shape, dtype)
    return found + _adjoint(found)


def _adjoint(x: Any) -> Any:
    return np.conj(np.swapaxes(x, -1, -2))


def _tolerance(dtype: str, size: int) -> float:
    return float(np.finfo(dtype).eps) * 30 * size


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (2, 5, 5), (3, 0, 4, 4), (16, 16)], ids=str)
def test_eigenvalues_and_vectors(dtype: str, shape: tuple[int, ...]) -> None:
    x = _hermitian(shape, dtype)
    atol = _tolerance(dtype, shape[-1])
    for lower in (True, False):
        # The other triangle is not read, nor are imaginary parts of the diagonal.
        noise = np.triu(np.ones_like(x), 1)
        given = x + 7 * (noise if lower else _adjoint(noise))
        values, vectors = map(np.asarray, linear_algebra.eigh(given, lower=lower))
        np.testing.assert_allclose(values, np.linalg.eigvalsh(x), atol=atol)
        np.testing.assert_allclose(x @ vectors, vectors * values[..., None, :], atol=atol)
        unit = np.broadcast_to(np.eye(shape[-1]), shape)
        np.testing.assert_allclose(_adjoint(vectors) @ vectors, unit, atol=atol)
        assert (values.dtype, vectors.dtype) == (x.real.dtype, x.dtype)


def test_eigenvalues_of_matrices_at_the_ends() -> None:
    zeros, equal = np.zeros((3, 3), np.float32), np.eye(4, dtype=np.float32)
    assert np.asarray(linear_algebra.eigh(zeros, lower=True)[0]).tolist() == [0, 0, 0]
    assert np.asarray(linear_algebra.eigh(equal, lower=True)[0]).tolist() == [1] * 4
    for scale in (1e-37, 1e37):
        x = np.float32([[1, 2], [2, -1]]) * np.float32(scale)
        found = np.asarray(linear_algebra.eigh(x, lower=True)[0])
        np.testing.assert_allclose(found, np.sqrt(5) * scale * np.array([-1, 1]), rtol=1e-6)
    for bad in (np.nan, np.inf):
        values, vectors = linear_algebra.eigh(np.diag(np.float32([1, bad])), lower=True)
        assert np.isnan(values).all()
        assert np.isnan(vectors).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (4, 1), (1, 4), (1, 1)], ids=str)
def test_reflections_are_those_of_lapack(dtype: str, shape: tuple[int, ...]) -> None:
    x, atol = _matrices(shape, dtype), _tolerance(dtype, 5)
    found, factors = map(np.asarray, linear_algebra.reflections(x))
    expected, expected_factors, *_ = _GEQRF[np.dtype(dtype).char](x)
    np.testing.assert_allclose(found, expected, atol=atol)
    np.testing.assert_allclose(factors, expected_factors, atol=atol)
    count = min(shape)
    q = np.asarray(linear_algebra.product_of_reflections(found[:, :count], factors))
    np.testing.assert_allclose(q @ np.triu(found[:count]), x, atol=atol)


def test_reflections_of_batches_and_of_zeros() -> None:
    x = _matrices((2, 3, 4, 2), "float32")
    found, factors = linear_algebra.reflections(x)
    one, its = linear_algebra.reflections(x[1, 2])
    np.testing.assert_allclose(found[1, 2], one, rtol=1e-6)
    np.testing.assert_allclose(factors[1, 2], its, rtol=1e-6)
    found, factors = linear_algebra.reflections(np.zeros((3, 2), np.float32))
    assert not np.any(found)
    assert not np.any(factors)


def test_pivoted_reflections() -> None:
    import scipy.linalg

    x = _matrices((5, 4), "float64") * [1, 4, 2, 8]
    found, _, order = linear_algebra.pivoted_reflections(x)
    _, r, expected = scipy.linalg.qr(x, pivoting=True, mode="economic")
    assert np.asarray(order).tolist() == expected.tolist()
    np.testing.assert_allclose(np.abs(np.triu(found[:4])), np.abs(r), atol=1e-12)

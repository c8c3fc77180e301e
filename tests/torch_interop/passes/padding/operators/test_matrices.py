"""Linear algebra over matrices of padded sizes, forward and backward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    with_gradients,
)

N = SIZE
torch.manual_seed(0)
X = torch.randn(N, N, dtype=torch.float64)
BATCH = torch.randn(N, 3, 3, dtype=torch.float64)
BOTH = torch.randn(2, N, N, dtype=torch.float64)


def definite(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)


def below(x: torch.Tensor) -> torch.Tensor:
    return x.tril() + 3 * torch.eye(x.shape[-1], dtype=x.dtype)


SQUARE: dict[str, Callable[[torch.Tensor], Any]] = {
    "cholesky": lambda x: torch.linalg.cholesky(definite(x)),
    "upper cholesky": lambda x: torch.linalg.cholesky(definite(x), upper=True),
    "inverse of a factor": lambda x: torch.cholesky_inverse(torch.linalg.cholesky(definite(x))),
    "inverse": lambda x: torch.linalg.inv(below(x) @ x.sin().mT + definite(x)),
    "determinant": lambda x: torch.linalg.det(x),
    "logarithm of the determinant": lambda x: (*torch.linalg.slogdet(x), torch.logdet(definite(x))),
    "determinant of a transpose": lambda x: (torch.linalg.det(x.mT), *torch.linalg.slogdet(x.mT)),
    "solve": lambda x: torch.linalg.solve(below(x), x.mT + 1),
    "solve for columns": lambda x: torch.linalg.solve(below(x), x[..., :2].exp()),
    "solve from the right": lambda x: torch.linalg.solve(definite(x), x, left=False),
    "solve for vectors": lambda x: torch.linalg.solve(definite(x), x[..., 0]),
    "solve with factors": lambda x: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(definite(x)), x[..., :2]
    ),
    "solve with adjoint factors": lambda x: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(x), x[..., :1], adjoint=True
    ).sum(-1),
    "triangular": lambda x: torch.linalg.solve_triangular(below(x), x[..., :2], upper=False),
    "triangular from the right": lambda x: torch.linalg.solve_triangular(
        below(x).mT, x, upper=True, left=False
    ),
    "with a factor": lambda x: torch.cholesky_solve(x[..., :2], torch.linalg.cholesky(definite(x))),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(definite(x)),
    "eigenvalues of numbers of any size": lambda x: torch.linalg.eigvalsh(
        x * x.new_tensor([1e-8, 1e8][x.dim() % 2]), UPLO="U"
    ),
    "exponential": lambda x: torch.linalg.matrix_exp(x / 4),
}


@pytest.mark.parametrize("matrices", [X, BATCH, BOTH], ids=["sizes", "batch", "sizes in a batch"])
@pytest.mark.parametrize("name", SQUARE)
def test_square(name: str, matrices: torch.Tensor) -> None:
    assert_padding_changes_nothing(with_gradients(SQUARE[name]), matrices)


def test_right_hand_sides_of_any_number() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        square = definite(x)
        return torch.linalg.solve(square, y), torch.linalg.solve_triangular(square, y, upper=True)

    assert_padding_changes_nothing(with_gradients(function), torch.randn(3, 3), torch.randn(3, N))


def test_vectors_of_matrices_with_any_number_of_rows() -> None:
    def function(x: torch.Tensor) -> Any:
        q, r = torch.linalg.qr(x)
        u, s, vh = torch.linalg.svd(x.mT, full_matrices=False)
        return q @ r.exp(), q.mT @ x, s, (u * s.exp().unsqueeze(-2)) @ vh, torch.linalg.svdvals(x)

    for shape in ((N, 3), (2, N, 3), (N, 4, 3)):
        x = torch.randn(shape, dtype=torch.float64)
        assert_padding_changes_nothing(function, x)


def of_any_rank(x: torch.Tensor) -> torch.Tensor:
    """Square matrices of which one singular value is 0, in order."""
    return x.sin() * torch.arange(x.shape[-1], dtype=x.dtype)


def decomposed(x: torch.Tensor) -> Any:
    u, s, vh = torch.linalg.svd(of_any_rank(x))
    return s, (u * s.exp().unsqueeze(-2)) @ vh, u.mT @ u, (vh @ vh.mT).sum((-1, -2))


@pytest.mark.parametrize("matrices", [X, BATCH, BOTH], ids=["sizes", "batch", "sizes in a batch"])
def test_singular_values_of_square_matrices(matrices: torch.Tensor) -> None:
    assert_padding_changes_nothing(torch.linalg.svdvals, matrices)
    assert_padding_changes_nothing(lambda x: torch.linalg.svdvals(x * 0), matrices)
    assert_padding_changes_nothing(decomposed, matrices)


@pytest.mark.parametrize("shape", [(N, 3), (3, N), (N, N), (2, N, 4), (N, 2, 3)])
def test_pseudoinverse(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> Any:
        # Of rank 2, or nearly so: the tolerance decides.
        low = x[..., :2] @ x[..., :2, :]
        exact = torch.linalg.pinv(x), torch.linalg.pinv(low)
        return *exact, torch.linalg.pinv(x, atol=0.5), torch.linalg.pinv(x, rtol=0.3)

    assert_padding_changes_nothing(function, torch.randn(shape, dtype=torch.float64))


def test_symmetric_pseudoinverse() -> None:
    assert_padding_changes_nothing(lambda x: torch.linalg.pinv(x + x.mT, hermitian=True), X)


def test_the_tolerance_of_a_pseudoinverse_is_that_of_the_exact_size() -> None:
    # Between the tolerances of 5 and of 11 rows.
    values = torch.tensor([1.0, 8 * torch.finfo(torch.float64).eps], dtype=torch.float64)
    matrix = torch.full((N, 2), 1e-30, dtype=torch.float64)
    matrix[0, 0], matrix[1, 1] = values
    assert_padding_changes_nothing(torch.linalg.pinv, matrix)


def eigenvectors(x: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh((x + x.mT) / 4)
    return (vectors * values.exp()) @ vectors.mT


def singular_vectors(x: torch.Tensor) -> torch.Tensor:
    left, values, right = torch.linalg.svd(x[:, :3], full_matrices=False)
    return (left * values.exp()) @ right


def triangles(x: torch.Tensor) -> torch.Tensor:
    orthogonal, triangle = torch.linalg.qr(x[:, :3])
    return orthogonal @ triangle.exp()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", [eigenvectors, singular_vectors, triangles])
def test_gradients_of_vectors(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    run = torch.compile(function, backend="pjrt")
    for size in (4, 5, 20, 18, 19, 17, 3):
        gradients = []
        for one in (run, function):
            x = torch.linspace(-1, 1, size * size).double().sin().view(size, size)
            x = (x + torch.arange(size).sqrt().diag()).requires_grad_()
            made = one(x)
            made.square().sum().backward()
            gradients.append([made.detach(), x.grad])
        assert_same(*gradients, rtol=1e-6, atol=1e-6)
    assert len(compiled_graphs()) <= 12


@pytest.mark.usefixtures("fresh")
def test_processes_of_any_number_of_points_share_programs() -> None:
    def likelihood(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kernel = (-(x[:, None] - x).square()).exp() + 0.1 * torch.eye(x.shape[0])
        factor = torch.linalg.cholesky(kernel)
        solved = torch.cholesky_solve(y[:, None], factor)[:, 0]
        return y @ solved + 2 * factor.diagonal().log().sum()

    run = torch.compile(likelihood, backend="pjrt")
    for count in (5, 9, 30, 28, 25, 31, 27, 12, 2):
        gradients = []
        for one in (run, likelihood):
            x = torch.linspace(-2, 2, count).requires_grad_()
            made = one(x, torch.linspace(-1, 1, count).sin())
            made.backward()
            gradients.append([made.detach(), x.grad])
        assert_same(*gradients, rtol=1e-3, atol=1e-3)
    assert len(compiled_graphs()) <= 10
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())

"""Calls of LAPACK, which JAX writes for its own CPU, as operations that every plugin has.

No plugin has the functions of JAX's own library. The calls keep their results, with the numbers
that say whether they succeeded (`info`); matrices that LAPACK cannot decompose have NaN there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pjrt_bridge.errors import ProgramError, RegistrationError
from pjrt_bridge.jax_interop import compat, linear_algebra
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.program.program import Program

_LAPACK = re.compile(r"lapack_[sdcz](?P<function>[a-z]+3?)_ffi")
_CALL = "stablehlo.custom_call"
_OPTIONS = "mhlo.backend_config"

Options = Mapping[str, str | bool]
"""Options of a function of LAPACK by name: letters in the upper case, and truth values."""


def without_lapack(program: Program, where: str) -> Program:
    """A program in which decompositions are operations of StableHLO, and not calls.

    Calls that have no counterpart here stay: eigenvalues of matrices that are not Hermitian, and
    reductions to Hessenberg's and tridiagonal forms. Compiling them ends in an error that says so.

    Args:
        program: is not changed; given back where it has none of the calls.
        where: names it in errors.

    Raises:
        ProgramError: it has some, and JAX, which writes the operations, is missing.
    """
    called = sorted(target for target in program.custom_calls if _function(target) is not None)
    if not called:
        return program
    try:
        linear_algebra.complete_jax()
    except RegistrationError as error:
        raise ProgramError(
            f"{where}: it calls {', '.join(called)}, which no plugin has; with JAX installed "
            "(pip install 'pjrt-bridge[jax]') the bridge writes them as StableHLO"
        ) from error
    return Builder.rewritten(program, [{_CALL: _written}])


def code_without_lapack(code: bytes, version: str | None) -> bytes:
    """The same for the code of a program that JAX wrote for a plugin.

    Args:
        code: a portable artifact; given back where it has no calls.
        version: of StableHLO, that the plugin reads.

    Raises:
        ProgramError: it cannot be read.
    """
    # Strings are not compressed in MLIR's bytecode; few programs have to be read.
    if b"lapack_" not in code:
        return code
    program = Program.parse(code)
    found = without_lapack(program, f"function {program.name!r} of JAX")
    return code if found is program else found.serialize_for(version)


def _function(target: str) -> Callable[..., Any] | None:
    found = _LAPACK.fullmatch(target)
    return _FUNCTIONS.get(found["function"]) if found else _OF_XLA.get(target)


def _written(b: Builder, call: Operation) -> Sequence[Value] | None:
    attributes = call.handle.attributes
    function = _function(attributes["call_target_name"].value)
    if function is None:
        return None
    options = {}
    if _OPTIONS in attributes:
        options = {item.name: _option(item.attr.value) for item in attributes[_OPTIONS]}
    types = [(item.shape, item.dtype.numpy) for item in call.results]
    operands = [(item.type.shape, item.type.dtype.numpy) for item in call.operands]

    def results(*arrays: Any) -> list[Any]:
        import jax.numpy as jnp

        found = function(options, *arrays)
        return [
            jnp.broadcast_to(jnp.asarray(array).astype(dtype), shape)
            for array, (shape, dtype) in zip(found, types, strict=True)
        ]

    return b.call(compat.portable_program(results, operands), call.operands)


def _option(value: int | bool) -> str | bool:
    return value if isinstance(value, bool) else chr(value)


def _potrf(options: Options, x: Any) -> Sequence[Any]:
    from jax.lax import linalg

    is_lower = options["uplo"] == "L"
    found = linalg.cholesky(x if is_lower else linear_algebra.adjoint(x), symmetrize_input=False)
    return (found if is_lower else linear_algebra.adjoint(found)), _failed(found)


def _getrf(options: Options, x: Any) -> Sequence[Any]:
    from jax.lax import linalg

    found, pivots, _ = linalg.lu(x)
    return found, pivots + 1, 0


def _geqrf(options: Options, x: Any) -> Sequence[Any]:
    return linear_algebra.reflections(x)


def _geqp3(options: Options, x: Any, _: Any) -> Sequence[Any]:
    found, factors, order = linear_algebra.pivoted_reflections(x)
    return found, order + 1, factors


def _ormqr(options: Options, x: Any, factors: Any, other: Any) -> Sequence[Any]:
    import jax.numpy as jnp

    missing = x.shape[-2] - x.shape[-1]
    square = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    product = linear_algebra.product_of_reflections(square, factors)
    if options["transpose"]:
        product = linear_algebra.adjoint(product)
    return (product @ other if options["left"] else other @ product,)


def _orgqr(options: Options, x: Any, factors: Any) -> Sequence[Any]:
    return (linear_algebra.product_of_reflections(x, factors),)


def _syevd(options: Options, x: Any) -> Sequence[Any]:
    values, vectors = linear_algebra.eigh(x, lower=options["uplo"] == "L")
    return vectors, values, _failed(values[..., None])


def _gesdd(options: Options, x: Any) -> Sequence[Any]:
    from jax.lax import linalg

    if options["mode"] == "N":
        # What else it gives is not read.
        values = linalg.svd(x, compute_uv=False)
        left, right = (np.zeros((), x.dtype) for _ in range(2))
    else:
        left, values, right = linalg.svd(x, full_matrices=options["mode"] == "A")
    return x, values, left, right, _failed(values[..., None])


def _trsm(options: Options, a: Any, b: Any) -> Sequence[Any]:
    from jax.lax import linalg

    solution = linalg.triangular_solve(
        a,
        b,
        left_side=options["side"] == "L",
        lower=options["uplo"] == "L",
        transpose_a=options["trans_x"] != "N",
        conjugate_a=options["trans_x"] == "C",
        unit_diagonal=options["diag"] == "U",
    )
    return (solution,)


def _gtsv(options: Options, below: Any, on: Any, above: Any, b: Any) -> Sequence[Any]:
    from jax.lax import linalg

    return below, on, above, linalg.tridiagonal_solve(below, on, above, b), 0


def _failed(found: Any) -> Any:
    import jax.numpy as jnp

    return jnp.any(jnp.isnan(found), axis=(-2, -1))


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "potrf": _potrf,
    "getrf": _getrf,
    "geqp3": _geqp3,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "ungqr": _orgqr,
    "ormqr": _ormqr,
    "unmqr": _ormqr,
    "syevd": _syevd,
    "heevd": _syevd,
    "gesdd": _gesdd,
    "gesvd": _gesdd,
    "trsm": _trsm,
    "gtsv": _gtsv,
}
"""By names of LAPACK's functions, without that of the element type."""

_OF_XLA: Mapping[str, Callable[..., Any]] = {
    "Qr": _geqrf,
    "ProductOfElementaryHouseholderReflectors": _orgqr,
}
"""JAX's calls on platforms for which it has no library."""

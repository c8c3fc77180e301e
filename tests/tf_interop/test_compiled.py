"""What becomes of operations that turn out not to compile, and what is told."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import FallbackForbidden, HostFallbackWarning, NotExportable
from pjrt_bridge.tf_interop import compat, segments
from pjrt_bridge.tf_interop.ledger import LEDGER
from tests.tf_interop.helpers import numbers

MESSAGE = "Exotic: it cannot be compiled today. {{{{node {node}}}}} more words"


@pytest.fixture
def fussy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """TensorFlow's compiler, which refuses functions with certain operations; they can be added."""
    refused: list[str] = []
    stablehlo = compat.stablehlo

    def refusing(function: Any, arguments: Any) -> bytes:
        for operation in function.graph.get_operations():
            if operation.type in refused:
                raise NotExportable(MESSAGE.format(node=operation.name))
        return stablehlo(function, arguments)

    monkeypatch.setattr(compat, "stablehlo", refusing)
    return refused


def function(x: Any) -> Any:
    return tf.exp(tf.linalg.inv(x @ x)) @ x


def test_an_operation_that_does_not_compile_goes_to_the_host(fussy: list[str]) -> None:
    fussy.append("MatrixInverse")
    fast, x = tf_interop.function(function), numbers(8, 8)
    with pytest.warns(HostFallbackWarning, match="MatrixInverse: .*cannot be compiled today"):
        found = fast(x)
    np.testing.assert_allclose(found, function(x), rtol=1e-3, atol=1e-3)
    shown = [(item.placement, set(item.operators)) for item in tf_interop.explain(fast, x).segments]
    assert shown == [
        ("device", {"MatMul"}),
        ("host", {"MatrixInverse"}),
        ("device", {"Exp", "MatMul"}),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(x)


def test_several_of_them(fussy: list[str]) -> None:
    fussy += ["MatrixInverse", "Exp"]
    fast, x = tf_interop.function(function), numbers(8, 8)
    with pytest.warns(HostFallbackWarning, match="MatrixInverse.*Exp|Exp.*MatrixInverse"):
        fast(x)
    shown = [(item.placement, set(item.operators)) for item in tf_interop.explain(fast, x).segments]
    assert shown == [
        ("device", {"MatMul"}),
        ("host", {"MatrixInverse", "Exp"}),
        ("device", {"MatMul"}),
    ]


def test_where_the_host_is_forbidden(fussy: list[str]) -> None:
    fussy.append("MatrixInverse")
    with pytest.raises(FallbackForbidden, match=r"MatrixInverse: .*today.*test_compiled\.py"):
        tf_interop.function(function, fallback="error")(numbers(8, 8))


def test_the_same_at_shapes_that_come_later(fussy: list[str]) -> None:
    fast = tf_interop.function(function, input_signature=[tf.TensorSpec([None, None])])
    x, y = numbers(8, 8), numbers(6, 6)
    fast(x)
    fussy.append("MatrixInverse")
    with pytest.warns(HostFallbackWarning, match="could not be compiled: .*today"):
        found = fast(y)
    np.testing.assert_allclose(found, function(y), rtol=1e-3, atol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(fast(x), function(x), rtol=1e-3, atol=1e-3)


def test_a_failure_that_names_no_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: Any, **how: Any) -> Any:
        raise NotExportable("no reason at all")

    monkeypatch.setattr(segments, "emit", failing)
    fast, x = tf_interop.function(function), numbers(8, 8)
    with pytest.warns(HostFallbackWarning, match="a segment of the function .*no reason at all"):
        found = fast(x)
    np.testing.assert_allclose(found, function(x), rtol=1e-3, atol=1e-3)
    with pytest.raises(FallbackForbidden, match="no reason at all"):
        tf_interop.function(function, fallback="error")(x)


def test_many_reasons_are_counted() -> None:
    def words(s: Any) -> Any:
        for name in ("upper", "lower", "strip", "length"):
            s = getattr(tf.strings, name)(s)
        return s

    with pytest.warns(
        HostFallbackWarning,
        match=r"does not run 4 operations of the function 'words'.*and 1 more",
    ):
        tf_interop.function(words)(tf.constant(" a "))


def test_functions_are_in_the_ledger() -> None:
    fast = tf_interop.function(lambda x: tf.exp(x))
    fast(numbers(3))
    fast(numbers(4))
    first, second = LEDGER.graphs
    assert first.plugin == second.plugin
    assert [segment.placement for segment in first.segments] == ["device"]

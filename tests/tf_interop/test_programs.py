"""Each program of the catalogues: TensorFlow's results, and the division that is expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import FallbackForbidden
from tests.tf_interop.comparing import assert_same
from tests.tf_interop.programs import MIXED, WHOLE, Case, Instance

ignores_the_fallback = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


@dataclass
class Contenders:
    """A program by TensorFlow and by the bridge, each with its own instance."""

    case: Case
    reference: Instance
    plain: Callable[..., Any]
    bridged: Instance
    fast: Callable[..., Any]

    def __post_init__(self) -> None:
        self.reference_rng, self.bridged_rng = (np.random.default_rng(1) for _ in "12")
        self.last: Any = None

    def call(self) -> tuple[Any, Any]:
        """The next call's results and state: the bridge's, TensorFlow's."""
        return (
            self._call(self.fast, self.bridged, self.bridged_rng),
            self._call(self.plain, self.reference, self.reference_rng),
        )

    def _call(self, function: Callable[..., Any], instance: Instance, rng: Any) -> Any:
        given = self.last = instance.inputs(rng)
        found = function(*given.positional, **given.named)
        return found, [tf.identity(one) for one in instance.variables], instance.seen()


def plain(run: Any) -> Callable[..., Any]:
    """What TensorFlow alone makes of a program."""
    traced = tf.types.experimental.ConcreteFunction, tf.types.experimental.PolymorphicFunction
    if isinstance(run, traced):
        return run
    if isinstance(run, tf.keras.layers.Layer):
        return tf.function(lambda *positional: run(*positional))
    return tf.function(run)


@pytest.fixture(scope="module")
def contenders(request: pytest.FixtureRequest) -> Contenders:
    case = request.param
    reference, bridged = case.make(), case.make()
    fast = tf_interop.function(bridged.run, fallback="host" if case.on_host else "error")
    return Contenders(case, reference, plain(reference.run), bridged, fast)


EVERY = pytest.mark.parametrize(
    "contenders", [*MIXED, *WHOLE], ids=lambda case: case.name, indirect=True, scope="module"
)


@ignores_the_fallback
@EVERY
def test_results_and_state_are_those_of_tensorflow(contenders: Contenders) -> None:
    for number in range(contenders.case.calls):
        (found, variables, seen), (expected, expected_variables, expected_seen) = contenders.call()
        tolerance = contenders.case.tolerance
        assert_same(found, expected, tolerance, f"call {number}, result")
        assert_same(variables, expected_variables, tolerance, f"call {number}, variables")
        assert_same(seen, expected_seen, tolerance, f"call {number}, seen")


@ignores_the_fallback
@EVERY
def test_the_program_is_divided_as_expected(contenders: Contenders) -> None:
    case = contenders.case
    given = contenders.last or contenders.bridged.inputs(np.random.default_rng(2))
    report = tf_interop.explain(contenders.fast, *given.positional, **given.named)
    on_device = {
        name
        for segment in report.segments
        if segment.placement == "device"
        for name in segment.operators
    }
    assert case.on_host <= set(report.on_host), report
    assert case.on_device <= on_device, report
    count = sum(segment.placement == "device" for segment in report.segments)
    assert count >= case.segments, report
    if not case.on_host:
        assert len(report.segments) == 1, report
    reasons = [str(found) for graph in report.graphs for found in graph.fallback_reasons]
    for operator in case.on_host:
        assert any(operator in reason for reason in reasons), report
    assert report.bytes_copied == 0, report


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case.name)
def test_a_forbidden_host_is_an_error_that_names_the_operator(case: Case) -> None:
    instance = case.make()
    given = instance.inputs(np.random.default_rng(1))
    before = [tf.identity(one) for one in instance.variables]
    strict = tf_interop.function(instance.run, fallback="error")
    with pytest.raises(FallbackForbidden) as error:
        strict(*given.positional, **given.named)
    assert any(operator in str(error.value) for operator in case.on_host), error.value
    assert_same([tf.identity(one) for one in instance.variables], before, 0, "variables")


def test_the_catalogues_are_large() -> None:
    assert len(MIXED) >= 26
    assert len(WHOLE) >= 20

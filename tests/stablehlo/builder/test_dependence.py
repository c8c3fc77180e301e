"""What a value is computed of."""

from __future__ import annotations

from tests.plugins import run_python


def test_a_value_is_asked_for_after_its_builder() -> None:
    """Its handle was of memory that was freed: the process ended by a signal."""
    out = run_python(
        """
        import gc
        from pjrt_bridge import dtypes
        from pjrt_bridge.stablehlo import (
            Builder, TensorType, is_argument, may_be_computed_with
        )

        def made():
            builder = Builder([TensorType((64,), dtypes.of("float32"))])
            return builder.parameters[0], builder.negate(builder.parameters[0])

        kept = [made() for _ in range(100)]
        gc.collect()
        for argument, result in kept:
            print(is_argument(argument), is_argument(result), end=" ")
            print(may_be_computed_with(result, argument), may_be_computed_with(argument, result))
        """
    )
    assert set(out.splitlines()) == {"True False True False"}

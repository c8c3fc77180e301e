from __future__ import annotations

import numpy as np
import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Builder, Program, Value
from pjrt_bridge.stablehlo.interpret.custom_calls import expand
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from tests.stablehlo.helpers import program, tensor


def twice(b: Builder, x: Value) -> Value:
    return b.add(x, x)


def calling(target: str, *sizes: int) -> Program:
    types = [tensor(size) for size in sizes]
    return program(
        lambda b, *values: [
            b.custom_call(target, [value], [kind])[0]
            for value, kind in zip(values, types, strict=True)
        ],
        *types,
    )


def test_each_call_gets_the_body_for_its_types() -> None:
    expanded = expand(calling("twice", 2, 3, 2), {"twice": twice, "other": twice})
    assert not expanded.custom_calls
    outputs = evaluate(expanded, *(np.arange(size, dtype=np.float32) for size in (2, 3, 2)))
    assert [output.tolist() for output in outputs] == [[0, 2], [0, 2, 4], [0, 2]]


def test_a_body_with_two_results_and_no_operand_in_the_body_of_a_loop() -> None:
    def constants(b: Builder) -> list[Value]:
        return [b.full((2,), 1, "float32"), b.full((), 5, "float32")]

    def body(b: Builder, x: Value) -> Value:
        def step(carried: tuple[Value, ...]) -> list[Value]:
            one, five = b.custom_call("constants", [], [tensor(2), tensor()])
            return [b.add(b.add(carried[0], one), b.broadcast_in_dim(five, (2,), ()))]

        def more(carried: tuple[Value, ...]) -> Value:
            first = b.reshape(b.slice(carried[0], [0], [1]), ())
            return b.compare(first, b.full((), 10, "float32"), "LT")

        return b.while_([x], more, step)[0]

    expanded = expand(program(body, tensor(2)), {"constants": constants})
    assert evaluate(expanded, np.zeros(2, np.float32))[0].tolist() == [12, 12]


def test_other_calls_stay() -> None:
    given = calling("other", 2)
    assert expand(given, {"twice": twice}) is given
    assert expand(given, {}).custom_calls == {"other"}


def test_donation_and_layouts_stay() -> None:
    b = Builder([tensor(2)])
    (result,) = b.custom_call("twice", list(b.parameters), [tensor(2)])
    b.donate(0, 0)
    given = b.finish([result])
    assert expand(given, {"twice": twice}).signature == given.signature


def test_results_of_another_type_are_refused() -> None:
    def wrong(b: Builder, x: Value) -> Value:
        return b.concatenate([x, x], 0)

    with pytest.raises(ProgramError, match=r"'twice.\d+': found .*<4xf32>, expected .*<2xf32>"):
        expand(calling("twice", 2), {"twice": wrong})

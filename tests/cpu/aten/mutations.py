"""Calls with wrong attributes, in a process that may die of one: `python -m ... SEED COUNT`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge_cpu.aten import library, operators
from pjrt_bridge_cpu.aten.calls import Cut, KernelCall, Out
from tests.cpu.aten.frames import Array, Caller, attributes_of, type_of

Made = tuple[list[Array], list[Array], Callable[..., KernelCall]]

WINDOW = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
MORE = {"transposed": False, "output_padding": [0, 0]}


def _drawn(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def calls() -> Iterator[Made]:
    """One of each operator, cut where it can be."""
    square, row, places = _drawn(6, 6), _drawn(6), np.zeros((6, 3), np.int64)

    def made(
        operator: operators.Operator,
        operands: dict[str, Array],
        results: Sequence[Array],
        returns: Sequence[int | None] = (None,),
        cut: Cut | None = None,
        **rest: Any,
    ) -> Made:
        def call(*values: Any) -> KernelCall:
            arguments = {**dict(zip(operands, values, strict=True)), **rest}
            types = [type_of(array) for array in results]
            return KernelCall(operator, arguments, types, returns=returns, cut=cut)

        return list(operands.values()), list(results), call

    by_row = Cut(1, {"self": 0}, (0,))
    sides = {"self": square, "mat2": square}
    yield made(operators.MM, sides, [square.copy()], out=Out(), cut=by_row)
    batch = {"self": _drawn(2, 3, 4), "mat2": _drawn(2, 4, 5)}
    yield made(operators.BMM, batch, [_drawn(2, 3, 5)], out=Out())
    linear = {"input": square, "weight": square, "bias": row}
    yield made(operators.LINEAR, linear, [square.copy()], out=Out(), cut=Cut(1, {"input": 0}, (0,)))
    image, kernel = _drawn(2, 3, 6, 6), _drawn(4, 3, 3, 3)
    convolved = _drawn(2, 4, 6, 6)
    data = {"self": image, "weight": kernel, "bias": _drawn(4)}
    yield made(operators.ONEDNN_CONVOLUTION, data, [convolved], (0,), by_row, **WINDOW)
    data = {"input": image, "weight": kernel, "bias": _drawn(4)}
    yield made(operators.CONVOLUTION, data, [convolved], (0,), **WINDOW, **MORE)
    gradients = {"grad_output": convolved, "input": image, "weight": kernel}
    yield made(
        operators.CONVOLUTION_BACKWARD,
        gradients,
        [image.copy(), kernel.copy()],
        (0, 1, None),
        bias_sizes=None,
        output_mask=[True, True, False],
        **WINDOW,
        **MORE,
    )
    heads = {name: _drawn(2, 2, 5, 4) for name in ("query", "key", "value")}
    mask = {"attn_mask": _drawn(5, 5)}
    output, sums = _drawn(2, 2, 5, 4), _drawn(2, 2, 5)
    by_batch = Cut(1, dict.fromkeys(heads, 0), (0, 0))
    yield made(operators.ATTENTION, heads, [output, sums], (0, 1), by_batch, is_causal=True)
    yield made(operators.ATTENTION, {**heads, **mask}, [output, sums], (0, 1), by_batch)
    yield made(
        operators.ATTENTION_BACKWARD,
        {"grad_out": output.copy(), **heads, "out": output, "logsumexp": sums},
        [output.copy(), output.copy(), output.copy()],
        (0, 1, 2),
        dropout_p=0.0,
        is_causal=True,
    )
    for operator in (operators.SOFTMAX, operators.LOG_SOFTMAX):
        rest = {"dim": 1, "half_to_float": False, "out": Out()}
        yield made(operator, {"self": square}, [square.copy()], cut=by_row, **rest)
    for operator in (operators.CUMSUM, operators.CUMPROD, operators.LOGCUMSUMEXP):
        yield made(operator, {"self": square}, [square.copy()], dim=1, out=Out(), cut=by_row)
    both = {"values": Out(0), "indices": Out(1)}
    kept = [_drawn(6, 3), places]
    yield made(operators.TOPK, {"self": square}, kept, (None, None), k=3, dim=1, **both)


NUMBERS = (-(2**63), -3, -1, 0, 1, 2, 3, 7, 8, 9, 100, 2**31, 2**63 - 1)
TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool", "uint16")

Random = np.random.Generator
Frame = tuple[list[Array], list[Array], dict[str, Any]]


def change_numbers(frame: Frame, random: Random) -> None:
    """One number of an attribute, or how many there are."""
    attributes = frame[2]
    name = str(random.choice(["orders", "stack", "returns", "cuts", "grain"]))
    array = np.array(attributes[name])
    if not array.size:
        return
    match random.integers(4):
        case 0:
            array = array[: random.integers(array.size)]
        case 1:
            array = np.append(array, random.choice(NUMBERS))
        case _:
            array[random.integers(array.size)] = random.choice(NUMBERS)
    attributes[name] = array


def change_array(frame: Frame, random: Random) -> None:
    """A length or the element type of an operand or a result."""
    arrays = frame[random.integers(2)]
    place = random.integers(len(arrays))
    shape, dtype = list(arrays[place].shape), arrays[place].dtype
    if random.integers(3):
        shape[random.integers(len(shape))] = int(random.choice([0, 1, 2, 5, 9]))
    else:
        dtype = dtypes.of(str(random.choice(TYPES))).numpy
    arrays[place] = np.ones(shape, dtype)


def change_order(frame: Frame, random: Random) -> None:
    """How one operand or result lies in memory."""
    operands, results, attributes = frame
    arrays = [*operands, *results]
    place = random.integers(len(arrays))
    begin = sum(array.ndim for array in arrays[:place])
    orders = np.array(attributes["orders"])
    if orders.size >= begin + arrays[place].ndim:
        orders[begin : begin + arrays[place].ndim] = random.permutation(arrays[place].ndim)
    attributes["orders"] = orders


CHANGES = (change_numbers, change_numbers, change_array, change_order)


def main(arguments: Sequence[str]) -> None:
    """Print how many calls were right and refused, and each to standard error before it is made."""
    seed, count = map(int, arguments)
    address = library._handler()
    assert isinstance(address, int), address
    random, caller = np.random.default_rng(seed), Caller(threads=2)
    made = [
        (operands, results, attributes_of(call, operands)) for operands, results, call in calls()
    ]
    told = {"right": 0, "refused": 0}
    for operands, results, attributes in made:
        assert caller(operands, results, attributes) is None, attributes["name"]
    for _ in range(count):
        operands, results, attributes = made[random.integers(len(made))]
        frame = list(operands), list(results), dict(attributes)
        for _ in range(random.integers(1, 3)):
            CHANGES[random.integers(len(CHANGES))](frame, random)
        told_of = {
            key: value if isinstance(value, str) else value.tolist()
            for key, value in frame[2].items()
        }
        print(
            told_of,
            *[(a.shape, str(a.dtype)) for side in frame[:2] for a in side],
            file=sys.stderr,
            flush=True,
        )
        outcome = caller(*frame)
        told["right" if outcome is None else "refused"] += 1
    for operands, results, attributes in made:
        assert caller(operands, results, attributes) is None, attributes["name"]
    print(told)


if __name__ == "__main__":
    main(sys.argv[1:])

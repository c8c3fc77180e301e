"""Sorts by comparators that programs write, computed by a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Program, Value
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import for_target


class Sorting(Kernels):
    """A sort in StableHLO of elements without NaN, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def sort(
        self, b: Builder, x: Value, dim: int, *, descending: bool, positions: DType, **how: Any
    ) -> tuple[Value, Value] | None:
        self.asked.append(
            {"dim": dim, "descending": descending, "positions": positions.name, **how}
        )
        direction = "GT" if descending else "LT"
        values, places = b.sort(
            [x, b.iota(x.shape, dim, positions)],
            dim,
            lambda left, right: b.compare(left[0], right[0], direction),
        )
        return values, places


NUMBERS = """
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %low = stablehlo.constant dense<-0.0> : tensor<f32>
    %one = stablehlo.constant dense<1.0> : tensor<f32>
    %nan = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %minus = stablehlo.constant dense<0xFFC00000> : tensor<f32>"""


def pick(name: str, pred: str, sides: str, chosen: str, rest: str) -> str:
    return f"""
    %is_{name} = stablehlo.compare {pred}, {sides} : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %{name} = stablehlo.select %is_{name}, {chosen}, {rest} : tensor<i1>, tensor<f32>"""


def compared(left: str, right: str, how: str = "LT", kind: str = ", TOTALORDER") -> str:
    types = "(tensor<f32>, tensor<f32>) -> tensor<i1>"
    return f"""
    %first = stablehlo.compare {how}, {left}, {right}{kind} : {types}
    stablehlo.return %first : tensor<i1>"""


def without_zeros(a: str, to: str, zero: str = "%zero", tested: str = "") -> str:
    return pick(to, "EQ", f"{tested or a}, {zero}", zero, a)


def without_nan(a: str, of: str, to: str, nan: str = "%nan") -> str:
    return pick(to, "NE", f"{a}, {a}", nan, of)


STANDARD = "".join(
    without_zeros(f"%{side}", f"{side}_zero")
    + without_nan(f"%{side}", f"%{side}_zero", f"{side}_any")
    for side in "ab"
)
TURNED = "".join(
    without_nan(f"%{side}", f"%{side}", f"{side}_nan")
    + pick(f"{side}_any", "EQ", f"%{side}, %low", "%low", f"%{side}_nan")
    for side in "ab"
)


def sorted_floats(comparator: str, *, stable: bool = True, dim: int = 0) -> Program:
    return Program.from_text(f"""func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
    %found = "stablehlo.sort"(%x)
        <{{dimension = {dim} : i64, is_stable = {str(stable).lower()}}}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):{NUMBERS}{comparator}
    }}) : (tensor<8xf32>) -> tensor<8xf32>
    return %found : tensor<8xf32> }}""")


X = np.array([3, -1, 2, 0, 5, -7, 2, 1], np.float32)

FOUND: dict[str, tuple[str, bool, bool]] = {
    "the total order": (compared("%a", "%b"), False, True),
    "the other way": (compared("%a", "%b", "GT"), True, True),
    "turned round": (compared("%b", "%a"), True, True),
    "turned round twice": (compared("%b", "%a", "GT"), False, True),
    "as JAX writes it": (STANDARD + compared("%a_any", "%b_any"), False, False),
    "zeros behind NaN": (TURNED + compared("%a_any", "%b_any", "GT"), True, False),
}


@pytest.mark.parametrize("name", FOUND)
def test_comparators(name: str) -> None:
    comparator, descending, total = FOUND[name]
    kernels, source = Sorting(), sorted_floats(comparator, dim=-1)
    found = for_target(source, kernels)
    assert kernels.asked == [
        {
            "dim": 0,
            "descending": descending,
            "positions": "int32",
            "total": total,
            "first": 8,
        }
    ]
    np.testing.assert_array_equal(evaluate(found, X)[0], np.sort(X)[:: -1 if descending else 1])


MIXED = without_zeros("%a", "a_any") + without_nan("%b", "%b", "b_any")
LEFT: dict[str, str] = {
    "numbers": compared("%a", "%b", kind=", FLOAT"),
    "numbers that are not said to be": compared("%a", "%b", kind=""),
    "equal ones go first": compared("%a", "%b", "LE"),
    "equality": compared("%a", "%b", "EQ"),
    "with itself": compared("%a", "%a"),
    "with a number": compared("%a", "%one"),
    "numbers as JAX writes them": STANDARD + compared("%a_any", "%b_any", kind=", FLOAT"),
    "one side as JAX writes it": STANDARD + compared("%a_any", "%b"),
    "zeros alone": "".join(without_zeros(f"%{s}", f"{s}_any") for s in "ab")
    + compared("%a_any", "%b_any"),
    "NaN alone": "".join(without_nan(f"%{s}", f"%{s}", f"{s}_any") for s in "ab")
    + compared("%a_any", "%b_any"),
    "zeros on one side, NaN on the other": MIXED + compared("%a_any", "%b_any"),
    "NaN of the other sign": STANDARD.replace("%nan", "%minus") + compared("%a_any", "%b_any"),
    "another number for NaN": STANDARD.replace("%nan", "%one") + compared("%a_any", "%b_any"),
    "ones": STANDARD.replace("%zero", "%one") + compared("%a_any", "%b_any"),
    "a test of the other side": STANDARD.replace("EQ, %a,", "EQ, %b,")
    + compared("%a_any", "%b_any"),
    "NaN of the other side": STANDARD.replace("NE, %a, %a", "NE, %b, %b")
    + compared("%a_any", "%b_any"),
    "what is no NaN": STANDARD.replace("NE, %a, %a", "EQ, %a, %a") + compared("%a_any", "%b_any"),
    "something computed": "%c = stablehlo.negate %a : tensor<f32>" + compared("%c", "%b"),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_comparators_are_left(name: str) -> None:
    kernels, source = Sorting(), sorted_floats("\n" + LEFT[name])
    assert for_target(source, kernels) is source
    assert not kernels.asked


@pytest.mark.parametrize(("comparator", "calls"), [("the total order", 1), ("as JAX writes it", 0)])
def test_one_that_is_not_stable_has_equal_elements_of_the_same_bits(
    comparator: str, calls: int
) -> None:
    kernels = Sorting()
    for_target(sorted_floats(FOUND[comparator][0], stable=False), kernels)
    assert len(kernels.asked) == calls


def with_others(*, stable: bool = True, key: int = 0, limit: int = 4, dim: int = 1) -> Program:
    """Whole numbers, their positions, those of another dimension and of 64 bits, and floats."""
    kinds = ["i32", "i32", "i32", "ui64", "f32"]
    types = ", ".join(f"tensor<3x4x{kind}>" for kind in kinds)
    arguments = ", ".join(
        f"%{side}{at}: tensor<{kind}>" for at, kind in enumerate(kinds) for side in "ab"
    )
    pair = f"%a{key}, %b{key}"
    of = f"tensor<{kinds[key]}>"
    return Program.from_text(f"""func.func @main(%x: tensor<3x4xi32>, %y: tensor<3x4xf32>)
        -> (tensor<3x{limit}xi32>, tensor<3x4xi32>, tensor<3x4xi32>, tensor<3x4xui64>,
            tensor<3x4xf32>) {{
    %at = stablehlo.iota dim = {dim} : tensor<3x4xi32>
    %across = stablehlo.iota dim = {1 - dim} : tensor<3x4xi32>
    %wide = stablehlo.iota dim = {dim} : tensor<3x4xui64>
    %found:5 = "stablehlo.sort"(%x, %at, %across, %wide, %y)
        <{{dimension = {dim} : i64, is_stable = {str(stable).lower()}}}> ({{
    ^bb0({arguments}):
    %first = stablehlo.compare GT, {pair} : ({of}, {of}) -> tensor<i1>
    stablehlo.return %first : tensor<i1>
    }}) : ({types}) -> ({types})
    %part = stablehlo.slice %found#0 [0:3, 0:{limit}] : (tensor<3x4xi32>) -> tensor<3x{limit}xi32>
    return %part, %found#1, %found#2, %found#3, %found#4
        : tensor<3x{limit}xi32>, tensor<3x4xi32>, tensor<3x4xi32>, tensor<3x4xui64>,
          tensor<3x4xf32> }}""")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("key", [0, 1, 3])
def test_others_follow_the_positions(key: int, dim: int) -> None:
    kernels, source = Sorting(), with_others(key=key, dim=dim)
    found = for_target(source, kernels)
    assert [asked["positions"] for asked in kernels.asked] == ["int64"]
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 3, (3, 4), np.int32), rng.random((3, 4), np.float32)
    for got, wanted in zip(evaluate(found, x, y), evaluate(source, x, y), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_others_tell_equal_elements_apart() -> None:
    source = with_others(stable=False)
    assert for_target(source, Sorting()) is source


@pytest.mark.parametrize(("limits", "first"), [((2, 3), 3), ((1, 1), 1)])
def test_a_kernel_knows_how_many_are_read(limits: tuple[int, int], first: int) -> None:
    slices = "\n".join(
        f"%part{at} = stablehlo.slice %found#{at} [0:{limit}] : "
        f"(tensor<8xi32>) -> tensor<{limit}xi32>"
        for at, limit in enumerate(limits)
    )
    types = ", ".join(f"tensor<{limit}xi32>" for limit in limits)
    kernels = Sorting()
    source = Program.from_text(f"""func.func @main(%x: tensor<8xi32>) -> ({types}) {{
    %at = stablehlo.iota dim = 0 : tensor<8xi32>
    %found:2 = "stablehlo.sort"(%x, %at) <{{dimension = 0 : i64, is_stable = true}}> ({{
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %first = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %first : tensor<i1>
    }}) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
    {slices}
    return %part0, %part1 : {types} }}""")
    for_target(source, kernels)
    assert [asked["first"] for asked in kernels.asked] == [first]


def test_sizes_that_a_program_does_not_say_are_left() -> None:
    of = "tensor<?xf32, #stablehlo.bounds<8>>"
    source = Program.from_text(f"""
    func.func @main(%x: tensor<8xf32>, %n: tensor<i32>, %all: tensor<i32>) -> tensor<8xf32> {{
    %some = stablehlo.set_dimension_size %x, %n, dim = 0 : (tensor<8xf32>, tensor<i32>) -> {of}
    %found = "stablehlo.sort"(%some) <{{dimension = 0 : i64, is_stable = true}}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):{compared("%a", "%b")}
    }}) : ({of}) -> {of}
    %y = stablehlo.set_dimension_size %found, %all, dim = 0 : ({of}, tensor<i32>) -> tensor<8xf32>
    return %y : tensor<8xf32> }}""")
    assert for_target(source, Sorting()) is source


def test_kernels_without_a_sort_leave_it() -> None:
    class Other(Kernels):
        """Others than the portable ones."""

    source = sorted_floats(FOUND["the total order"][0])
    assert for_target(source, Other()) is source

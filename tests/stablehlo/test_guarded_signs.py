"""One program gives the results of two, in which a compiler can assume no sign."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pjrt_bridge import Client

EDGES = {
    "i8": np.array([-128, 127, -5, 3, 12, 100], np.int8),
    "i32": np.array([-(2**31), 2**31 - 1, -5, 3, 50000, 46341], np.int32),
    "f32": np.array([np.nan, np.inf, -np.inf, 0, 1, -2], np.float32),
}
PRODUCTS = {
    "square": "%y = stablehlo.multiply %x, %x : T",
    "squares": """
        %a = stablehlo.add %x, %one : T
        %b = stablehlo.add %x, %one : T
        %y = stablehlo.multiply %a, %b : T""",
    "abs": "%y = stablehlo.abs %x : T",
    "power": "%y = stablehlo.power %x, %two : T",
    "cube": """
        %a = stablehlo.abs %x : T
        %y = stablehlo.power %a, %three : T""",
    "relu": "%y = stablehlo.maximum %x, %zero : T",
}
ANSWERS = """
        %r0 = stablehlo.abs %y : T
        %r1 = stablehlo.sign %y : T
        %r2 = stablehlo.divide %y, %four : T
        %r3 = stablehlo.remainder %y, %four : T
        %r4 = stablehlo.clamp %zero, %y, %four : T""" + "".join(
    f"""
        %q{number} = stablehlo.compare {question}, KIND : (T, T) -> B
        %r{number} = stablehlo.convert %q{number} : (B) -> T"""
    for number, question in enumerate(
        ("GE, %y, %zero", "LT, %y, %zero", "LE, %zero, %y", "GT, %zero, %y"), 5
    )
)


def computed(client: Client, body: str, given: np.ndarray, element: str) -> list[np.ndarray]:
    """The values `%r...` of a body, else `%y`; T stands for the type of what is given."""
    name = "%x" if "%x" in body else "%y"
    results = sorted(set(re.findall(r"%r\d", body))) or ["%y"]
    one = "1.0" if element == "f32" else "1"
    constants = "".join(
        f"%{name} = stablehlo.constant dense<{one.replace('1', str(number), 1)}> : T\n"
        for number, name in enumerate(("zero", "one", "two", "three", "four"))
    )
    types = ", ".join("T" for _ in results)
    text = f"""
        func.func @main({name}: T) -> ({types}) {{
        {constants} {body}
        return {", ".join(results)} : {types} }}"""
    text = re.sub(r"\bT\b", f"tensor<{len(given)}x{element}>", text)
    text = re.sub(r"\bB\b", f"tensor<{len(given)}xi1>", text)
    text = re.sub(r"\bKIND\b", "FLOAT" if element == "f32" else "SIGNED", text)
    return [found.to_numpy() for found in client.compile(text)(given)]


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize(("element", "edges"), EDGES.items(), ids=EDGES)
def test_no_sign_is_taken_for_known(
    client: Client, element: str, edges: np.ndarray, product: str
) -> None:
    (made,) = computed(client, product, edges, element)
    apart = computed(client, ANSWERS, made, element)
    together = computed(client, product + ANSWERS, edges, element)
    assert len(apart) == 9
    np.testing.assert_array_equal(together, apart)


def test_powers_of_integers(client: Client) -> None:
    base = np.arange(-9, 10, dtype=np.int32)
    for exponent in (0, 1, 2, 3, 7, 12, 31):
        text = f"""
          func.func @main(%x: tensor<19xi32>) -> tensor<19xi32> {{
            %n = stablehlo.constant dense<{exponent}> : tensor<19xi32>
            %r = stablehlo.power %x, %n : tensor<19xi32>
            return %r : tensor<19xi32> }}"""
        (found,) = client.compile(text)(base)
        np.testing.assert_array_equal(found.to_numpy(), base**exponent)

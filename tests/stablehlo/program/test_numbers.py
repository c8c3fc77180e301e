"""Numbers in programs that end the process which reads or compiles them, or take it too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Program, bindings
from pjrt_bridge.stablehlo.program import numbers


@given(before=st.integers(0, 300), digits=st.integers(390, 900), sign=st.sampled_from(" -.x"))
def test_long_numbers_are_found_wherever_they_are(before: int, digits: int, sign: str) -> None:
    data = f"{'1 ' * before}{sign}{'7' * digits} 99".encode()
    found = numbers._long_number(data)
    assert found == (2 * before + 1 if digits > numbers.DIGITS else None)


def test_programs_with_long_numbers_are_refused() -> None:
    text = "\nmodule attributes {a.b = NUMBER} { func.func @main() { return } }"
    Program.parse(text.replace("NUMBER", f"{'1' * 300}.0 : f64"))
    with pytest.raises(ProgramError, match="line 2: found a number of more than 400 digits"):
        Program.parse(text.replace("NUMBER", f"{'9' * 100_000} : i64"))


ARGUMENT = """
func.func @main(%a: tensor<TYPE>) -> tensor<f32> {
  %0 = stablehlo.constant dense<1.0> : tensor<f32>
  return %0 : tensor<f32>
}"""
CONSTANT = """
func.func @main() -> tensor<TYPE> {
  %0 = stablehlo.constant dense<1.0> : tensor<TYPE>
  return %0 : tensor<TYPE>
}"""


@pytest.mark.parametrize("text", [ARGUMENT, CONSTANT])
@pytest.mark.parametrize(
    "sizes",
    [
        "4611686018427387904x4x",
        "3037000500x3037000500x",
        "9223372036854775807x",
        "0x4611686018427387904x4x",
        "8x" * 20,
        "4611686018427387904 x\n 4 x ",
    ],
)
def test_arrays_whose_sizes_do_not_fit_into_64_bits_are_refused(sizes: str, text: str) -> None:
    with pytest.raises(ProgramError, match=r"line 2: found an array of \d{15,} elements, expected"):
        Program.parse(text.replace("TYPE", f"{sizes}f32"))


def test_the_largest_arrays_are_compiled(client: Client) -> None:
    client.compile(ARGUMENT.replace("TYPE", f"{numbers.ELEMENTS // 4}x4xf64")).close()


def test_arrays_of_bytecode_are_looked_at_too() -> None:
    text = CONSTANT.replace("TYPE", "16777216x16777217xf32")
    written = bindings.write_bytecode(bindings.parse(text, "text"))
    with pytest.raises(ProgramError, match=r"as text: line .* found an array of"):
        Program.parse(written)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 10**17, "0x1234567812345678"])
def test_elements_are_no_sizes(value: int | str) -> None:
    text = CONSTANT.replace("dense<1.0>", f"dense<{value}>").replace("TYPE", "2xi64")
    program = Program.parse(text.replace("tensor<f32>", "tensor<2xi64>"))
    assert Program.from_portable_artifact(program.portable_artifact()).text == program.text

"""Programs known by their artifact: handed on as they are, parsed when somebody looks."""

import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.program.saved import SavedProgram, artifact_version

PROGRAM = Program.from_text("""
module @sum {
  func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %x, %x : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
""")
ARTIFACT = PROGRAM.portable_artifact("1.0.0")
SAVED = SavedProgram(ARTIFACT, "sum", PROGRAM.signature)


def test_it_is_the_program() -> None:
    assert SAVED.text == PROGRAM.text
    assert SAVED.signature == PROGRAM.signature
    assert SAVED.name == PROGRAM.name
    assert SAVED.version == "1.0.0"
    assert Program.from_bytecode(SAVED.bytecode()).text == PROGRAM.text
    assert "stablehlo.add" in SAVED.located_text


def test_plugins_get_the_artifact_itself_unless_they_are_older() -> None:
    assert SAVED.serialize_for(None) is ARTIFACT
    assert SAVED.serialize_for("1.0.0") is ARTIFACT
    assert SAVED.serialize_for("1.10.0") is ARTIFACT
    assert SAVED.portable_artifact("1.0.0") is ARTIFACT
    assert artifact_version(SAVED.serialize_for("0.9.0")) == "0.9.0"
    assert artifact_version(SAVED.portable_artifact("1.2.0")) == "1.2.0"


def test_what_is_no_artifact_is_refused() -> None:
    with pytest.raises(ProgramError, match="no portable artifact"):
        SavedProgram(PROGRAM.bytecode(), "sum", PROGRAM.signature)


def test_custom_calls_are_known() -> None:
    calling = Program.from_text("""
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.custom_call @mine(%x) : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }
    """)
    artifact = calling.portable_artifact("1.0.0")
    assert SavedProgram(artifact, "calls", calling.signature).custom_calls == {"mine"}
    assert SAVED.custom_calls == frozenset()

"""Altered bytecode is refused before MLIR, which does not survive it."""

import base64
import os
import sys

import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.program import bytecode, probe
from tests import programs
from tests.plugins import run_python


def forms() -> list[bytes]:
    built = Program.from_text(programs.TWO_RESULTS)
    return [built.bytecode(), built.portable_artifact(), built.portable_artifact("1.0.0")]


def test_what_mlir_writes_passes() -> None:
    for data in forms():
        bytecode.check(data, "bytecode")
        assert Program.parse(data).signature == Program.from_text(programs.TWO_RESULTS).signature


def test_every_truncation_is_refused() -> None:
    data = forms()[1]
    for end in range(len(bytecode.MAGIC), len(data) - 1):
        with pytest.raises(ProgramError):
            Program.parse(data[:end])


@pytest.mark.parametrize("name", [b"StableHLO_v1", b"func_v1", b"main"])
def test_strings_that_are_no_text(name: bytes) -> None:
    data = Program.from_text(programs.ADD).portable_artifact()
    assert name in data
    spoiled = data.replace(name, name[:-1] + b"\xff")
    out = run_python(
        """
        import sys
        from pjrt_bridge.stablehlo import Program
        try: Program.parse(bytes.fromhex(sys.argv[1]))
        except ProgramError as error: print(error)
        """,
        spoiled.hex(),
    )
    assert "is no UTF-8" in out


# An artifact with one number altered: MLIR's reader goes on for ever.
ENDLESS = (
    "O-%1n4O4VsVr*qdOiy2SF)lGTE-(NA7X<+Y2LS^M0|gHg12Y{50SyZa6B82?0}%@g4-"
    "*Ru3kw4W7Z(QtWd#cb4Hp3g3l{+g4;KLkFBbs^#{&T)0|NsS4FeSy9S<E59TOcDDFq1)1reeF0|5mDJp"
    "}<!1px;HEdv1s15gJ82Lu@d0|x^G2>=BI3j+ZL0|5mA0JRqb3k@R^1r-"
    "qw3lU;<X>4?9ZUA;@Y;OQ<Z)A0BWdLS%Zew3|F#vL9bairWUv@D7EdXg`Wo~q7ba?=6Xl!pTY+-"
    "qCb#z~CZ)9ZvdoV09eE@A?X>I@j2o(hd2LTHW4-pv~"
)


def number(value: int) -> bytes:
    assert value < 128
    return bytes([value << 1 | 1])


def section(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + number(len(content)) + content


@pytest.mark.parametrize(
    ("kind", "content", "complaint"),
    [
        (0, number(100), "100 strings are announced"),
        (0, number(1) + number(9), "9 bytes are announced"),
        (1, number(100), "100 dialects are announced"),
        (3, number(1) + number(0) + number(0) + number(3) + number(1) * 3, "3 attributes or types"),
        (3, number(90), "90 attributes are announced"),
        (3, number(1), "truncated"),
        (9, b"", "passes"),
    ],
)
def test_counts_that_contradict(kind: int, content: bytes, complaint: str) -> None:
    data = bytecode.MAGIC + number(6) + b"MLIR\0" + section(kind, content)
    if complaint == "passes":
        bytecode.check(data, "bytecode")
        return
    with pytest.raises(ProgramError, match=complaint):
        bytecode.check(data, "bytecode")


@pytest.mark.parametrize("given", [None, 7, bytearray(b"ML"), memoryview(b"ML"), {"a"}])
def test_what_is_no_program(given: object) -> None:
    with pytest.raises(ProgramError, match="expected StableHLO as str or bytes"):
        Program.parse(given)  # type: ignore[arg-type]


def test_what_ends_mlir_ends_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LIMIT", 1.0)
    with pytest.raises(ProgramError, match="MLIR's reader does not come to an end"):
        Program.parse(base64.b85decode(ENDLESS))
    good = forms()[1]
    assert Program.parse(good).signature == Program.from_text(programs.TWO_RESULTS).signature


def test_a_process_that_died_is_replaced() -> None:
    good = forms()[1]
    Program.parse(good)
    assert probe._process is not None
    os.kill(probe._process.pid, 9)
    assert Program.parse(good).name == "two"


def test_bytecode_is_read_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_process", None)
    monkeypatch.setattr(probe, "_impossible", False)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    program = Program.parse(programs.ADD)
    assert Program.parse(program.bytecode()).text == program.text
    assert probe._impossible

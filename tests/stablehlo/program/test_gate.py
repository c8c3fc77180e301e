"""Programs that would end the process which parses, prints or compiles them are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.program import gate, nesting
from tests.stablehlo.program import nested

# Each would end this process if it was let through, so another one reads what passes.
READING = """
import sys, threading
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Program, bindings
from tests.stablehlo.program import nested

written = {}
def write():
    for name, count in (("conditions", 2000), ("tuples", 5000), ("locations", 5000),
                        ("type_aliases", 5000), ("recursion", 3), ("doubled_calls", 60)):
        module = bindings.parse(nested.KINDS[name](count), name)
        written[name] = bindings.write_bytecode(module)

threading.stack_size(1 << 30)
thread = threading.Thread(target=write)
thread.start()
thread.join()
given = [*written.items(), *((name, nested.KINDS[name](20_000)) for name in ("sums", "signs"))]
for name, content in given:
    try:
        Program.parse(content)
        print(name, "was accepted")
    except ProgramError as error:
        print(name, error)
"""


@pytest.mark.parametrize("kind", [*nested.KINDS])
def test_what_is_nested_as_programs_are_is_accepted(client: Client, kind: str) -> None:
    if kind in ("recursion", "parentheses"):
        return
    program = Program.parse(nested.KINDS[kind](8))
    assert Program.parse(program.bytecode()).located_text == program.located_text
    if kind in ("conditions", "calls", "doubled_calls", "locations"):
        client.compile(program).close()


@pytest.mark.parametrize(("kind", "count"), [("conditions", 250), ("calls", 250), ("tuples", 500)])
def test_the_deepest_that_are_accepted_are_compiled(client: Client, kind: str, count: int) -> None:
    program = Program.parse(nested.KINDS[kind](count))
    if kind == "calls":
        client.compile(program).close()


@pytest.mark.parametrize(
    ("kind", "count", "says"),
    [
        ("conditions", 20_000, "line 257: found more than 512 levels of nested brackets"),
        ("parentheses", 300_000, "line 1: found more than 512 levels of nested brackets"),
        ("tuples", 200_000, "line 1: found more than 512 levels of nested brackets"),
        ("lists", 600, "line 1: found more than 512 levels of nested brackets"),
        ("dictionaries", 600, "line 1: found more than 512 levels of nested brackets"),
        ("locations", 600, "line 1: found more than 512 levels of nested brackets"),
        ("type_aliases", 600, "!t257: found 514 levels of nested calls, aliases and brackets"),
        ("attribute_aliases", 600, "#t257: found 514 levels"),
        ("doubled_aliases", 60, "bytes of text once calls and aliases are replaced"),
        ("calls", 1000, "levels of nested calls, aliases and brackets, expected 512 at most"),
        ("doubled_calls", 60, "bytes of text once calls and aliases are replaced"),
        ("recursion", 0, "@main refers to itself, found @main -> @main"),
        ("recursion", 2, "@main refers to itself, found @main -> @f1 -> @f2 -> @main"),
    ],
)
def test_text_that_is_nested_too_deeply_is_refused(kind: str, count: int, says: str) -> None:
    with pytest.raises(ProgramError) as caught:
        nesting.check(nested.KINDS[kind](count).encode(), "StableHLO text")
    assert says in str(caught.value)
    assert str(caught.value).startswith("StableHLO text: ")


def test_brackets_in_strings_and_comments_do_not_count() -> None:
    many = "(" * 1000
    text = f'"{many}" @"{many}" // {many}\n loc("\\"{many}") -> -> ->'
    nesting.check(text.encode(), "text")
    for hidden in ('"a', '@"b', "// c", '"\\""'):
        with pytest.raises(ProgramError, match="line 2: found more than 512"):
            nesting.check(f"{hidden}\n{many}".encode(), "text")
    # Closing brackets make no room for others.
    with pytest.raises(ProgramError, match="found more than 512"):
        nesting.check((")" * 1000 + many).encode(), "text")
    nesting.check(b"->" * 1000 + b"(" * 512, "text")


def test_what_no_text_shows_ends_another_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READING], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    # jaxlib 0.12 writes them as text with more brackets, which are counted first.
    regions = "found 2002 levels of nested regions, expected 256 at most"
    brackets = "found more than 512 levels of nested brackets, expected 512 at most"
    assert regions in said["conditions"] or brackets in said["conditions"]
    assert "more than 512 levels" in said["tuples"]
    assert "levels of nested calls, aliases and brackets" in said["locations"]
    assert "more than 512 levels" in said["type_aliases"]
    assert "@main refers to itself" in said["recursion"]
    assert "bytes of text once calls and aliases" in said["doubled_calls"]
    for name in ("sums", "signs"):
        assert said[name].startswith("StableHLO text: MLIR's reader ends its process (-11)")


def test_the_command_refuses_them_too(tmp_path: Path) -> None:
    path = tmp_path / "deep.mlir"
    path.write_text(nested.conditions(20_000))
    done = subprocess.run(
        [sys.executable, "-m", "pjrt_bridge", "run", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {path}: StableHLO text: line 257: found more than 512")


@pytest.mark.parametrize("given", [None, 7, b"func.func", ["text"]])
def test_what_is_no_text(given: object) -> None:
    with pytest.raises(ProgramError, match=r"StableHLO text: found .*, expected str"):
        gate.check_text(given, "StableHLO text")  # type: ignore[arg-type]


def test_the_signature_of_bytecode_is_told() -> None:
    program = Program.from_text(nested.calls(1))
    assert '"float32"' in gate.check_bytes(program.bytecode(), "program")
    assert gate.check_bytes(program.portable_artifact(), "program") == gate.check_bytes(
        program.bytecode(), "program"
    )
    none = Program.from_text("func.func @main(%a: tensor<?xf32>) { return }")
    assert gate.check_bytes(none.bytecode(), "program") == ""

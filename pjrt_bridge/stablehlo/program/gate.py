"""Checks of programs of unknown origin: text, bytecode and portable artifacts.

What passes can be parsed, printed and handed to a plugin without ending the process. In this
process the text's nesting and the bytecode's envelope are checked. Bytecode, and text with
constructs whose nesting the text does not show, is read by another process first.
"""

from __future__ import annotations

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.program import bytecode, lexing, nesting, probe
from pjrt_bridge.wrong_arguments import wrong

_UNSEEN = ("affine", '"func.', '"builtin.')
"""What makes text that `nesting` cannot judge: affine expressions nest without brackets, and
functions in the generic form have their names in strings, as have operations whose names are
written with escapes. Another process prints it first."""


def check_text(text: str, what: str) -> None:
    """Check StableHLO text before it is parsed.

    Args:
        text: of any origin.
        what: name of the input in error messages.

    Raises:
        ProgramError: nested too deeply, or it ends the process that reads it.
    """
    if not isinstance(text, str):
        raise ProgramError(wrong(what, text, "str"))
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ProgramError(f"{what}: it is no Unicode text: {error}") from None
    unseen = any(construct in text for construct in _UNSEEN) or lexing.has_escaped_operation(text)
    nesting.check(data, what, brackets_alone=unseen)
    if unseen:
        probe.check(data, what)


def check_bytes(data: bytes, what: str) -> str | None:
    """Check bytecode or a portable artifact before it is read.

    Args:
        data: of any origin, begins with `bytecode.MAGIC`.
        what: name of the input in error messages.

    Returns:
        The signature of its `main` as JSON; empty where it has none that can be read, None where
        there can be no other process, as in a program that embeds Python.

    Raises:
        ProgramError: damaged, nested too deeply, or it ends the process that reads it.
    """
    if not isinstance(data, bytes):
        raise ProgramError(wrong(what, data, "bytes"))
    bytecode.check(data, what)
    return probe.check(data, what)

r"""StableHLO text without what hides or imitates its structure: strings, comments and arrows.

One name may be written in several ways: `@f`, `@"f"` and `@"\66"` are the same symbol. Here each
has one form, so what looks for definitions and their uses finds all of them.

Source: MLIR's lexer (`Lexer.cpp`) and language reference, "Identifiers and keywords".
"""

from __future__ import annotations

import re

ALIAS = rb"(?:\d++|[A-Za-z$._\-][\w$.\-]*+)"
"""Name of an alias, behind its `#` or `!`: a number ends it, so `#1a` is `#1` and a word."""

SYMBOL = rb"[\w$][\w$.\-]*+"
"""Name of a symbol, behind its `@`, in the form that `plain` gives it."""

_SYMBOL = re.compile(rb"[A-Za-z_][\w$.\-]*+")
_QUOTED = re.compile(rb'@"((?:[^"\\\n]|\\.)*)"')
_STRING = re.compile(rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*')
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)")
_ESCAPES = {b"n": b"\n", b"t": b"\t"}
_NO_DIGITS = str.maketrans("0123456789", "ghijklmnop")
_DASHED = re.compile(rb"([#!%@^][\w$.\-]*-)>")
_ESCAPED_OPERATION = re.compile(r'(?<!@)"[^"\\\n]*\\(?:[^"\\\n]|\\.)*"\s*\(')


def plain(text: bytes) -> bytes:
    """The text with its brackets, names and line ends, and without strings, comments and arrows.

    Args:
        text: StableHLO text in UTF-8.
    """
    # A string or comment that holds an arrow is gone before arrows are.
    if b'@"' in text:
        text = _QUOTED.sub(_symbol, text)
    if b'"' in text or b"//" in text:
        text = _STRING.sub(b"", text)
    if text.count(b"->") != text.count(b" ->"):
        # Names may end in a dash, and what closes a bracket behind one is no arrow.
        text = _DASHED.sub(rb"\1 >", text)
    return text.replace(b"->", b"")


def has_escaped_operation(text: str) -> bool:
    """Whether an operation in the generic form has a name that is written with escapes."""
    return "\\" in text and _ESCAPED_OPERATION.search(text) is not None


def _symbol(found: re.Match[bytes]) -> bytes:
    name = _ESCAPE.sub(_unescaped, found[1])
    if _SYMBOL.fullmatch(name):
        return b"@" + name
    # No symbol without quotes begins so. Without digits it is not taken for a number.
    return b"@$" + name.hex().translate(_NO_DIGITS).encode()


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes([int(code, 16)]) if len(code) == 2 else _ESCAPES.get(code, code)

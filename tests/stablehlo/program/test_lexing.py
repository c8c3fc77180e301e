"""Text without what hides its structure."""

from __future__ import annotations

import pytest

from pjrt_bridge.stablehlo.program import lexing


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ('@f @"f" @"\\66" @"f g" @"\\"\\n"', "@f @f @f @$mmigmn @$iiga"),
        ('"(" // )\n(d0) -> (d0)', " \n(d0)  (d0)"),
        ("(i32)->i32 tuple<!t->", "(i32)i32 tuple<!t- >"),
        ('{a = "->"} -> ', "{a = }  "),
    ],
)
def test_plain(text: str, plain: str) -> None:
    assert lexing.plain(text.encode()) == plain.encode()


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ('"\\66unc.func"() ', True),
        ('"func.f\\75nc" \n ()', True),
        ('@"\\66"(%a)', False),
        ('{a = "\\66"}', False),
        ('"func.func"()', False),
    ],
)
def test_operations_with_escapes_in_their_names(text: str, escaped: bool) -> None:
    assert lexing.has_escaped_operation(text) is escaped

"""Programs that are nested deeply, in every way in which MLIR nests."""

from __future__ import annotations

import re
from collections.abc import Callable

F32 = "tensor<f32>"


def conditions(count: int) -> str:
    """`if` within `if`."""
    begin = "".join(f'"stablehlo.if"(%p) ({{\n  %x{at} = ' for at in range(count))
    end = "".join(
        f"stablehlo.return %x{at} : {F32}\n}}, {{ stablehlo.return %a : {F32} }})"
        f" : (tensor<i1>) -> {F32}\n"
        for at in reversed(range(count))
    )
    return (
        f"func.func @main(%p: tensor<i1>, %a: {F32}) -> {F32} {{\n%r = {begin}"
        f"stablehlo.add %a, %a : {F32}\n{end}return %r : {F32}\n}}"
    )


def parentheses(count: int) -> str:
    return f"func.func @main() -> {'(' * count}{')' * count} {{ return }}"


def tuples(count: int) -> str:
    return f"func.func @main(%a: {'tuple<' * count}{F32}{'>' * count}) {{ return }}"


def lists(count: int) -> str:
    return _with_attribute("[" * count + "]" * count)


def dictionaries(count: int) -> str:
    return _with_attribute("{a = " * count + "1" + "}" * count)


def locations(count: int) -> str:
    inner = 'callsite("a" at ' * count + '"b"' + ")" * count
    return f"func.func @main() {{ return }} loc({inner})"


def sums(count: int) -> str:
    """Nested without a bracket."""
    return _with_attribute(f"affine_map<(d0) -> ({' + '.join(['d0'] * count)})>")


def signs(count: int) -> str:
    return _with_attribute(f"affine_map<(d0) -> ({'-' * count}d0)>")


def type_aliases(count: int) -> str:
    lines = "".join(f"!t{at + 1} = tuple<!t{at}>\n" for at in range(count))
    return f"!t0 = tuple<{F32}>\n{lines}func.func @main(%a: !t{count}) {{ return }}"


def attribute_aliases(count: int) -> str:
    lines = "".join(f"#t{at + 1} = [#t{at}]\n" for at in range(count))
    return f"#t0 = []\n{lines}{_with_attribute(f'#t{count}')}"


def doubled_aliases(count: int) -> str:
    """Few lines, which printed take as many bytes as two to the power of their number."""
    lines = "".join(f"!t{at + 1} = tuple<!t{at}, !t{at}>\n" for at in range(count))
    return f"!t0 = tuple<{F32}>\n{lines}func.func @main(%a: !t{count}) {{ return }}"


def aliases_on_one_line(count: int) -> str:
    return type_aliases(count).replace("\n", " ")


def dashed_aliases(count: int) -> str:
    """A dash may be within and at the end of a name, and is no half of an arrow there."""
    return re.sub(r"!t(\d+)", r"!t-\1-", type_aliases(count))


def spread_aliases(count: int) -> str:
    return doubled_aliases(count).replace(" = ", " // !a = i32\n  =\n ")


def aliases_called_loc(count: int) -> str:
    """Locations that are shared are printed once, but not what is only called as they are."""
    lines = "".join(f"#loc{at + 1} = [#loc{at}, #loc{at}]\n" for at in range(count))
    return f"#loc0 = []\n{lines}{_with_attribute(f'#loc{count}')}"


def aliases_with_keywords(count: int) -> str:
    """Keys of an attribute that are called as what begins a definition."""
    lines = "".join(
        f"#t{at + 1} = {{a = @x,\nmodule = 1, func.func = @x, b = [#t{at}]}}\n"
        for at in range(count)
    )
    return f"#t0 = []\n{lines}{_with_attribute(f'#t{count}')}"


def location_aliases(count: int) -> str:
    lines = " ".join(f'#l{at + 1} = loc(callsite(#l{at} at "b"))' for at in range(count))
    return f'func.func @main() {{ return }} loc(#l{count}) #l0 = loc("a") {lines}'


def calls(count: int) -> str:
    return _calling(count, 1)


def doubled_calls(count: int) -> str:
    """Inlined, as compilers do, as many operations as two to the power of their number."""
    return _calling(count, 2)


def quoted_calls(count: int) -> str:
    """`@f`, `@"f"` and `@"\\66"` are one name."""
    return re.sub(r"call @f(\d+)", r'call @"\\66\1"', doubled_calls(count))


def quoted_functions(count: int) -> str:
    return re.sub(r"private @(f\d+)", r'private @"\1"', doubled_calls(count))


def escaped_functions(count: int) -> str:
    """Functions in the generic form, by an operation whose name is written with escapes."""
    text = ""
    for at in range(count + 1):
        name = f"f{at}" if at else "main"
        result = "%a"
        body = ""
        if at < count:
            result = "%1"
            body = "".join(
                f"  %{time} = func.call @f{at + 1}(%a) : ({F32}) -> {F32}\n" for time in range(2)
            )
        text += (
            f'"\\66unc.func"() <{{function_type = ({F32}) -> {F32}, sym_name = "{name}"}}> ({{\n'
            f"^bb0(%a: {F32}):\n{body}  func.return {result} : {F32}\n}}) : () -> ()\n"
        )
    return f"module {{\n{text}}}"


def recursion(count: int) -> str:
    """A function that calls itself, by way of so many others."""
    text = _calling(count, 1)
    again = f"func.call @main(%a) : ({F32}) -> {F32}"
    return text.replace(f"stablehlo.add %a, %a : {F32}", again)


def _with_attribute(text: str) -> str:
    return f"module attributes {{a.b = {text}}} {{ func.func @main() {{ return }} }}"


def _calling(count: int, times: int) -> str:
    text = ""
    for at in range(count):
        text += f"func.func {_name(at)}(%a: {F32}) -> {F32} {{\n"
        for time in range(times):
            text += f"  %{time} = func.call @f{at + 1}(%a) : ({F32}) -> {F32}\n"
        text += f"  return %0 : {F32}\n}}\n"
    return (
        f"{text}func.func {_name(count)}(%a: {F32}) -> {F32} {{ %0 = stablehlo.add %a, %a : {F32}\n"
        f" return %0 : {F32} }}"
    )


def _name(at: int) -> str:
    return f"private @f{at}" if at else "@main"


KINDS: dict[str, Callable[[int], str]] = {
    made.__name__: made
    for made in (
        conditions, parentheses, tuples, lists, dictionaries, locations, sums, signs,
        type_aliases, attribute_aliases, doubled_aliases, aliases_on_one_line, dashed_aliases,
        spread_aliases, aliases_called_loc, aliases_with_keywords, location_aliases, calls,
        doubled_calls, quoted_calls, quoted_functions, escaped_functions, recursion,
    )
}  # fmt: skip

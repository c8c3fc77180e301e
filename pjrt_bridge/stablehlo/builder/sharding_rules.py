"""Rules by which calls of kernels are divided over a mesh, in Shardy's notation."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.errors import ProgramError

Shapes = Sequence[tuple[int, ...]]


def custom_call_rule(
    target: str, dimensions: str, undivided: str, operands: Shapes, results: Shapes
) -> str:
    """The rule of a custom call as the text of an attribute.

    Args:
        target: of the call.
        dimensions: letters of the operands' and results' dimensions, `"bqd,bkd->bq"`.
        undivided: letters of those that the kernel needs whole.
        operands: their shapes.
        results: their shapes.

    Raises:
        ProgramError: letters that do not fit the shapes.
    """
    sizes: dict[str, int] = {}
    sides = dimensions.replace(" ", "").split("->")
    if len(sides) != 2:
        raise _wrong(target, dimensions, "'OPERANDS->RESULTS', such as 'bqd,bkd->bq'")
    for side, shapes in zip(sides, (operands, results), strict=True):
        groups = side.split(",") if side else []
        if [len(group) for group in groups] != [len(shape) for shape in shapes]:
            raise _wrong(target, dimensions, f"a letter for each dimension of {_shown(shapes)}")
        for group, shape in zip(groups, shapes, strict=True):
            for letter, size in zip(group, shape, strict=True):
                if not letter.isalpha() or sizes.setdefault(letter, size) != size:
                    raise _wrong(
                        target, dimensions, f"a letter for dimensions of one size, not {letter!r}"
                    )
    unknown = [letter for letter in undivided if letter not in sizes]
    if unknown:
        raise _wrong(target, dimensions, f"the letter {unknown[0]!r} of the undivided ones")
    # Shardy's names of factors are i, j, ..., z, z_1, ...
    names = {letter: _factor(at) for at, letter in enumerate(sizes)}
    written = [
        ", ".join("[" + ", ".join(names[letter] for letter in group) + "]" for group in groups)
        for groups in (side.split(",") if side else [] for side in sides)
    ]
    known = ", ".join(f"{names[letter]}={size}" for letter, size in sizes.items())
    whole = ", ".join(names[letter] for letter in sizes if letter in undivided)
    needed = f" need_replication={{{whole}}}" if whole else ""
    return f"#sdy.op_sharding_rule<({written[0]})->({written[1]}) {{{known}}}{needed}, custom>"


def _factor(at: int) -> str:
    letters = "ijklmnopqrstuvwxyz"
    if at < len(letters):
        return letters[at]
    return f"z_{at - len(letters) + 1}"


def _shown(shapes: Shapes) -> str:
    return ", ".join(map(str, shapes))


def _wrong(target: str, found: str, expected: str) -> ProgramError:
    return ProgramError(f"custom call {target!r}: dimensions: found {found!r}, expected {expected}")

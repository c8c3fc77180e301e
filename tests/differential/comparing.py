"""Whether two runs of a program are the same, in everything that can be seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.differential.observing import Call, Seen

WRONG = "wrong"
SHARED = "shared"
LAYOUT = "layout"
SEVERITIES = (WRONG, SHARED, LAYOUT)

_TOLERANCE = {
    torch.float64: 1e-11,
    torch.complex128: 1e-11,
    torch.float32: 2e-6,
    torch.complex64: 2e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
"""Relative to an element and, much smaller, to the largest of its tensor."""


@dataclass(frozen=True)
class Difference:
    """A difference between two runs.

    Attributes:
        kind: "value", "dtype", "alias", ...
        call: number of the call.
        place: which result or argument.
        text: what it is.
        shared: PyTorch's own compiler has it, too.
    """

    kind: str
    call: int
    place: str
    text: str
    shared: bool = False

    @property
    def severity(self) -> str:
        """The class in which it is reported."""
        if self.shared:
            return SHARED
        return LAYOUT if self.kind in ("strides", "offset", "resizable") else WRONG

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells it from others of the same program."""
        return (self.kind, self.call, self.place)

    def __str__(self) -> str:
        return f"call {self.call}: {self.place}: {self.kind}: {self.text}"


def differences(
    found: Sequence[Call],
    expected: Sequence[Call],
    *,
    random: bool = False,
    ignored: Sequence[str] = (),
) -> list[Difference]:
    """Everything in which a run differs from the oracle's.

    Args:
        found: the run.
        expected: the oracle's.
        random: values are drawn.
        ignored: kinds of differences that are left out.
    """
    return [
        Difference(kind, number, place, text)
        for number, (one, other) in enumerate(zip(found, expected, strict=True))
        for kind, place, text in _call(one, other, random)
        if kind not in ignored
    ]


FoundDifferences = Iterator[tuple[str, str, str]]


def _call(one: Call, other: Call, random: bool) -> FoundDifferences:
    if one.error is not None or other.error is not None:
        yield from _errors(one, other)
        if one.error_in == "call" or other.error_in == "call":
            yield from _tensors(one.arguments, other.arguments, random, strided=False)
            return
    if one.structure != other.structure or list(one.results) != list(other.results):
        yield "structure", "result", f"{one.structure}, not {other.structure}"
        return
    yield from _tensors(one.results, other.results, random)
    yield from _tensors(one.arguments, other.arguments, random)
    if list(one.held) != list(other.held):
        yield "structure", "arguments", f"{list(one.held)}, not {list(other.held)}"
        return
    yield from _tensors(one.held, other.held, random)
    yield from _uses(one.used, other.used)
    used = {place: seen for place, seen in other.used.items() if not isinstance(seen, str)}
    yield from _tensors(one.used, used, random)
    if not (one.error or other.error):
        yield from _gradients(one, other, random)
    for name, theirs in other.written.items():
        ours = one.written.get(name, 0)
        if (ours == 0) != (theirs == 0):
            yield "version", name, f"version changed by {ours}, not by {theirs}"
    yield from _aliases(one, other)
    for name, (anew, again) in other.draws.items():
        ours = one.draws.get(name, (anew, again))
        if anew > 0.3 and ours[0] == 0:
            yield "draws", name, "a second call draws the same numbers"
        if again == 0 and ours[1] > 0:
            yield "draws", name, "the same seed gives other numbers"
    for name in sorted(one.later ^ other.later):
        yield "later", name, "changed after the call" if name in one.later else "did not change"


def _uses(ours: dict[str, Any], theirs: dict[str, Any]) -> FoundDifferences:
    """What a caller may do with a result, or may not."""
    for place, error in theirs.items():
        found = ours.get(place)
        if isinstance(error, str) and isinstance(found, str) and found != error:
            kind = "other exception" if found and error else "exception"
            yield kind if found else "missing exception", place, f"{found!r}, not {error!r}"


def _errors(one: Call, other: Call) -> FoundDifferences:
    place = one.error_in or other.error_in
    if one.error is None:
        yield "missing exception", place, f"none, not {described(other.error)}"
    elif other.error is None:
        yield "exception", place, described(one.error)
    elif not alike(one.error, other.error) or one.error_in != other.error_in:
        yield "other exception", place, f"{described(one.error)}; not {described(other.error)}"


def described(error: BaseException | None) -> str:
    """The type and the first line of an exception."""
    error = unwrapped(error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def unwrapped(error: BaseException | None) -> BaseException | None:
    """What torch's compiler wrapped."""
    while (inner := getattr(error, "inner_exception", None)) is not None:
        error = inner
    if type(error).__module__.startswith("torch._dynamo") and error is not None:
        return error.__cause__ or error
    return error


def alike(one: BaseException | None, other: BaseException | None) -> bool:
    """Whether two exceptions are of one family."""
    one, other = unwrapped(one), unwrapped(other)
    if is_out_of_bounds(one) and is_out_of_bounds(other):
        return True
    return isinstance(one, type(other)) or isinstance(other, type(one))


def is_out_of_bounds(error: BaseException | None) -> bool:
    """Whether an exception is of an index: an IndexError, or what kernels of PyTorch raise."""
    if isinstance(error, IndexError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of data bounds" in text or ("index" in text and "out of bounds" in text)
    )


def _tensors(
    ours: dict[str, Any], theirs: dict[str, Any], random: bool, strided: bool = True
) -> FoundDifferences:
    for place in theirs:
        yield from _leaf(place, ours.get(place), theirs[place], random, strided)


def _leaf(place: str, one: Any, other: Any, random: bool, strided: bool = True) -> FoundDifferences:
    if not isinstance(one, Seen) or not isinstance(other, Seen):
        if type(one) is not type(other):
            yield "type", place, f"a {type(one).__name__}, not a {type(other).__name__}"
        elif not isinstance(one, Seen) and not random and not _same_number(one, other):
            yield "value", place, f"{one!r}, not {other!r}"
        return
    for name in ("dtype", "shape", "requires_grad", "bits", "resizable"):
        left, right = getattr(one, name), getattr(other, name)
        if left != right:
            yield name, place, f"{left}, not {right}"
            if name in ("dtype", "shape"):
                return
    if strided and other.value.numel():
        pairs = zip(other.shape, one.strides, other.strides, strict=True)
        if any(left != right for size, left, right in pairs if size > 1):
            yield "strides", place, f"{one.strides}, not {other.strides}"
        if one.offset != other.offset:
            yield "offset", place, f"{one.offset}, not {other.offset}"
    if not random:
        reason = value_difference(one.value, other.value)
        if reason:
            yield "value", place, reason
    else:
        reason = distribution_difference(one.value, other.value)
        if reason:
            yield "distribution", place, reason


def _same_number(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return (
            one == other
            or (one != one and other != other)
            or math.isclose(one, other, rel_tol=2e-6)
        )
    if isinstance(one, complex):
        return one == other or abs(one - other) <= 2e-6 * abs(other)
    return bool(one == other)


def value_difference(one: torch.Tensor, other: torch.Tensor, slack: Any = 0.0) -> str:
    """How values differ by more than rounding, empty where they do not.

    Args:
        one: found.
        other: expected, of the same type and shape.
        slack: by how much they may differ beyond that, for each element.
    """
    if other.dtype is torch.complex32:
        # Few operators take it.
        return value_difference(torch.view_as_real(one), torch.view_as_real(other), slack)
    if one.numel() == 0 or torch.equal(one, other):
        return ""
    relative = _TOLERANCE.get(other.dtype)
    if relative is None:
        wrong = one != other
        return _first(wrong, one, other) if bool(wrong.any()) else ""
    wide = torch.complex128 if other.dtype.is_complex else torch.float64
    if wide is torch.complex128:
        # Part by part: infinities of complex numbers are many.
        return value_difference(_parts(one), _parts(other), slack)
    left, right = one.to(wide), other.to(wide)
    finite = right.isfinite()
    largest = right[finite].abs().max() if bool(finite.any()) else torch.tensor(0.0)
    allowed = relative * right.abs() + relative / 4 * largest
    # Infinity is near nothing but itself.
    allowed = torch.where(finite, allowed, 0.0) + slack
    tiny = torch.finfo(other.dtype).tiny
    far = ~((left - right).abs() <= allowed + tiny)
    same = (left == right) | (left.isnan() & right.isnan())
    wrong = far & ~same
    return _first(wrong, one, other) if bool(wrong.any()) else ""


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.contiguous())


def _first(wrong: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> str:
    at = tuple(wrong.nonzero()[0].tolist())
    text = f"{one[at].item()!r} at {at}, not {other[at].item()!r}"
    return f"{text} ({int(wrong.sum())} of {wrong.numel()} elements)"


def distribution_difference(one: torch.Tensor, other: torch.Tensor) -> str:
    """How draws differ in their mean, where there are enough to tell."""
    if one.numel() < 64 or one.dtype.is_complex:
        return ""
    left, right = one.double(), other.double()
    spread = (left.std() + right.std()) / math.sqrt(one.numel())
    if not bool(spread.isfinite()):
        return ""
    if bool((left.mean() - right.mean()).abs() <= 6 * spread + 1e-6):
        return ""
    return f"mean {float(left.mean()):.4g}, not {float(right.mean()):.4g}"


def _gradients(one: Call, other: Call, random: bool) -> FoundDifferences:
    for name, theirs in other.gradients.items():
        ours = one.gradients.get(name)
        place = f"gradient of {name}"
        if (ours is None) != (theirs is None):
            # Optimizers move what has a gradient of zeros.
            yield "no gradient", place, "None" if ours is None else "one, not None"
            continue
        # Autograd lays gradients out as it likes.
        for kind, where, text in _leaf(place, ours, theirs, random, strided=False):
            if kind not in ("bits", "resizable"):
                yield ("gradient" if kind == "value" else kind), where, text


def _is_empty(found: object) -> bool:
    return isinstance(found, Seen) and not found.value.numel()


def _aliases(one: Call, other: Call) -> FoundDifferences:
    for pair in sorted(one.same ^ other.same):
        if all(_is_empty(other.results.get(place)) for place in pair):
            # Some operators hand on what has no elements.
            continue
        yield "identity", " and ".join(pair), "one object" if pair in one.same else "two objects"
    for pair in sorted(one.shared.keys() ^ other.shared.keys()):
        yield (
            "alias",
            " and ".join(pair),
            ("share memory" if pair in one.shared else "do not share memory"),
        )
    for pair in one.shared.keys() & other.shared.keys():
        if one.shared[pair] != other.shared[pair]:
            yield (
                "alias",
                " and ".join(pair),
                f"{one.shared[pair]} bytes apart, not {other.shared[pair]}",
            )
        if (pair in one.related) != (pair in other.related):
            knows = "knows" if pair in one.related else "does not know"
            yield "view", " and ".join(pair), f"autograd {knows} them as views of one tensor"
    # On a device fewer tensors are written into.
    for name in (name for name in other.writes if name in one.writes):
        ours, theirs = one.writes[name], other.writes[name]
        if ours != theirs:
            yield "write", name, f"writing into it: {_changes(ours)}, not {_changes(theirs)}"


def _changes(found: Any) -> str:
    if isinstance(found, frozenset):
        return f"changes {', '.join(sorted(found)) or 'nothing'}"
    return str(found)

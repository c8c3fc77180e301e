"""Errors about arguments of a wrong kind name the function, the argument, and what is expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pytest

from pjrt_bridge.errors import ArgumentError, DataError
from pjrt_bridge.wrong_arguments import checked, checked_methods, require, require_name


@checked
def total(values: Sequence[int], scale: int | None = None) -> int:
    return sum(values) * (1 if scale is None else scale)


@checked_methods
class Box:
    def __init__(self, sides: Mapping[str, float]) -> None:
        self.volume = np.prod([side / 1 for side in sides.values()])

    def scaled(self, by: float, how: Literal["up", "down"] = "up") -> float:
        return float(self.volume * by if {"up": True, "down": False}[how] else self.volume / by)

    @staticmethod
    def cube(side: int) -> Box:
        return Box({"a": side, "b": side, "c": side + 0})

    @classmethod
    def named(cls, *names: str) -> Box:
        return cls({name.upper(): 1 for name in names})

    def _inner(self, x: int) -> int:
        return x + 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: total("ab"), r"^total: values: found 'ab', expected Sequence\[int\]$"),
        (lambda: total([1, "b"]), r"values: found a list, expected Sequence\[int\]"),
        (lambda: total(7), "values: found 7"),
        (lambda: total([1], {}), r"scale: found a dict, expected int \| None"),
        (lambda: Box([1]), r"^Box: sides: found a list, expected Mapping\[str, float\]$"),
        (lambda: Box.cube(None), r"^Box.cube: side: found None, expected an int of at most"),
        (lambda: Box.cube("x"), r"^Box: sides: found a dict|^Box.cube: side: found 'x'"),
        (lambda: Box.cube(1).scaled("3"), r"^Box.scaled: by: found '3', expected a float$"),
        (lambda: Box.cube(1).scaled(3, "left"), r"how: found 'left', expected Literal"),
        (lambda: Box.named("a", 1), r"^Box.named: names: found 1, expected a str$"),
    ],
)
def test_the_wrong_argument_is_named(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        call()


def test_errors_of_right_arguments_stay_as_they_are() -> None:
    @checked
    def failing(number: int) -> None:
        if number:
            raise DataError("of the bridge")
        raise KeyError("a defect")

    with pytest.raises(DataError, match="of the bridge"):
        failing(1)
    with pytest.raises(KeyError, match="a defect"):
        failing(0)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        failing()
    with pytest.raises(TypeError, match=r"can only|unsupported"):
        Box.cube(1)._inner("x")


def test_names_that_only_type_checkers_know_are_looked_up() -> None:
    import pjrt_bridge.runtime  # noqa: F401

    def failing(client: Client) -> None:  # type: ignore[name-defined]  # noqa: F821
        client.plugin

    with pytest.raises(ArgumentError, match=r"client: found an? object, expected a Client"):
        checked(failing)(object())


def test_what_numpy_calls_a_number_fits() -> None:
    @checked
    def failing(number: int, share: float) -> None:
        raise RuntimeError("anyway")

    with pytest.raises(RuntimeError, match="anyway"):
        failing(np.int64(3), np.float32(1))
    with pytest.raises(ArgumentError, match="number: found True"):
        failing(True, 1.0)
    with pytest.raises(ArgumentError, match="at most 64 bits"):
        failing(1 << 70, 1.0)
    with pytest.raises(ArgumentError, match="number: found a type"):
        failing(int, 1.0)


def test_require() -> None:
    require(1, int, "f: x")
    require(None, (int, type(None)), "f: x")
    with pytest.raises(ArgumentError, match=r"^f: x: found True, expected an int$"):
        require(True, int, "f: x")
    with pytest.raises(ArgumentError, match=r"^f: x: found 'y', expected a bool or None$"):
        require("y", (bool, type(None)), "f: x")
    with pytest.raises(ArgumentError, match=r"^part: found 'z', expected one of x, y$"):
        require_name("z", ("x", "y"), "part")


def test_another_class_of_the_same_name_is_told_by_its_module() -> None:
    other = type("Spec", (), {"__module__": "elsewhere"})
    expected = type("Spec", (), {})
    with pytest.raises(ArgumentError, match=r"found a Spec of elsewhere, expected a Spec$"):
        require(other(), expected, "f: spec")

"""Arguments of a wrong kind: what refuses them, and the texts of the errors."""

from __future__ import annotations

import builtins
import functools
import inspect
import numbers
import operator
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from pjrt_bridge.errors import ArgumentError, PjrtBridgeError

_Called = TypeVar("_Called", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


def described(value: Any) -> str:
    """An argument in a few words: `None`, `7`, or its class where its text says little."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return reprlib.repr(value)
    kind = type(value).__name__
    return f"{_article(kind)} {kind}"


def wrong(what: str, value: Any, expected: str) -> str:
    """A sentence that names the argument, what was found, and what is expected."""
    found = described(value)
    if found == expected:
        found += f" of {type(value).__module__}"
    return f"{what}: found {found}, expected {expected}"


def require(value: Any, kind: type | tuple[type, ...], what: str) -> None:
    """Check that an argument is of a kind, before anything is done with it.

    Args:
        value: what was given.
        kind: as for `isinstance`; for `int` alone a bool is refused.
        what: the function and its argument, such as "Client.put_host: host".

    Raises:
        ArgumentError: it is of another kind.
    """
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join("None" if one is types.NoneType else one.__name__ for one in kinds)
        raise ArgumentError(wrong(what, value, f"{_article(names)} {names}"))


def require_name(name: Any, known: Collection[str], what: str) -> None:
    """Check that a name is one of those there are.

    Raises:
        ArgumentError: it is no text, or another one.
    """
    require(name, str, what)
    if name not in known:
        raise ArgumentError(wrong(what, name, f"one of {', '.join(known)}"))


def checked(function: _Called) -> _Called:
    """A function that names the argument of a wrong kind on which it failed.

    What its annotations say is compared with the arguments where it raised an error that is none of
    the bridge's; a call that goes well costs no more than another call. What changes an object
    before it would fail needs `require` instead.

    Raises:
        ArgumentError: it failed, and an argument is none of what its annotation says.
    """

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except PjrtBridgeError:
            raise
        except Exception as error:
            text = _first_wrong(function, args, kwargs)
            if text is None:
                raise
            raise ArgumentError(text) from error

    return typing.cast(_Called, called)


def checked_methods(cls: _Class) -> _Class:
    """A class whose public methods that take arguments, and constructor, are `checked`."""
    for name, found in list(vars(cls).items()):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        plain = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
        if not inspect.isfunction(plain) or plain.__code__.co_argcount + _more(plain) < 2:
            continue
        wrapped = checked(plain)
        setattr(cls, name, wrapped if found is plain else type(found)(wrapped))
    return cls


def _more(function: types.FunctionType) -> int:
    """Parameters beside those that have a place, or two for a static method's only one."""
    code = function.__code__
    variadic = bool(code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
    static = code.co_argcount == 1 and code.co_varnames[0] not in ("self", "cls")
    return code.co_kwonlyargcount + variadic + static


def _first_wrong(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """A sentence about the first argument that is not what its annotation says."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        # Python's own text names arguments that are missing, or too many.
        return None
    parameters = signature.parameters
    for name, value in bound.arguments.items():
        parameter = parameters[name]
        values: Collection[Any] = (value,)
        if parameter.kind is parameter.VAR_POSITIONAL:
            values = value
        elif parameter.kind is parameter.VAR_KEYWORD:
            values = value.values()
        kind = _evaluated(parameter.annotation, function)
        for one in values:
            if not _fits(one, kind):
                where = function.__qualname__.removesuffix(".__init__")
                return wrong(f"{where}: {name}", one, _worded(kind, parameter.annotation))
    return None


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """What an annotation stands for; `Any` where that cannot be told."""
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    try:
        return eval(annotation, function.__globals__, _Classes(function.__globals__))
    except Exception:
        return Any


class _Classes(dict[str, type]):
    """Classes of the bridge, for names that a module imports for type checkers alone."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known

    def __missing__(self, name: str) -> type:
        if name in self._known or hasattr(builtins, name):
            raise KeyError(name)
        found = {
            value
            for module, content in list(sys.modules.items())
            if module.partition(".")[0] == "pjrt_bridge"
            and isinstance(value := vars(content).get(name), type)
        }
        if len(found) != 1:
            raise KeyError(name)
        return found.pop()


def _worded(kind: Any, annotation: Any) -> str:
    if typing.get_origin(kind) is Callable:
        return "a function"
    if kind is int:
        return "an int of at most 64 bits"
    if isinstance(kind, type) and not typing.get_args(kind):
        return f"{_article(kind.__name__)} {kind.__name__}"
    return str(annotation)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is what an annotation says, as far as can be told."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is None:
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is typing.Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple and isinstance(value, tuple):
        if len(inner) == 2 and inner[1] is Ellipsis:
            return all(_fits(one, inner[0]) for one in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if isinstance(origin, type):
        return _is(value, origin) and _items_fit(value, inner)
    return _is(value, kind) if isinstance(kind, type) else True


def _is(value: Any, kind: type) -> bool:
    if kind is int:
        return _is_integer(value)
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        plain = isinstance(value, (str, bytes)) and kind in (Sequence, Collection)
        return isinstance(value, kind) and not plain
    except TypeError:
        # A protocol that is not made for `isinstance`.
        return True


def _is_integer(value: Any) -> bool:
    """Whether it is a number that plugins and MLIR can take."""
    if isinstance(value, (bool, type)):
        return False
    try:
        return -(1 << 63) <= operator.index(value) < 1 << 64
    except TypeError:
        return False


def _items_fit(value: Any, kinds: Sequence[Any]) -> bool:
    if isinstance(value, Mapping) and len(kinds) == 2:
        return all(_fits(key, kinds[0]) and _fits(one, kinds[1]) for key, one in value.items())
    if isinstance(value, Collection) and len(kinds) == 1:
        return all(_fits(one, kinds[0]) for one in value)
    return True


def _article(noun: str) -> str:
    return "an" if noun[:1].lower() in "aeiou" else "a"

"""Attacks by wrong arguments of every public name: one argument is odd, the others are right."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from pjrt_bridge.errors import PjrtBridgeError
from tests.attacks import samples
from tests.attacks.arguments import ODD
from tests.attacks.registry import subject

PACKAGES = (
    "pjrt_bridge",
    "pjrt_bridge.exported",
    "pjrt_bridge.extensions",
    "pjrt_bridge.profiling",
    "pjrt_bridge.registry",
    "pjrt_bridge.runtime",
    "pjrt_bridge.stablehlo",
)
"""Those that import no framework."""

_SPECIAL = ("__init__", "__call__")
_POINTERS = ("pointer", "about", "address")
"""Parameters that are addresses: of what lies there, nobody can tell what it is."""

_LEFT_OUT = {
    # Protocols, which the bridge calls.
    "KeyValueStore",
    "HostPart",
    # Take addresses that a plugin gave.
    "Device",
    "Device.of_device",
    "DeviceDescription",
    "DeviceDescription.of_device",
    "Layout.of_buffer",
    "Memory",
    "Topology",
    # Their text has keys that readers of files look for, as is documented.
    "Signature.from_json",
    "TensorType.from_json",
    "Tree.from_json",
    # Has no extension of its own.
    "Accessor",
    "Accessor.find",
    # Marks functions of vendors; it is pluggy's.
    "hookimpl",
}
_OTHERS: tuple[Callable[[], Any], ...] = (
    samples.elsewhere,
    samples.closed,
    samples.deleted,
    lambda: samples.elsewhere().devices[0],
    lambda: samples.elsewhere().put(samples.ONES),
    lambda: samples.elsewhere().handle,
)
"""Objects of the right class that are not the right ones."""


class Target(NamedTuple):
    """One parameter of one public function.

    Attributes:
        name: what is called, as a user would write it.
        function: it; of a method the plain function.
        owner: class of the object that it is called on, None for functions and constructors.
        parameters: all of it, without `self`.
        odd: the one that gets what is wrong.
    """

    name: str
    function: Callable[..., Any]
    owner: str | None
    parameters: tuple[inspect.Parameter, ...]
    odd: inspect.Parameter


def _targets() -> Iterator[Target]:
    seen: set[int] = set()
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            found = getattr(module, name)
            if id(found) in seen:
                continue
            seen.add(id(found))
            if inspect.isclass(found) and not issubclass(found, (BaseException, tuple)):
                yield from _of_class(name, found)
            elif inspect.isfunction(found) and name not in _LEFT_OUT:
                yield from _of_function(name, found, None)


def _of_class(name: str, cls: type) -> Iterator[Target]:
    for attribute in dir(cls):
        full = f"{name}.{attribute}"
        if full in _LEFT_OUT or (attribute.startswith("_") and attribute not in _SPECIAL):
            continue
        found = inspect.getattr_static(cls, attribute)
        if attribute == "__init__":
            taken = inspect.isfunction(found) and not inspect.isabstract(cls)
            if taken and name not in _LEFT_OUT and not getattr(cls, "_is_protocol", False):
                yield from _of_function(name, cls, None)
        elif isinstance(found, (staticmethod, classmethod)):
            yield from _of_function(full, getattr(cls, attribute), None)
        elif inspect.isfunction(found) and name in samples.OBJECTS:
            yield from _of_function(full, found, name)


def _of_function(name: str, function: Any, owner: str | None) -> Iterator[Target]:
    parameters = tuple(inspect.signature(function).parameters.values())
    if owner is not None:
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield Target(name, function, owner, parameters, parameter)


TARGETS = tuple(_targets())


def _values(owner: Any) -> list[Any]:
    """Values of the builder that is called, or of one for a function that takes them."""
    return list((samples.OBJECTS["Builder"]() if owner is None else owner).parameters)


def _right(parameter: inspect.Parameter, owner: Any) -> Any:
    """What a parameter without a default may be."""
    annotation = str(parameter.annotation)
    if annotation == "Value":
        return _values(owner)[0]
    if annotation == "Sequence[Value]":
        return _values(owner)
    if "Callable" in annotation:
        return lambda *values: values[0] if values else _values(owner)[0]
    for name, table in ((parameter.name, samples.BY_NAME), (annotation, samples.BY_TYPE)):
        if name in table:
            return table[name]()
    return samples.BY_TYPE.get(annotation.partition(" |")[0], lambda: None)()


def _call(target: Target, wrong: Any) -> None:
    owner = None if target.owner is None else samples.OBJECTS[target.owner]()
    args: list[Any] = [] if owner is None else [owner]
    kwargs: dict[str, Any] = {}
    for parameter in target.parameters:
        if parameter is target.odd:
            value = wrong
        elif parameter.default is parameter.empty and parameter.kind <= parameter.KEYWORD_ONLY:
            if parameter.kind is parameter.VAR_POSITIONAL:
                continue
            value = _right(parameter, owner)
        else:
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            args.append(value)
        else:
            kwargs[parameter.name] = value
    made = target.function(*args, **kwargs)
    if inspect.isgenerator(made):
        next(made, None)


def _is_tried(target: Target, wrong: Any) -> bool:
    """Whether a refusal can be expected: not of an address, and not of what users' functions do."""
    if target.odd.name in _POINTERS and isinstance(wrong, int):
        return not 4096 < wrong < 1 << 47
    annotation = str(target.odd.annotation)
    return not (callable(wrong) and ("Callable" in annotation or "Body" in annotation))


def _refused(target: Target, wrong: Any) -> PjrtBridgeError | None:
    """The error of the bridge that one call gets, if it gets one."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _call(target, wrong)
    except PjrtBridgeError as error:
        return error
    except Exception as error:
        raise AssertionError(
            f"{target.name}: {target.odd.name} of {samples.shown(wrong)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return None


@subject(len(TARGETS))
def public_names(number: int) -> None:
    """One parameter of one function, with all that is odd; what calls share works as before."""
    target = TARGETS[number]
    refusals = []
    for wrong in (*ODD, *(made() for made in _OTHERS)):
        if _is_tried(target, wrong):
            refused = _refused(target, wrong)
            if refused is not None:
                refusals.append(refused)
                assert len(str(refused)) > 8, f"{target.name}: {target.odd.name}: no text"
    samples.still_works()
    if refusals:
        raise refusals[-1]

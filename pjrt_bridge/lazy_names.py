"""Names of a package that import the module which defines them when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: its `__name__`.
        modules: by name the module below the package that defines it. A module of the package may
            have the name of a value only where it is that value itself: once it is imported, it is
            found in the value's place.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{modules[name]}")
        return module if modules[name] == name else getattr(module, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return find, names

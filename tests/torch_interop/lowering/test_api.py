"""What plugin packages import of the bridge is published, and what is published is documented."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from pjrt_bridge.torch_interop.lowering import api

PLUGINS = Path(__file__).parents[3] / "plugins"

PUBLISHED = {
    "pjrt_bridge.torch_interop": ("pjrt_bridge.torch_interop.lowering.api.",),
    "pjrt_bridge.stablehlo.builder": (),
    "pjrt_bridge.stablehlo.program": (),
    "pjrt_bridge.stablehlo.types": (),
}
"""By package of which only some names may be imported, how these begin."""


def imported(source: str) -> Iterator[str]:
    """Every dotted name that a module imports, also in functions and for type checkers only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def unpublished(source: str) -> list[str]:
    return [
        name
        for name in imported(source)
        for package, published in PUBLISHED.items()
        if f"{name}.".startswith(f"{package}.") and not name.startswith(published)
    ]


@pytest.mark.parametrize("folder", sorted(path.name for path in PLUGINS.iterdir()))
def test_plugin_packages_import_published_names(folder: str) -> None:
    modules = sorted((PLUGINS / folder).rglob("*.py"))
    assert modules
    found = {path.name: unpublished(path.read_text()) for path in modules}
    assert not {name: names for name, names in found.items() if names}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from pjrt_bridge.torch_interop.lowering.api import Context, Kernels", 0),
        ("from pjrt_bridge.stablehlo import Builder", 0),
        ("from pjrt_bridge.torch_interop.lowering.context import Context", 1),
        ("if TYPE_CHECKING:\n    from pjrt_bridge.torch_interop.lowering.registry import find", 1),
        ("def f():\n    from pjrt_bridge.torch_interop import compat", 1),
        ("import pjrt_bridge.torch_interop.lowering.registry", 1),
        ("from pjrt_bridge.stablehlo.builder.builder import Builder, Value", 2),
    ],
)
def test_imports_of_inner_modules_are_found(source: str, count: int) -> None:
    assert len(unpublished(source)) == count


def test_every_published_name_is_in_the_table_of_the_docstring() -> None:
    assert api.__doc__ is not None
    assert [name for name in api.__all__ if f"| `{name}` |" not in api.__doc__] == []
    assert api.__all__ == sorted(api.__all__)


@pytest.mark.parametrize("name", [name for name in api.__all__ if not get_args(getattr(api, name))])
def test_published_functions_and_classes_have_docstrings(name: str) -> None:
    assert getattr(api, name).__doc__


def test_the_schema_of_an_operator_is_that_of_the_installed_pytorch() -> None:
    assert api.schema_of("aten.mm.default") == "aten::mm(Tensor self, Tensor mat2) -> Tensor"
    assert api.schema_of("aten.mm.no_such_overload") is None

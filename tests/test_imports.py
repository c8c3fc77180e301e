"""The reader of imports sees each kind of import, and accounts for circles of them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.imports import (
    BY_NAME,
    FUNCTION,
    TOP_LEVEL,
    TYPING,
    find_circles,
    find_modules,
    import_graph,
    read_imports,
)

KINDS = {
    "import a.b": TOP_LEVEL,
    "import a.b as c": TOP_LEVEL,
    "from a import b": TOP_LEVEL,
    "from a import (\n    x,\n    b,\n)": TOP_LEVEL,
    "x = 1; import a.b": TOP_LEVEL,
    "try:\n    import a.b\nexcept ImportError:\n    pass": TOP_LEVEL,
    "class C:\n    from a import b": TOP_LEVEL,
    "if sys.platform:\n    from a import b": TOP_LEVEL,
    "def f():\n    from a import b": FUNCTION,
    "async def f():\n    from a import b": FUNCTION,
    "class C:\n    def f(self):\n        with x:\n            import a.b": FUNCTION,
    "def f():\n    def g():\n        import a.b": FUNCTION,
    "if TYPE_CHECKING:\n    from a import b": TYPING,
    "if typing.TYPE_CHECKING:\n    import a.b": TYPING,
    "if TYPE_CHECKING:\n    pass\nelse:\n    import a.b": TOP_LEVEL,
    "def f():\n    if TYPE_CHECKING:\n        from a import b": TYPING,
    "importlib.import_module('a.b')": BY_NAME,
    "def f():\n    return import_module('a.b')": BY_NAME,
    "__import__('a.b')": BY_NAME,
}


@pytest.mark.parametrize("source", KINDS)
def test_each_kind_of_import_is_read(source: str) -> None:
    (found,) = [item for item in read_imports(source) if item.name == "a.b"]
    assert found.where == KINDS[source]
    assert found.line <= len(source.splitlines())


def test_relative_imports_are_refused() -> None:
    with pytest.raises(ValueError, match="line 2: found a relative import"):
        read_imports("\nfrom . import b")


@pytest.mark.parametrize("source", KINDS)
def test_each_kind_of_import_closes_a_circle(source: str) -> None:
    (circle,) = find_circles(import_graph({"a.c": source, "a.b": "import a.c", "a": ""}))
    assert circle.startswith("2 modules import each other in a circle")
    assert f"imports a.b {KINDS[source]}" in circle


def test_a_circle_is_told_import_by_import() -> None:
    sources = {
        "p": "",
        "p.a": "from p.b import x\nimport os\nimport p.free",
        "p.b": "def f():\n    from p import c",
        "p.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.d\nimport p.a",
        "p.d": "import p.c",
        "p.free": "",
    }
    (circle,) = find_circles(import_graph(sources))
    assert circle == textwrap.dedent("""\
        4 modules import each other in a circle; the shortest through p.a:
          p.a, line 1, imports p.b at top level
          p.b, line 2, imports p.c in a function
          p.c, line 4, imports p.a at top level""")


def test_circles_apart_are_told_apart() -> None:
    sources = {"a": "import b", "b": "import a, c", "c": "import d", "d": "import c", "e": ""}
    assert len(find_circles(import_graph(sources))) == 2


def test_a_package_may_import_its_modules() -> None:
    sources = {"p": "from p.a import x", "p.a": "from p.b import x", "p.b": "import p.c", "p.c": ""}
    assert find_circles(import_graph(sources)) == []
    sources["p.c"] = "from p import x"
    assert len(find_circles(import_graph(sources))) == 1


def test_modules_are_found_by_their_names(tmp_path: Path) -> None:
    for path in ("p/__init__.py", "p/q/__init__.py", "p/q/m.py", "plugins/x/y/__init__.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    found = find_modules(tmp_path, [Path("p"), Path("plugins/x/y")])
    assert list(found) == ["p", "p.q", "p.q.m", "y"]

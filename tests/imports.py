"""Reads the imports of modules from their source, and finds circles among them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

TOP_LEVEL, FUNCTION, TYPING, BY_NAME = (
    "at top level",
    "in a function",
    "under TYPE_CHECKING",
    "by import_module",
)


@dataclass(frozen=True, order=True)
class Import:
    """One imported name.

    Attributes:
        name: dotted; of a module, or of an attribute of a module.
        line: where in the source.
        where: how it is imported: `TOP_LEVEL`, `FUNCTION`, `TYPING` or `BY_NAME`.
    """

    name: str
    line: int
    where: str


def read_imports(source: str) -> list[Import]:
    """Every import in a module's source, also in functions and under TYPE_CHECKING.

    Raises:
        ValueError: a relative import.
    """
    return sorted(_imports(ast.parse(source), TOP_LEVEL))


def _imports(node: ast.AST, where: str) -> Iterator[Import]:
    match node:
        case ast.Import():
            yield from (Import(alias.name, node.lineno, where) for alias in node.names)
        case ast.ImportFrom(level=0):
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, where)
        case ast.ImportFrom():
            raise ValueError(f"line {node.lineno}: found a relative import, expected an absolute")
        case ast.Call(
            func=ast.Name("import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(str(name)), *_],
        ):
            yield Import(name, node.lineno, BY_NAME)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            where = FUNCTION
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        yield from (item for child in node.body for item in _imports(child, TYPING))
        yield from (item for child in node.orelse for item in _imports(child, where))
        return
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, where)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def find_modules(root: Path, packages: Iterable[Path]) -> dict[str, Path]:
    """The modules of packages by dotted name.

    Args:
        root: of the repository.
        packages: folders of packages below it; the parent of each is on Python's path.
    """
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to((root / package).parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


Graph = Mapping[str, Sequence[Import]]
"""By module what it imports of the other modules; `Import.name` is a module here."""


def import_graph(sources: Mapping[str, str]) -> Graph:
    """Which modules import which of each other.

    A package whose attribute is imported counts as imported; one whose module is imported does not,
    although Python runs it first.

    Args:
        sources: text by dotted name of the module.
    """
    return {
        module: [
            replace(item, name=name)
            for item in read_imports(source)
            if (name := _module_of(item, sources.keys())) is not None and name != module
        ]
        for module, source in sources.items()
    }


def _module_of(item: Import, modules: Set[str]) -> str | None:
    if item.name in modules:
        return item.name
    owner = item.name.rpartition(".")[0]
    return owner if item.where != BY_NAME and owner in modules else None


def find_circles(graph: Graph) -> list[str]:
    """An account of each circle, one for each set of modules that all import each other."""
    edges = {module: [item.name for item in imports] for module, imports in graph.items()}
    circles = []
    seen: set[str] = set()
    for module in edges:
        path = None if module in seen else _shortest_path(edges, module)
        if path is not None:
            group = _reachable(edges, module)
            group = {other for other in group if module in _reachable(edges, other)}
            seen |= group
            circles.append(_account(graph, path, len(group)))
    return circles


def _shortest_path(edges: Mapping[str, Sequence[str]], start: str) -> list[str] | None:
    """Modules from `start` back to `start`, each imported by the one before; None: no circle."""
    paths = [[start]]
    seen: set[str] = set()
    for path in paths:
        for target in edges[path[-1]]:
            if target == start:
                return [*path, target]
            if target not in seen:
                seen.add(target)
                paths.append([*path, target])
    return None


def _reachable(edges: Mapping[str, Sequence[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = set(edges[waiting.pop()]) - found
        found |= fresh
        waiting += fresh
    return found


def _account(graph: Graph, path: Sequence[str], count: int) -> str:
    lines = [f"{count} modules import each other in a circle; the shortest through {path[0]}:"]
    for module, target in itertools.pairwise(path):
        found = next(item for item in graph[module] if item.name == target)
        lines.append(f"  {module}, line {found.line}, imports {target} {found.where}")
    return "\n".join(lines)

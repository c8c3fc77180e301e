"""Rules of imports: none runs upwards, none in a circle, frameworks stay in their rooms."""

import ast
import graphlib
import re
from collections.abc import Set
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pjrt_bridge"

FLOORS = [
    {"errors", "dtypes", "timeline", "wire", "example_inputs", "child_processes", "native_modules"},
    {"abi"},
    {"stablehlo"},
    {"runtime", "report"},
    {"extensions", "registry", "mixed"},
    {"profiling", "exported"},
    {"torch_interop", "jax_interop", "tf_interop", "conformance"},
    {"cli", "__main__"},
]
ROOMS = {
    "jaxlib": {"pjrt_bridge.stablehlo.bindings"},
    "torch": {"pjrt_bridge.torch_interop"},
    "pluggy": {"pjrt_bridge.registry"},
    "typer": {"pjrt_bridge.cli"},
    "tensorflow": {"pjrt_bridge.tf_interop"},
    "jax": {"pjrt_bridge.jax_interop"},
    "torch_xla": {"pjrt_bridge.torch_interop.exporting.torch_xla"},
}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@cache
def imports(path: Path, *, top_level_only: bool = False) -> Set[str]:
    """Dotted names that a module imports, `if TYPE_CHECKING` left out."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif type_checking(node):
            continue
        elif not top_level_only or not isinstance(node, ast.FunctionDef):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def own(names: Set[str]) -> set[str]:
    """The modules of the bridge among imported names."""
    found = set()
    for name in names:
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if name.startswith("pjrt_bridge."):
            found.add(name)
    return found


def floor(module: str) -> int:
    room = module.split(".")[1]
    return next(level for level, rooms in enumerate(FLOORS) if room in rooms)


@pytest.mark.parametrize("module", [name for name in MODULES if "." in name])
def test_no_import_runs_upwards(module: str) -> None:
    above = {other for other in own(imports(MODULES[module])) if floor(other) > floor(module)}
    assert not above


def test_no_circles() -> None:
    graph = {
        name: own(imports(path, top_level_only=True)) - {name} for name, path in MODULES.items()
    }
    # A package's face imports its modules; that they find each other through it is no circle.
    order = graphlib.TopologicalSorter(graph)
    order.prepare()


@pytest.mark.parametrize("framework", ROOMS)
def test_frameworks_stay_in_their_rooms(framework: str) -> None:
    for name, path in MODULES.items():
        used = {imported.split(".")[0] for imported in imports(path)}
        allowed = any(name == room or name.startswith(room + ".") for room in ROOMS[framework])
        assert framework not in used or allowed, f"{name} imports {framework}"


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_private_names_are_imported_in_one_module(framework: str) -> None:
    for name, path in MODULES.items():
        if not f"{name}.".startswith(f"pjrt_bridge.{framework}_interop.compat."):
            private = {
                imported
                for imported in imports(path)
                if imported.startswith(f"{framework}.")
                and any(part.startswith("_") for part in imported.split("."))
            }
            assert not private, f"{name} imports {private}"


def test_private_names_of_tensorflow_are_imported_in_one_module() -> None:
    for name, path in MODULES.items():
        if name != "pjrt_bridge.tf_interop.compat":
            private = {item for item in imports(path) if item.startswith("tensorflow.python")}
            assert not private, f"{name} imports {private}"


def test_exported_models_find_frameworks_by_name_alone() -> None:
    """What runs parts on the host is imported when a saved model asks for it."""
    for name, path in MODULES.items():
        if name.startswith("pjrt_bridge.exported"):
            assert not re.search("(torch|tf|jax)_interop", path.read_text()), name
    assert "pjrt_bridge.torch_interop.host_parts" in MODULES

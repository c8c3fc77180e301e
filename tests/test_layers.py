"""Rules for the packages' imports and sizes.

No import leads to a higher layer, none closes a circle, frameworks are imported in their own
packages only, and no module is longer than 400 lines. Every import counts: at top level, in
functions and under TYPE_CHECKING.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.imports import find_circles, find_modules, import_graph, read_imports

ROOT = Path(__file__).parent.parent
PLUGINS = sorted(path.relative_to(ROOT) for path in ROOT.glob("plugins/*/pjrt_bridge_*/"))
LONGEST = 400

LAYERS = [
    {
        "errors",
        "dtypes",
        "timeline",
        "wire",
        "example_inputs",
        "child_processes",
        "environment",
        "storage",
        "bounded_files",
        "user_warnings",
        "versions",
        "wrong_arguments",
        "lazy_names",
        "native_modules",
        "named_functions",
    },
    {"abi"},
    {"stablehlo"},
    {"runtime", "report"},
    {"extensions", "registry", "mixed"},
    {"profiling", "exported"},
    {"torch_interop", "jax_interop", "tf_interop", "pjrt_bridge_conformance"},
    {"cli", "__main__"},
    {path.name for path in PLUGINS},
]
"""The lowest first: modules and packages of pjrt_bridge, the suite below its command, plugins."""

FRAMEWORKS = {
    "jaxlib": {"pjrt_bridge.stablehlo.bindings"},
    "torch": {"pjrt_bridge.torch_interop"},
    "pluggy": {"pjrt_bridge.registry"},
    "typer": {"pjrt_bridge.cli"},
    "tensorflow": {"pjrt_bridge.tf_interop"},
    "jax": {"pjrt_bridge.jax_interop"},
    "torch_xla": {"pjrt_bridge.torch_interop.exporting.torch_xla"},
}
"""By library the packages and modules of pjrt_bridge that may import it."""

SUITE = Path("conformance/pjrt_bridge_conformance")
MODULES = find_modules(ROOT, [Path("pjrt_bridge"), SUITE, *PLUGINS])
CORE = {name: path for name, path in MODULES.items() if name.partition(".")[0] == "pjrt_bridge"}
GRAPH = import_graph({name: path.read_text() for name, path in MODULES.items()})
PACKAGES = [name for name, path in MODULES.items() if path.name == "__init__.py"]
PEERS = {"pjrt_bridge.torch_interop.lowering", "pjrt_bridge_cpu"}
"""Packages with folders that use each other: families of operators, and kernels with what chooses
between them.
"""


def imports_between_parts(package: str) -> dict[str, set[str]]:
    """By folder or module of a package the others that it imports."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    prefix = f"{package}."
    for name, items in GRAPH.items():
        if name.startswith(prefix):
            part = name.removeprefix(prefix).partition(".")[0]
            others = {item.name for item in items if item.name.startswith(prefix)}
            found[part] |= {other.removeprefix(prefix).partition(".")[0] for other in others}
            found[part].discard(part)
    return found


@cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names that a module imports."""
    return frozenset(item.name for item in read_imports(path.read_text()))


def layer(module: str) -> int:
    package = module.removeprefix("pjrt_bridge.").partition(".")[0]
    return next(level for level, packages in enumerate(LAYERS) if package in packages)


@pytest.mark.parametrize("module", [name for name in MODULES if name != "pjrt_bridge"])
def test_no_import_leads_to_a_higher_layer(module: str) -> None:
    others = [item for item in GRAPH[module] if item.name != "pjrt_bridge"]
    above = [
        f"line {item.line}: {item.name}" for item in others if layer(item.name) > layer(module)
    ]
    assert not above, f"{module} imports of higher layers {above}"


def test_no_circles() -> None:
    circles = find_circles(GRAPH)
    assert not circles, "\n\n".join(["", *circles])


@pytest.mark.parametrize("package", sorted(set(PACKAGES) - PEERS))
def test_folders_have_an_order(package: str) -> None:
    """No import leads out of a folder and, through others, into it again."""
    circles = find_circles_of_folders(package)
    assert not circles, f"{package}: {circles}"


def find_circles_of_folders(package: str) -> str:
    try:
        TopologicalSorter(imports_between_parts(package)).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return ""


def test_peers_are_no_more_than_needed() -> None:
    assert all(find_circles_of_folders(package) for package in PEERS)


def test_graphs_pass_folders_in_one_order() -> None:
    """A graph on its way from the backend to the plugin enters no folder again."""
    order = list(
        TopologicalSorter(imports_between_parts("pjrt_bridge.torch_interop")).static_order()
    )
    on_the_way = ["compat", "passes", "placement", "bind", "resident", "compiling", "compiler"]
    assert [part for part in order if part in on_the_way] == on_the_way


def test_no_module_is_too_long() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    long = [f"{name} has {length} lines" for name, length in lengths.items() if length > LONGEST]
    assert not long, f"expected {LONGEST} or fewer: {', '.join(long)}"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_are_imported_in_their_packages(framework: str) -> None:
    for name, path in CORE.items():
        used = {imported.split(".")[0] for imported in imports(path)}
        allowed = any(f"{name}.".startswith(f"{own}.") for own in FRAMEWORKS[framework])
        assert framework not in used or allowed, f"{name} imports {framework}"


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_private_names_are_imported_in_one_module(framework: str) -> None:
    for name, path in CORE.items():
        if not f"{name}.".startswith(f"pjrt_bridge.{framework}_interop.compat."):
            private = {
                imported
                for imported in imports(path)
                if imported.startswith(f"{framework}.")
                and any(part.startswith("_") for part in imported.split("."))
            }
            assert not private, f"{name} imports {private}"


def test_private_names_of_tensorflow_are_imported_in_one_package() -> None:
    private_packages = ("tensorflow.python", "tensorflow.compiler")
    for name, path in CORE.items():
        if not name.startswith("pjrt_bridge.tf_interop.compat"):
            private = {item for item in imports(path) if item.startswith(private_packages)}
            assert not private, f"{name} imports {private}"


def test_exported_models_find_frameworks_by_name_alone() -> None:
    """The module that runs parts on the host is imported when a saved model asks for it."""
    for name, path in CORE.items():
        if name.startswith("pjrt_bridge.exported"):
            assert not re.search("(torch|tf|jax)_interop", path.read_text()), name
    assert "pjrt_bridge.torch_interop.host_parts" in MODULES

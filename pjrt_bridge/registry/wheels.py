"""PJRT libraries inside installed vendor wheels, found without running any of their code.

Vendors ship plugins for other frameworks: under the namespace packages and entry-point groups
`xla_plugins` and `jax_plugins`, or as a bare package around one library. Importing such a module
usually imports the framework that it was made for, so only package metadata, module specs and
folders are read here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path

from pjrt_bridge.errors import PluginNotFound
from pjrt_bridge.registry import catalogue
from pjrt_bridge.registry.spec import short_name
from pjrt_bridge.wrong_arguments import checked

_GROUPS = ("xla_plugins", "jax_plugins")
_SYSTEMS = {".so": "Linux", ".dylib": "macOS", ".dll": "Windows"}
_SUFFIXES = {"darwin": (".dylib", ".so"), "win32": (".dll",)}.get(sys.platform, (".so",))
"""Of libraries that this system loads."""
_EXTENSION_MODULE = re.compile(r"\.(cpython-|abi3\.)")


@dataclass(frozen=True)
class WheelLibrary:
    """The library that was found for one vendor module.

    Attributes:
        name: short name of the plugin.
        origin: the module, and the wheel that declares it where one does.
        library: the library, or None where it could not be told.
        reason: why it cannot be used; None where it can.
    """

    name: str
    origin: str
    library: Path | None
    reason: str | None = None


@checked
def wheel_library(distribution: str, filename: str) -> Path:
    """Path of a file that an installed distribution brought, from its metadata alone.

    Args:
        distribution: the distribution's name (`"xla-cpu-pjrt"`).
        filename: the file's name without folders (`"xla_cpu_pjrt.so"`).

    Raises:
        PluginNotFound: not installed, or installed without that file.
    """
    try:
        found = metadata.distribution(distribution)
    except (metadata.PackageNotFoundError, ValueError):
        raise PluginNotFound(
            f"the wheel {distribution!r} is not installed: pip install {distribution}"
        ) from None
    for entry in found.files or ():
        if entry.name == filename:
            return Path(str(entry.locate()))
    raise PluginNotFound(
        f"the wheel {distribution!r} {found.version} lists no file {filename!r}: "
        f"pip install --force-reinstall {distribution}"
    )


def find_wheel_libraries() -> list[WheelLibrary]:
    """Every vendor module on the import path, each library once, in a stable order."""
    found: list[WheelLibrary] = []
    seen: set[Path] = set()
    for candidate in _candidates():
        if candidate.library is not None:
            real = candidate.library.resolve()
            if real in seen:
                continue
            seen.add(real)
            package = catalogue.SET_UP_BY.get(real.name)
            if package is not None:
                reason = f"alone it is not set up for this machine: pip install {package}"
                candidate = replace(candidate, reason=reason)
        found.append(candidate)
    return found


def _candidates() -> Iterator[WheelLibrary]:
    for group in _GROUPS:
        entries = metadata.entry_points(group=group)
        for entry in sorted(entries, key=lambda entry: (entry.name, entry.value)):
            wheel = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
            origin = f"module {entry.module}{wheel}"
            library, reason = _library_in(_folders(entry.module))
            yield WheelLibrary(short_name(entry.name), origin, library, reason)
        for folder in sorted(child for base in _folders(group) for child in base.iterdir()):
            library, _ = _library_in([folder])
            # A folder without a declaration may be anything; only one with a library counts.
            if library is not None:
                origin = f"module {group}.{folder.name}"
                yield WheelLibrary(short_name(folder.name), origin, library)
    for package in catalogue.BARE_PACKAGES:
        for folder in _folders(package):
            library = folder / f"{package}.so"
            if library.is_file():
                yield WheelLibrary(short_name(package), f"package {package}", library)


def _folders(module: str) -> list[Path]:
    """Folders of a package, found through its top-level spec: that runs no code."""
    top, *rest = module.split(".")
    try:
        spec = util.find_spec(top)
    except (ImportError, ValueError):
        return []
    locations = spec.submodule_search_locations if spec is not None else None
    folders = (Path(location, *rest) for location in locations or ())
    return [folder for folder in folders if folder.is_dir()]


def _library_in(folders: list[Path]) -> tuple[Path | None, str | None]:
    """The one PJRT library in a package's folders, or why it cannot be told."""
    libraries = _with_suffixes(folders, _SUFFIXES)
    named = [path for path in libraries if re.search("pjrt|plugin", path.name)]
    chosen = named or libraries
    if len(chosen) == 1:
        return chosen[0], None
    if not chosen:
        foreign = _with_suffixes(folders, tuple(_SYSTEMS))
        if foreign:
            system = _SYSTEMS[foreign[0].suffix]
            return None, f"its library {foreign[0].name} is for {system}, this is {sys.platform}"
        return None, "its folder holds no shared library"
    names = ", ".join(path.name for path in chosen)
    return None, f"cannot tell which is the plugin: {names}; name one with PJRT_BRIDGE_PLUGIN"


def _with_suffixes(folders: list[Path], suffixes: tuple[str, ...]) -> list[Path]:
    return [
        path
        for folder in folders
        for depth in ("", "*/")
        for suffix in suffixes
        for path in sorted(folder.glob(f"{depth}*{suffix}"))
        if not _EXTENSION_MODULE.search(path.name)
    ]

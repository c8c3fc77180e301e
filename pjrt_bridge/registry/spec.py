"""`PluginSpec`: what it takes to load one PJRT plugin and to create a client of it.

The references by which a user names a plugin (`cpu`, `/opt/x/libx.so`, `x:/opt/x/libx.so`) are
read here too, as is the JSON file form of the JAX convention.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pjrt_bridge import bounded_files
from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import OptionError, PluginConflict, PluginLoadError
from pjrt_bridge.runtime.core.platforms import OptionType, check_option_types

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LIBRARY_SUFFIXES = (".so", ".dylib", ".json")
_FILLERS = frozenset({"xla", "pjrt", "plugin", "c", "api"})


@dataclass(frozen=True)
class PluginSpec:
    """One PJRT plugin: where it is and how to set it up.

    Attributes:
        name: what users call the plugin: letters, digits and `_ . -`.
        library: path of the shared library that exports `GetPjrtApi`.
        address: address of a `PJRT_Api` in this process, or a function that gives it, called
            when the plugin is first used; exactly one of library and address is given. Whoever
            gives an address keeps the memory behind it alive.
        options: client create options, names and meanings as the plugin defines them.
        option_types: the client create options that the plugin reads, with their types (a range
            for an int within it); stating them lets the bridge refuse unknown names, which plugins
            accept in silence.
        environment: environment variables that the library needs, set before it is loaded
            unless the user has set them.
        priority: the available plugin of the highest priority is the default one.
        source: who brought the specification; discovery fills it.
        description: one line for people.
        no_device: why this machine has no device for the plugin, for people; None where it has
            one, or nobody knows. Without a device there are no clients, but the plugin compiles
            ahead of time.
        spans_processes: a client may span processes: the plugin reads the create options `node_id`
            and `num_nodes`, and calls the functions of a key-value store.
        divides_machines: the option `visible_devices` lists the devices of a machine that a
            process uses, so that each process of a machine may have its own.

    Raises:
        PluginConflict: neither or both of library and address are given.
        OptionError: a field has a wrong type or an impossible value.
    """

    name: str
    library: str | os.PathLike[str] | None = None
    address: int | Callable[[], int] | None = None
    options: Mapping[str, NamedValue] = field(default_factory=dict, hash=False)
    option_types: Mapping[str, OptionType] | None = field(default=None, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    priority: int = 0
    source: str = ""
    description: str = ""
    no_device: str | None = None
    spans_processes: bool = False
    divides_machines: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise OptionError(
                f"plugin name: found {self.name!r}, "
                "expected letters, digits and _ . - after a first letter or digit"
            )
        where = f"plugin {self.name!r}"
        if (self.library is None) == (self.address is None):
            given = "neither" if self.library is None else "both"
            raise PluginConflict(f"{where}: expected one of library and address, found {given}")
        if self.library is not None and (
            not isinstance(self.library, str | os.PathLike) or not os.fspath(self.library)
        ):
            raise OptionError(f"{where}, library: found {self.library!r}, expected a path")
        if self.address is not None and not callable(self.address):
            _check_address(self.address, where=where)
        if not _is_int(self.priority):
            raise OptionError(f"{where}, priority: found {self.priority!r}, expected an int")
        options = checked_options(self.options, where=where)
        if self.option_types is not None:
            _check_types(self.option_types, options, where=where)
        environment = _checked_environment(self.environment, where=where)
        object.__setattr__(self, "options", MappingProxyType(options))
        object.__setattr__(self, "environment", MappingProxyType(environment))

    def table_address(self) -> int:
        """The address of the PJRT_Api of a plugin that is not given by its library.

        Raises:
            PluginLoadError: the function that gives it failed.
            OptionError: it gave no address.
        """
        assert self.address is not None, "a specification with a library"
        if not callable(self.address):
            return self.address
        try:
            found = self.address()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise PluginLoadError(f"plugin {self.name!r}, address: {reason}") from error
        return _check_address(found, where=f"plugin {self.name!r}")

    @property
    def path(self) -> Path | None:
        """The library as an absolute path, or None for a plugin given by address."""
        if self.library is None:
            return None
        return Path(os.path.abspath(os.path.expanduser(self.library)))


@dataclass(frozen=True)
class DeviceFigures:
    """The peak figures that a maker states of one device, which programs do not reach.

    Attributes:
        flops: arithmetic operations a second, of the units for products in half precision.
        bandwidth: bytes a second between the device and its memory.
        links: bytes a second that the device gets from others, over all its links.
        memory: bytes of its memory.

    Raises:
        OptionError: a figure that is no positive number.
    """

    flops: float
    bandwidth: float
    links: float
    memory: int

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth", "links", "memory"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise OptionError(f"figures of a device, {name}: found {value!r}, expected above 0")


@dataclass(frozen=True)
class TopologySpec:
    """The arguments of a plugin's topology function for devices with a short name.

    Attributes:
        plugin: name of the plugin.
        name: the plugin's own name of the topology.
        options: create options of the topology, as the plugin defines them.
        figures: of each of its devices; None where the package does not know them.
        devices: how many it has; None where the package does not know.
    """

    plugin: str
    name: str
    options: Mapping[str, NamedValue] = field(default_factory=dict, hash=False)
    figures: DeviceFigures | None = None
    devices: int | None = None


def checked_options(options: Mapping[str, object], *, where: str) -> dict[str, NamedValue]:
    """Copy client create options after a check of names and value types.

    A plugin may abort the process over a value of the wrong type, so what PJRT_NamedValue cannot
    carry is refused here.

    Raises:
        OptionError: no mapping, a name that is no text, or a value of another type than str,
            bool, int (64 bits), float and list of int.
    """
    if not isinstance(options, Mapping):
        raise OptionError(f"{where}, options: found {options!r}, expected a mapping of names")
    checked: dict[str, NamedValue] = {}
    for name, value in options.items():
        if not isinstance(name, str) or not name:
            raise OptionError(f"{where}, options: found the name {name!r}, expected text")
        checked[name] = _checked_value(value, where=f"{where}, option {name!r}")
    return checked


def _checked_value(value: object, *, where: str) -> NamedValue:
    if isinstance(value, str | bool | float):
        return value
    if isinstance(value, list | tuple):
        return [_checked_int(item, where=where) for item in value]
    return _checked_int(value, where=where)


def _checked_int(value: object, *, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise OptionError(
            f"{where}: found {value!r} of type {type(value).__name__}, "
            "expected str, bool, int, float or a list of int"
        )
    if not -(2**63) <= value < 2**63:
        raise OptionError(f"{where}: found {value}, expected a 64-bit integer")
    return value


def _checked_environment(environment: Mapping[str, str], *, where: str) -> dict[str, str]:
    if not isinstance(environment, Mapping):
        raise OptionError(f"{where}, environment: found {environment!r}, expected a mapping")
    for name, value in environment.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise OptionError(f"{where}, environment: found {name!r}={value!r}, expected text")
        if not name or "=" in name or "\0" in name + value:
            raise OptionError(f"{where}, environment: {name!r} cannot be a variable")
    return dict(environment)


def _check_types(
    types: Mapping[str, OptionType], options: Mapping[str, NamedValue], *, where: str
) -> None:
    check_option_types(types, where=where)
    for name in options:
        if name not in types:
            raise OptionError(f"{where}: option {name!r} is missing in its option_types")


def _check_address(value: object, *, where: str) -> int:
    if not isinstance(value, int) or not _is_int(value) or value <= 0:
        raise OptionError(f"{where}, address: found {value!r}, expected a PJRT_Api's")
    return value


def _is_int(value: object) -> bool:
    return type(value) is int


def short_name(text: str) -> str:
    """The name of a plugin that nobody named, from its library, module or wheel.

    `xla_cpu_pjrt`, `pjrt_c_api_cpu_plugin` and `libcpu` all become `cpu`.
    """
    plain = re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.").removeprefix("lib").strip("_.")
    words = plain.split("_")
    while len(words) > 1 and words[0] in _FILLERS:
        words = words[1:]
    while len(words) > 1 and words[-1] in _FILLERS:
        words = words[:-1]
    return "_".join(words) or "plugin"


def parse_reference(text: str, *, source: str, priority: int = 0) -> str | PluginSpec:
    """Read how a user names a plugin: a name, a path, or `name:path`.

    Args:
        text: the reference. Text with a path separator or a library's suffix is a path.
        source: becomes the specification's `source`.
        priority: becomes the specification's `priority`.

    Returns:
        The name, or a specification where a path was given.

    Raises:
        OptionError: empty text, or a JSON file that cannot be used (see `spec_from_path`).
    """
    text = text.strip()
    name, colon, path = text.partition(":")
    if colon and _NAME.fullmatch(name):
        return spec_from_path(path, name=name, source=source, priority=priority)
    if os.sep in text or text.endswith(_LIBRARY_SUFFIXES):
        return spec_from_path(text, source=source, priority=priority)
    if not _NAME.fullmatch(text):
        raise OptionError(f"{source}: found {text!r}, expected a plugin name, a path or name:path")
    return text


def spec_from_path(
    path: str, *, name: str | None = None, source: str, priority: int = 0
) -> PluginSpec:
    """The specification of a plugin given by the path of its library or of a JSON file.

    Args:
        path: a library, or a `.json` file with the fields `library_path` and, optionally,
            `create_options` (the convention of JAX's `PJRT_NAMES_AND_LIBRARY_PATHS`).
        name: the plugin's name; by default it is derived from the library's file name.
        source: becomes the specification's `source`.
        priority: becomes the specification's `priority`.

    Raises:
        OptionError: no path, or a JSON file that cannot be read or has other contents.
    """
    if not path:
        raise OptionError(f"{source}: plugin {name!r} has no path, expected name:path")
    options: Mapping[str, NamedValue] = {}
    if path.endswith(".json"):
        path, options = _read_json(path, source=source)
    return PluginSpec(
        name=short_name(Path(path).name.split(".")[0]) if name is None else name,
        library=path,
        options=options,
        source=source,
        priority=priority,
    )


def _read_json(path: str, *, source: str) -> tuple[str, dict[str, NamedValue]]:
    where = f"{source}: {path}"
    try:
        config = json.loads(
            bounded_files.read(Path(path).expanduser(), bounded_files.CONFIGURATION)
        )
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{where}: cannot be read as JSON: {error}") from error
    library = config.get("library_path") if isinstance(config, dict) else None
    if not isinstance(library, str):
        raise OptionError(f"{where}: expected an object with the field 'library_path'")
    return library, checked_options(config.get("create_options") or {}, where=where)

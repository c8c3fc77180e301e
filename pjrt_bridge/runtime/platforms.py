"""What packages state of a platform and plugins do not tell: defects, names, types of options.

A platform is known by the name that the plugin gives it, so what is stated holds for every plugin
of that platform, also for one that was loaded by the path of its library. Packages state it through
the hook `pjrt_bridge_platforms`; `pjrt_bridge.registry` hands it down with `provide`, because
nothing here may import a package.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pjrt_bridge.errors import BridgeWarning, OptionError
from pjrt_bridge.runtime.compile.options import CompileOptions, Override

OptionType = type | range
"""Type of a create option: str, bool, int, float or list; a range for an int within it."""

_OPTION_TYPES = (str, bool, int, float, list)


@dataclass(frozen=True)
class PlatformSpec:
    """One platform, as a package knows it.

    Attributes:
        name: `PJRT_Client_PlatformName` of its plugins.
        compiler_flags: flags that every compilation gets before the caller's own, because results
            would be wrong without them; a plugin that refuses them compiles without.
        unserializable_calls: how the targets of custom calls start with which no program is
            serialized, because the plugin would end the process.
        ffi_name: name of the platform in the registry of FFI handlers; None: `name` in capitals.
        dlpack_device_type: DLDeviceType of the memory of its devices (dlpack.h), whose streams are
            then CUDA's or named like them; None where frameworks cannot use that memory.
        option_types: create options that its plugins read, beyond those that several vendors'
            plugins have in common. Plugins abort over values of another type, and no plugin tells
            its platform before it has a client, so these types hold for every plugin that does not
            state its own.
        warning: what users are told when a program is first compiled for the platform.

    Raises:
        OptionError: a field has a wrong type or an impossible value.
    """

    name: str
    compiler_flags: Mapping[str, Override] = field(default_factory=dict, hash=False)
    unserializable_calls: tuple[str, ...] = ()
    ffi_name: str | None = None
    dlpack_device_type: int | None = None
    option_types: Mapping[str, OptionType] = field(default_factory=dict, hash=False)
    warning: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"platform name: found {self.name!r}, expected text")
        where = f"platform {self.name!r}"
        try:
            CompileOptions(env=self.compiler_flags)
        except OptionError as error:
            raise OptionError(f"{where}, compiler_flags: {error}") from None
        calls = self.unserializable_calls
        if not isinstance(calls, tuple) or not all(
            isinstance(call, str) and call for call in calls
        ):
            raise OptionError(
                f"{where}, unserializable_calls: found {calls!r}, expected a tuple of texts"
            )
        kind = self.dlpack_device_type
        if kind is not None and type(kind) is not int:
            raise OptionError(f"{where}, dlpack_device_type: found {kind!r}, expected an int")
        check_option_types(self.option_types, where=where)
        object.__setattr__(self, "compiler_flags", MappingProxyType(dict(self.compiler_flags)))
        object.__setattr__(self, "option_types", MappingProxyType(dict(self.option_types)))

    def unserializable(self, custom_calls: Collection[str]) -> str | None:
        """The first target of custom calls that a plugin dies of when it serializes, or None."""
        return next(
            (n for n in sorted(custom_calls) if n.startswith(self.unserializable_calls)), None
        )

    def warn(self) -> None:
        """Say once in a process what users have to know of the platform."""
        if self.warning is not None and self.warning not in _warned:
            _warned.add(self.warning)
            warnings.warn(self.warning, BridgeWarning, stacklevel=2)


def check_option_types(types: Mapping[str, OptionType], *, where: str) -> None:
    """Refuse what is no mapping of names to types of create options.

    Raises:
        OptionError: it is none; the text starts with `where`.
    """
    if not isinstance(types, Mapping) or not all(
        kind in _OPTION_TYPES or isinstance(kind, range) for kind in types.values()
    ):
        raise OptionError(
            f"{where}, option_types: found {types!r}, "
            "expected names with one of str, bool, int, float, list and a range of int"
        )


_warned: set[str] = set()


def _nothing() -> Mapping[str, PlatformSpec]:
    return {}


_source: Callable[[], Mapping[str, PlatformSpec]] = _nothing


def provide(source: Callable[[], Mapping[str, PlatformSpec]]) -> None:
    """State what platforms are looked up in from now on; it is called at each look-up."""
    global _source
    _source = source


def known() -> Mapping[str, PlatformSpec]:
    """Every platform that a package speaks for, by name."""
    return _source()


def find(name: str) -> PlatformSpec:
    """What is known of a platform; nothing but its name where no package speaks for it."""
    found = known().get(name)
    return PlatformSpec(name) if found is None else found

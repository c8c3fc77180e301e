"""Facts of a platform that its package states: defects, names, types of options.

A platform is known by the name that the plugin gives it, so what is stated holds for every plugin
of that platform, also for one that was loaded by the path of its library. Packages state it through
the hook `pjrt_bridge_platforms`; `pjrt_bridge.registry` hands it down with `provide`, because
nothing here may import a package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from pjrt_bridge import dtypes, user_warnings
from pjrt_bridge.errors import OptionError
from pjrt_bridge.runtime.core.compile_options import CompileOptions, Override
from pjrt_bridge.stablehlo.program.program import Program

OptionType = type | range
"""Type of a create option: str, bool, int, float or list; a range for an int within it."""

_OPTION_TYPES = (str, bool, int, float, list)
_TYPE_NAMES = frozenset(dtype.name for dtype in dtypes.ALL)


class StreamEvents(Protocol):
    """Finds out how far work on streams of a platform's devices has come."""

    def record(self, device: int, stream: int) -> object:
        """An event behind all work that is on a stream now.

        Args:
            device: its number in the machine.
            stream: its handle.
        """

    def follow(self, device: int, stream: int, leading: int) -> None:
        """Let a stream wait for all work that is on another one now.

        Args:
            device: its number in the machine.
            stream: the handle of the one that waits.
            leading: the handle of the other one.
        """

    def is_over(self, event: object) -> bool:
        """Whether that work is over; an event that is over is not asked again."""


class CallForm(NamedTuple):
    """How many operands and results a custom call has."""

    operands: int
    results: int


@dataclass(frozen=True)
class PlatformSpec:
    """One platform, as a package knows it.

    Attributes:
        name: `PJRT_Client_PlatformName` of its plugins.
        compiler_flags: flags that every compilation gets before the caller's own, because results
            would be wrong without them; a plugin that refuses them compiles without.
        ffi_name: name of the platform in the registry of FFI handlers; None: `name` in capitals.
        dlpack_device_type: DLDeviceType of the memory of its devices (dlpack.h), whose streams are
            then CUDA's or named like them; None where frameworks cannot use that memory.
        stream_events: for those streams: memory that other frameworks were given is used again only
            when their work with it is over; None: they have done with it when they let go of it.
        option_types: create options that its plugins read, beyond those that several vendors'
            plugins have in common. Plugins abort over values of another type, and no plugin tells
            its platform before it has a client, so these types hold for every plugin that does not
            state its own.
        fatal_constants: element types, by the bridge's names, of constants on which its compiler
            ends the process; programs with such constants are refused.
        call_forms: targets of custom calls that its compiler treats as its own and does not check,
            with their numbers of operands and results; None: no program may have it. What differs
            ends the process, so such programs are refused.
        warning: shown to users when a program is first compiled for the platform.
        versions: what holds instead of all this for plugins whose minor version of the PJRT API is
            in a range; the first range that holds it counts.
        tuning_flags: flags like `compiler_flags`, because programs are faster with them on this
            machine.
        program_flags: returns, for a program, the flags like `tuning_flags` that are for it alone.
        ahead_flags: flags like `tuning_flags`, of programs compiled for a topology: without
            a device the compiler cannot try what it chooses from.
        exact_products: products and convolutions of float32 are computed in float32 where a program
            does not ask for a precision. Elsewhere programs state it.

    Raises:
        OptionError: a field has a wrong type or an impossible value.
    """

    name: str
    compiler_flags: Mapping[str, Override] = field(default_factory=dict, hash=False)
    ffi_name: str | None = None
    dlpack_device_type: int | None = None
    stream_events: StreamEvents | None = field(default=None, hash=False)
    option_types: Mapping[str, OptionType] = field(default_factory=dict, hash=False)
    fatal_constants: tuple[str, ...] = ()
    call_forms: Mapping[str, CallForm | None] = field(default_factory=dict, hash=False)
    warning: str | None = None
    versions: Mapping[range, PlatformSpec] = field(default_factory=dict, hash=False)
    tuning_flags: Mapping[str, Override] = field(default_factory=dict, hash=False)
    ahead_flags: Mapping[str, Override] = field(default_factory=dict, hash=False)
    program_flags: Callable[[Program], Mapping[str, Override]] | None = field(
        default=None, hash=False
    )
    exact_products: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"platform name: found {self.name!r}, expected text")
        where = f"platform {self.name!r}"
        for flags in ("compiler_flags", "tuning_flags", "ahead_flags"):
            try:
                CompileOptions(env=getattr(self, flags))
            except OptionError as error:
                raise OptionError(f"{where}, {flags}: {error}") from None
        _check_texts(self.fatal_constants, f"{where}, fatal_constants")
        for name in self.fatal_constants:
            if name not in _TYPE_NAMES:
                raise OptionError(f"{where}, fatal_constants: there is no element type {name!r}")
        if not isinstance(self.call_forms, Mapping) or not all(
            isinstance(name, str) and (form is None or isinstance(form, CallForm))
            for name, form in self.call_forms.items()
        ):
            raise OptionError(
                f"{where}, call_forms: found {self.call_forms!r}, expected targets with a CallForm "
                "or None for each"
            )
        kind = self.dlpack_device_type
        if kind is not None and type(kind) is not int:
            raise OptionError(f"{where}, dlpack_device_type: found {kind!r}, expected an int")
        check_option_types(self.option_types, where=where)
        if self.program_flags is not None and not callable(self.program_flags):
            raise OptionError(
                f"{where}, program_flags: found {self.program_flags!r}, expected a function"
            )
        if type(self.exact_products) is not bool:
            raise OptionError(
                f"{where}, exact_products: found {self.exact_products!r}, expected a bool"
            )
        if not isinstance(self.versions, Mapping) or not all(
            isinstance(minor, range)
            and isinstance(spec, PlatformSpec)
            and spec.name == self.name
            and not spec.versions
            for minor, spec in self.versions.items()
        ):
            raise OptionError(
                f"{where}, versions: found {self.versions!r}, expected ranges of minor versions "
                "with a PlatformSpec of the same name for each"
            )
        object.__setattr__(self, "versions", MappingProxyType(dict(self.versions)))
        object.__setattr__(self, "call_forms", MappingProxyType(dict(self.call_forms)))
        object.__setattr__(self, "compiler_flags", MappingProxyType(dict(self.compiler_flags)))
        object.__setattr__(self, "tuning_flags", MappingProxyType(dict(self.tuning_flags)))
        object.__setattr__(self, "ahead_flags", MappingProxyType(dict(self.ahead_flags)))
        object.__setattr__(self, "option_types", MappingProxyType(dict(self.option_types)))

    def for_api(self, version: tuple[int, int]) -> PlatformSpec:
        """What holds for plugins of a version of the PJRT API, (major, minor)."""
        major, minor = version
        return next(
            (spec for found, spec in self.versions.items() if major == 0 and minor in found), self
        )

    def warn(self) -> None:
        """Say once in a process what users have to know of the platform."""
        if self.warning is not None and self.warning not in _warned:
            _warned.add(self.warning)
            user_warnings.warn(self.warning)


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


def _check_texts(found: object, where: str) -> None:
    if not isinstance(found, tuple) or not all(isinstance(item, str) and item for item in found):
        raise OptionError(f"{where}: found {found!r}, expected a tuple of texts")


_NAMELESS = "(no name)"
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


def find(name: str, version: tuple[int, int]) -> PlatformSpec:
    """The specification of a platform's plugins of a version of the PJRT API, (major, minor).

    Nothing but its name where no package speaks for it. A plugin may give none, which is no reason
    to refuse it.
    """
    found = known().get(name)
    return PlatformSpec(name or _NAMELESS) if found is None else found.for_api(version)

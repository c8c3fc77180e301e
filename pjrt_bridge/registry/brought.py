"""Contributions of installed packages besides plugins: platforms, lowerings, kernels, ...

A package whose hook raises is left out with a warning, and costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pjrt_bridge import user_warnings
from pjrt_bridge.abi.extension_structs import ExtensionTable
from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import OptionError, VariableError
from pjrt_bridge.registry.catalogue import GUARDED_BY
from pjrt_bridge.registry.discovery import discover
from pjrt_bridge.registry.hooks import HOOK_FAILURES, reason_of
from pjrt_bridge.registry.hookspecs import Lowering
from pjrt_bridge.registry.spec import TopologySpec
from pjrt_bridge.runtime.core import platforms
from pjrt_bridge.runtime.core.platforms import PlatformSpec
from pjrt_bridge.wrong_arguments import checked

if TYPE_CHECKING:
    from pjrt_bridge.extensions import Accessor
    from pjrt_bridge.runtime import Client, PluginCore

_T = TypeVar("_T")


@checked
def lowerings(client: Client) -> dict[str, Lowering]:
    """The lowerings of installed packages for programs of a client's plugin, by operator name.

    Where two packages lower the same operator, the entry point whose name sorts first wins, with
    a `BridgeWarning`. A package whose hook raises is left out, with a `BridgeWarning` too.
    """

    def one(results: Iterable[object]) -> dict[str, Lowering]:
        found = _entries(results, "functions")
        for name, item in found.items():
            if not callable(item):
                raise OptionError(f"{name}: found {item!r}, expected a function")
        return found

    what = f"lowerings for plugin {client.plugin.name!r}"
    brought = _brought("pjrt_bridge_lowerings", what, one, plugin=client.plugin, client=client)
    return _merged(brought, "lowering of")


@checked
def kernels(client: Client) -> object | None:
    """The kernels of an installed package for a client's programs; see the hook.

    Where two packages bring some, the entry point whose name sorts first wins, with a
    `BridgeWarning`. A package whose hook raises is left out, with one too.
    """

    def one(results: Sequence[object]) -> dict[str, object]:
        return {name: results[0]} if results else {}

    name = client.plugin.name
    what = f"kernels for plugin {name!r}"
    brought = _brought("pjrt_bridge_kernels", what, one, plugin=client.plugin, client=client)
    return _merged(brought, "set of kernels for").get(name)


@checked
def slower(plugin: PluginCore) -> dict[str, int]:
    """What packages say of operators that the host computes faster than a plugin; see the hook.

    Where two packages speak of the same operator, the entry point whose name sorts first wins, with
    a `BridgeWarning`. A package whose hook raises is left out, with one too.
    """

    def one(results: Iterable[object]) -> dict[str, int]:
        found = _entries(results, "numbers of elements")
        for name, size in found.items():
            if type(size) is not int or size < 1:
                raise OptionError(f"{name}: found {size!r}, expected a number of elements")
        return found

    what = f"sizes for plugin {plugin.name!r}"
    return _merged(_brought("pjrt_bridge_slower", what, one, plugin=plugin), "size of")


def accessors() -> dict[str, type[Accessor]]:
    """The classes for `Client.extension`, by name of the extension: the bridge's, then packages'.

    Where two are for the same extension the bridge's own wins, else the entry point whose name
    sorts first, with a `BridgeWarning`. A package whose hook raises is left out, with one too.
    """
    from pjrt_bridge.extensions import BUILT_IN, Accessor

    def one(results: Iterable[object]) -> dict[str, type[Accessor]]:
        found = {}
        for item in _items(results):
            if not (isinstance(item, type) and issubclass(item, Accessor)):
                raise OptionError(f"found {item!r}, expected subclasses of extensions.Accessor")
            if not isinstance(getattr(item, "TABLE", None), ExtensionTable):
                raise OptionError(f"{item!r} has no TABLE, which extension() declares")
            found[item.TABLE.name] = item
        return found

    own = {item.TABLE.name: item for item in BUILT_IN}
    brought = _brought("pjrt_bridge_extensions", "accessors", one)
    return _merged((("the bridge", own), *brought), "accessor of")


def platform_specs() -> dict[str, PlatformSpec]:
    """The specifications of platforms, by their names; see the hook.

    Where two packages state the same platform, the entry point whose name sorts first wins, with a
    `BridgeWarning`. A package whose hook raises is left out, with one too. For platforms whose
    plugins are not to be used without a package, and that none speaks for, there is a warning.
    """

    def one(results: Iterable[object]) -> dict[str, PlatformSpec]:
        found = {}
        for item in _items(results):
            if not isinstance(item, PlatformSpec):
                raise OptionError(f"found {item!r}, expected PlatformSpecs")
            found[item.name] = item
        return found

    merged = _merged(_brought("pjrt_bridge_platforms", "platforms", one), "platform")
    for name, package in GUARDED_BY.items():
        text = (
            f"plugins of the platform {name!r} are known to give wrong results without compiler "
            f"flags that the package {package} states, which is not installed or not usable; "
            f"install it: pip install {package}"
        )
        merged.setdefault(name, PlatformSpec(name, warning=text))
    return merged


def topology_spec(
    plugin: str | None, target: str, options: Mapping[str, NamedValue]
) -> TopologySpec | None:
    """What a package knows of a topology; see the hook. The first that knows the name wins.

    Raises:
        OptionError: the package of the plugin refuses the name.
    """
    hook = "pjrt_bridge_topology"
    for module, caller in discover().hooks.callers(hook):
        try:
            results = caller(plugin=plugin, target=target, options=options)
        except OptionError:
            raise
        except VariableError:
            raise
        except HOOK_FAILURES as error:
            _warn(f"{module.source}: its topologies are not used: {reason_of(error)}")
            continue
        for result in results:
            if not isinstance(result, TopologySpec):
                raise OptionError(
                    f"{module.source}: {hook} returned {result!r}, expected a TopologySpec"
                )
            if plugin is None or result.plugin == plugin:
                return result
    return None


def _items(results: Iterable[object]) -> Iterator[object]:
    """The values that hooks returned: each gives one or several."""
    for result in results:
        yield from result if isinstance(result, Iterable) else (result,)


def _entries(results: Iterable[object], what: str) -> dict[str, Any]:
    """The entries that hooks returned, each a mapping from operators."""
    found: dict[str, Any] = {}
    for result in results:
        if not isinstance(result, Mapping) or not all(isinstance(name, str) for name in result):
            raise OptionError(f"found {result!r}, expected a mapping of operator names to {what}")
        found |= result
    return found


def _brought(
    hook: str, what: str, one: Callable[[Any], dict[str, _T]], **arguments: Any
) -> Iterator[tuple[str, dict[str, _T]]]:
    """For each package with a hook where it comes from, and what it brings."""
    for module, caller in discover().hooks.callers(hook):
        try:
            brought = one(caller(**arguments))
        except VariableError:
            raise
        except HOOK_FAILURES as error:
            _warn(f"{module.source}: its {what} are not used: {reason_of(error)}")
        else:
            yield module.source, brought


def _merged(brought: Iterable[tuple[str, dict[str, _T]]], what: str) -> dict[str, _T]:
    merged: dict[str, _T] = {}
    owners: dict[str, str] = {}
    for source, items in brought:
        for name, item in items.items():
            if name in merged:
                _warn(f"{source}: its {what} {name} is not used, {owners[name]} brings one too")
            else:
                merged[name], owners[name] = item, source
    return merged


def _warn(text: str) -> None:
    user_warnings.warn(text)


platforms.provide(platform_specs)

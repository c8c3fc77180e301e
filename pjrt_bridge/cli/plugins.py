"""`pjrt-bridge plugins` and `pjrt-bridge inspect`: what there is to run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pjrt_bridge import registry
from pjrt_bridge.abi.chain import Extension
from pjrt_bridge.abi.extension_structs import EXTENSIONS, ExtensionTable
from pjrt_bridge.cli.console import (
    columns,
    facts,
    fail,
    named_values,
    out,
    parse_options,
    plain,
    print_json,
)
from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.registry import PluginInfo
from pjrt_bridge.runtime import native

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Client, Plugin

PluginName = Annotated[
    str | None,
    typer.Option("--plugin", "-p", help="A plugin's name, a library, or name:library."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ClientOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="A client create option, as the plugin defines them. Repeatable.",
    ),
]


def plugins(as_json: AsJson = False) -> None:
    """List the plugins that were found, why some cannot be used, and how calls are dispatched.

    A plugin without a package of the bridge is tried once in a separate process. The default is the
    plugin that PJRT_BRIDGE_PLUGIN names, else the available one with the highest priority that has
    a device.
    """
    found = registry.plugins(try_unknown=True)
    default, problem = _default()
    if as_json:
        print_json([_info_data(info, default) for info in found])
        return
    console = out()
    for info in found:
        state, color = _state(info, default)
        console.print(Text.assemble((info.name, "bold"), " ", (state, color)))
        console.print(facts(_info_rows(info)))
    console.print(Text.assemble(("dispatch: ", "bold"), native.description()))
    if problem is not None:
        # What there is stands above.
        fail(problem.partition("\n")[0].rstrip(":"))


def _default() -> tuple[PluginInfo | None, str | None]:
    try:
        return registry.select(), None
    except PjrtBridgeError as error:
        return None, str(error)


def _state(info: PluginInfo, default: PluginInfo | None) -> tuple[str, str]:
    if info == default:
        return "default", "green"
    if not info.available:
        return "unavailable", "red"
    return ("available", "green") if info.no_device is None else ("no device", "yellow")


def _info_rows(info: PluginInfo) -> dict[str, object]:
    rows: dict[str, object] = {}
    if info.reason is not None:
        rows["reason"] = info.reason
    if info.no_device is not None:
        ahead = "" if info.no_device == info.no_client else "; it compiles ahead of time"
        rows["no device"] = f"{info.no_device}{ahead}"
    if info.spec is not None and info.spec.description:
        rows["about"] = info.spec.description
    if info.library is not None:
        rows["library"] = info.library
    rows["source"] = info.source
    if info.spec is not None and info.spec.options:
        rows["options"] = named_values(info.spec.options)
    return rows


def _info_data(info: PluginInfo, default: PluginInfo | None) -> dict[str, object]:
    return {
        "name": info.name,
        "available": info.available,
        "reason": info.reason,
        "no_device": info.no_device,
        "default": info == default,
        "library": None if info.library is None else str(info.library),
        "source": info.source,
        "priority": info.priority,
        "options": dict(info.spec.options) if info.spec is not None else {},
        "description": info.spec.description if info.spec is not None else "",
    }


def inspect(
    name: Annotated[
        str, typer.Argument(help="A plugin's name, a library, or name:library.", metavar="NAME")
    ],
    option: ClientOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show a plugin's API version, attributes, devices, memory spaces and extensions.

    The library is loaded and a client created. If no client can be created, for example without the
    device, the information of the library is shown before the error.
    """
    options: dict[str, Any] = parse_options(option or ())
    info = registry.select(name)
    plugin = registry.load(info)
    failure: PjrtBridgeError | None = None
    client: Client | None = None
    try:
        client = registry.client(info, **options)
    except PjrtBridgeError as error:
        failure = error
    if as_json:
        print_json(
            {
                **_plugin_data(info, plugin),
                **({} if client is None else _client_data(client)),
                "error": None if failure is None else str(failure),
            }
        )
    else:
        _print_plugin(info, plugin, client)
    if failure is not None:
        raise failure


def _plugin_data(info: PluginInfo, plugin: Plugin) -> dict[str, Any]:
    return {
        "name": info.name,
        "source": info.source,
        "dispatch": native.description(),
        "library": None if plugin.library is None else str(plugin.library),
        "api_version": list(plugin.api_version),
        "api_struct_size": plugin.api.struct_size,
        "attributes": dict(plugin.attributes),
        "extensions": [
            {
                "type": extension.type,
                "name": extension.name if table is None else table.name,
                "struct_size": extension.struct_size,
                "functions": _functions(extension, table),
            }
            for extension, table in _extensions(plugin)
        ],
    }


def _extensions(plugin: Plugin) -> list[tuple[Extension, ExtensionTable | None]]:
    """The extensions of a plugin with their declarations: the bridge's, and those of packages."""
    brought = {item.TABLE.type: item.TABLE for item in registry.accessors().values()}
    tables = brought | EXTENSIONS
    return [(extension, tables.get(extension.type)) for extension in plugin.extensions]


def _functions(extension: Extension, table: ExtensionTable | None) -> dict[str, bool] | None:
    """For each known function of an extension whether its slot is there and filled."""
    if table is None:
        return None
    return {
        name: extension.pointer(table.offset_of(name)) is not None
        for name, args in table.functions.items()
        if args is not None
    }


def _client_data(client: Client) -> dict[str, Any]:
    return {
        "options": client.options,
        "platform_name": client.platform_name,
        "platform_version": client.platform_version,
        "process_index": client.process_index,
        "shares_host_memory": client.shares_host_memory,
        "devices": [
            {
                "id": device.id,
                "kind": device.kind,
                "description": device.description,
                "process_index": device.process_index,
                "local_hardware_id": device.local_hardware_id,
                "attributes": dict(device.attributes),
                "memories": [memory.id for memory in device.memories],
                "default_memory": device.default_memory and device.default_memory.id,
            }
            for device in client.devices
        ],
        "memories": [
            {"id": memory.id, "kind": memory.kind, "description": memory.description}
            for memory in client.memories
        ],
    }


def _print_plugin(info: PluginInfo, plugin: Plugin, client: Client | None) -> None:
    console = out()
    major, minor = plugin.api_version
    rows: dict[str, object] = {
        "library": plugin.library or f"at {plugin.api.address:#x}",
        "source": info.source,
        "PJRT API": f"{major}.{minor} ({plugin.api.struct_size} bytes)",
    }
    if client is not None:
        rows["platform"] = client.platform_name
        rows["version"] = client.platform_version
        rows["options"] = named_values(client.options)
        rows["host memory"] = "used in place" if client.shares_host_memory else "copied"
    rows["dispatch"] = native.description()
    console.print(Text(info.name, "bold"))
    console.print(facts(rows))
    _print_section(
        "Attributes", facts({name: plain(value) for name, value in plugin.attributes.items()})
    )
    if client is not None:
        _print_client(client)
    extensions = columns("type", "name", "bytes", "functions")
    for extension, table in _extensions(plugin):
        name = extension.name if table is None else table.name
        row = (str(extension.type), name, str(extension.struct_size))
        extensions.add_row(*row, _functions_text(_functions(extension, table)))
    _print_section("Extensions", extensions)


def _functions_text(found: dict[str, bool] | None) -> str:
    if not found:
        return ""
    missing = [name for name, there in found.items() if not there]
    text = f"{len(found) - len(missing)} of {len(found)}"
    return f"{text}, without {', '.join(missing)}" if missing else text


def _print_client(client: Client) -> None:
    devices = columns("id", "kind", "process", "memories", "description")
    for device in client.devices:
        kinds = (
            f"{memory.kind}{'*' if memory is device.default_memory else ''}"
            for memory in device.memories
        )
        row = (str(device.id), device.kind, str(device.process_index), ", ".join(kinds))
        devices.add_row(*map(escape, (*row, device.description)))
    _print_section("Devices (* default memory)", devices)
    memories = columns("id", "kind", "description")
    for memory in client.memories:
        memories.add_row(*map(escape, (str(memory.id), memory.kind, memory.description)))
    _print_section("Memories", memories)


def _print_section(title: str, body: Table | Text) -> None:
    console = out()
    empty = not body.row_count if isinstance(body, Table) else not body
    console.print(Text(f"\n{title}{': none' if empty else ''}", "bold"))
    if not empty:
        console.print(body, soft_wrap=isinstance(body, Text))

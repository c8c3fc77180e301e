"""`pjrt-bridge cache`: what lies on disk, compiled programs and what packages found out."""

from __future__ import annotations

import time
import warnings
from typing import Annotated

import typer

from pjrt_bridge import storage
from pjrt_bridge.cli.console import columns, facts, out, print_json
from pjrt_bridge.cli.plugins import AsJson
from pjrt_bridge.errors import BridgeWarning
from pjrt_bridge.report.wording import byte_size, plural
from pjrt_bridge.runtime.compile import compile_cache


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete all of them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the compiled programs and other files in the cache folder, or delete them.

    Other files are, for example, the outcomes of trials of plugins and kernels.

    The variable PJRT_BRIDGE_CACHE names the folder, or turns the cache off.
    PJRT_BRIDGE_CACHE_LIMIT limits the size of all compiled programs, such as 500M; the least
    recently used programs are deleted first.
    """
    with warnings.catch_warnings():
        # What the warning says is printed here, each time.
        warnings.simplefilter("ignore", BridgeWarning)
        found = compile_cache.compile_cache()
    if found is None:
        root = storage.cache_root()
        reason = None if root is None else storage.objection(root)
        if as_json:
            print_json({"folder": None, "entries": [], "reason": reason})
        elif reason is None:
            out().print(f"off: {storage.FOLDER_VARIABLE} turns it off")
        else:
            out().print(f"not used: {reason}", soft_wrap=True)
        return
    findings = compile_cache.findings()
    if clear:
        count = found.clear()
        others = {str(store.folder): store.clear() for store in findings}
        if as_json:
            print_json({"folder": str(found.folder), "deleted": count, "findings": others})
            return
        out().print(f"deleted {plural(count, 'program')} from {found.folder}", soft_wrap=True)
        for folder, number in others.items():
            out().print(f"deleted {plural(number, 'finding')} from {folder}", soft_wrap=True)
        return
    entries = found.entries()
    if as_json:
        print_json(
            {
                "folder": str(found.folder),
                "limit": found.limit,
                "entries": [
                    {"key": entry.key, "size": entry.size, "used": entry.used} for entry in entries
                ],
                "findings": {str(store.folder): len(store.entries()) for store in findings},
            }
        )
        return
    total = sum(entry.size for entry in entries)
    out().print(
        facts(
            {
                "folder": found.folder,
                "programs": len(entries),
                "size": f"{byte_size(total)} of {byte_size(found.limit)}",
                **{
                    store.folder.name: plural(len(store.entries()), "finding") for store in findings
                },
            }
        )
    )
    if entries:
        table = columns("key", "size", "last used")
        for entry in entries[:20]:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
            table.add_row(entry.key[:16], byte_size(entry.size), used)
        out().print(table)
    if entries[20:]:
        out().print(f"and {len(entries) - 20} more")

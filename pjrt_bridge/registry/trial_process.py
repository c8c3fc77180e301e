"""The process that tries a plugin, and may die of it.

`python -m pjrt_bridge.registry.trial_process REQUEST` loads the library, creates a client, lists
its devices and closes it. REQUEST is JSON: name, library, options and environment. It prints a line
of JSON as each stage begins, one with the reason where a stage is refused, and one at the end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from pjrt_bridge import child_processes
from pjrt_bridge.errors import PjrtBridgeError, PjrtError
from pjrt_bridge.registry.opening import open_plugin
from pjrt_bridge.registry.spec import PluginSpec


def main(arguments: list[str]) -> None:
    """Try the plugin that the one argument describes."""
    request: Mapping[str, Any] = json.loads(arguments[0])
    stream = child_processes.answers()
    _leave_no_core()

    def say(**about: str) -> None:
        print(json.dumps(about), file=stream, flush=True)

    spec = PluginSpec(request["name"], request["library"], environment=request["environment"])
    stage = "load"
    try:
        say(stage=stage)
        plugin = open_plugin(spec)
        stage = "client"
        say(stage=stage)
        client = plugin.client(request["options"])
        for device in client.devices:
            str(device)
        stage = "close"
        say(stage=stage)
        client.close()
    except PjrtBridgeError as error:
        say(stage=stage, reason=_reason(error, spec))
    else:
        say(stage="done")
    # What the library does at exit is not tried: this process has the answer.
    os._exit(0)


def _reason(error: PjrtBridgeError, spec: PluginSpec) -> str:
    """The error on one line, without what whoever reads it knows already."""
    text = error.message if isinstance(error, PjrtError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = (lines or [type(error).__name__])[0]
    return found.removeprefix(f"plugin {spec.name!r}: ").replace(f"{spec.path} ", "")


def _leave_no_core() -> None:
    # A module that not all systems have.
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(sys.argv[1:])

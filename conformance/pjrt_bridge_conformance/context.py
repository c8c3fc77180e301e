"""What checks work on: the plugin, a client, a client with two devices, a second process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from pjrt_bridge import child_processes, registry
from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import (
    FailedPrecondition,
    NotFound,
    OptionError,
    PjrtError,
    Unavailable,
    Unimplemented,
)
from pjrt_bridge.registry import PluginInfo
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge_conformance.outcomes import AbsentDevice, Fail, Unsupported

_COUNTS = ("device_count", "num_devices")
"""How the names of options end that say how many devices a client gets."""


@dataclass(frozen=True)
class Subject:
    """Which plugin is checked, and how.

    Attributes:
        plugin: name, path or `name:path`.
        options: client create options.
        modules: Python modules with further checks.
    """

    plugin: str
    options: Mapping[str, NamedValue] = field(default_factory=dict)
    modules: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The subject as an argument for a process."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Subject:
        """What `to_json` wrote."""
        data = json.loads(text)
        return Subject(data["plugin"], data["options"], tuple(data["modules"]))


class Context:
    """What a check works on; loads and creates things when they are first asked for.

    Attributes:
        subject: which plugin, and how.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._failure: Exception | None = None
        self._client: Client | None = None

    @cached_property
    def info(self) -> PluginInfo:
        """The plugin as the registry knows it."""
        return registry.select(self.subject.plugin)

    @cached_property
    def plugin(self) -> Plugin:
        """The plugin, loaded and initialized."""
        return registry.load(self.info)

    @property
    def options(self) -> dict[str, NamedValue]:
        """Create options of the client."""
        spec = self.info.spec
        return {**({} if spec is None else spec.options), **self.subject.options}

    @property
    def client(self) -> Client:
        """The client that checks share; a check that closes a client makes its own.

        Raises:
            AbsentDevice: the plugin says that there is no device for it.
            PjrtError: the plugin cannot create a client for another reason.
        """
        if self._failure is not None:
            raise self._failure
        if self._client is None or self._client.closed:
            try:
                self._client = self.fresh()
            except (AbsentDevice, PjrtError) as error:
                # To ask again for every check could take minutes.
                self._failure = error
                raise
        return self._client

    def fresh(self) -> Client:
        """A client of the check's own.

        Raises:
            As `client`.
        """
        return self._made(self.options)

    def second(self) -> Client:
        """A client beside the shared one.

        Raises:
            Unsupported: the plugin allows one client at a time, and says so.
        """
        _ = self.client
        try:
            return self.fresh()
        except PjrtError as error:
            raise Unsupported(f"no second client in a process: {error}") from error

    def _made(self, options: Mapping[str, NamedValue]) -> Client:
        try:
            return Client(self.plugin, options)
        except (NotFound, FailedPrecondition, Unavailable) as error:
            raise AbsentDevice(str(error)) from error
        except OptionError as error:
            if "without devices" not in str(error):
                raise
            raise AbsentDevice(str(error)) from error

    @cached_property
    def pair(self) -> Client:
        """A client with two devices or more.

        Raises:
            AbsentDevice: there is one device, and no option of the plugin that makes it two.
        """
        if len(self.client.devices) > 1:
            return self.client
        for name, kind in (self.plugin.option_types or {}).items():
            if name.endswith(_COUNTS) and (kind is int or isinstance(kind, range)):
                client = self._made({**self.options, name: 2})
                if len(client.devices) > 1:
                    return client
        raise AbsentDevice("the client has one device, two are needed")

    def about(self) -> dict[str, Any]:
        """What is known about the plugin so far, for reports."""
        found: dict[str, Any] = {"name": self.info.name}
        if self.info.library is not None:
            found["library"] = str(self.info.library)
        plugin = self.plugin
        found["api_version"] = list(plugin.api_version)
        found["struct_size"] = plugin.api.struct_size
        found["attributes"] = dict(plugin.attributes)
        found["extensions"] = {one.name: one.struct_size for one in plugin.extensions}
        if self._client is not None:
            found["platform_name"] = self._client.platform_name
            found["platform_version"] = self._client.platform_version
            found["devices"] = [device.description for device in self._client.devices]
            found["options"] = dict(self._client.options)
        return found

    def elsewhere(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of a context and JSON values returns in a new process.

        The shared clients are closed first, for devices that one process at a time can have.

        Raises:
            Fail: the process died, or the function raised.
            Unsupported: the plugin says there that it cannot.
        """
        for name in ("_client", "pair"):
            client = vars(self).get(name)
            if client is not None:
                client.close()
        vars(self).pop("pair", None)
        place = f"{function.__module__}:{function.__qualname__}"
        done = subprocess.run(
            child_processes.command(__name__, self.subject.to_json(), place, json.dumps(arguments)),
            env=child_processes.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["nothing on standard error"]
            raise Fail(f"a new process ended with status {done.returncode}: {lines[-1]}")
        answer = json.loads(done.stdout.splitlines()[-1])
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        return answer["result"]


def _main() -> None:
    import importlib

    subject, place, arguments = sys.argv[1:]
    module, _, name = place.partition(":")
    function = getattr(importlib.import_module(module), name)
    try:
        result = function(Context(Subject.from_json(subject)), *json.loads(arguments))
    except (Unsupported, Unimplemented, AbsentDevice) as error:
        print(json.dumps({"unsupported": str(error)}))
    else:
        print(json.dumps({"result": result}), flush=True)


if __name__ == "__main__":
    _main()

"""`pjrt_bridge.profile`: record what happens in a `with` block, and write it for other tools."""

from __future__ import annotations

import gzip
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pjrt_bridge import registry, timeline
from pjrt_bridge.errors import ExtensionUnavailable
from pjrt_bridge.extensions.profiler import Profiler
from pjrt_bridge.profiling import chrome, xspace
from pjrt_bridge.profiling.xspace import Plane
from pjrt_bridge.runtime import Client, open_clients

HOST = "/host:pjrt_bridge"
"""Name of the plane that holds what the bridge saw."""


@dataclass
class Profile:
    """The recording of a `with profile(...)` block; filled when the block ends.

    Attributes:
        logdir: where the files are; None where none were asked for.
        planes: what the bridge saw, then what plugins' own profilers did.
        plugins: names of the plugins whose own profiler took part.
        without: names of those that have none.
        xspace_file: the XSpace, which TensorBoard's profile page reads.
        trace_file: the trace for ui.perfetto.dev and chrome://tracing.
    """

    logdir: Path | None
    planes: tuple[Plane, ...] = ()
    plugins: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    xspace_file: Path | None = None
    trace_file: Path | None = None
    _data: bytes = field(default=b"", repr=False)

    def xspace(self) -> bytes:
        """The serialized XSpace."""
        return self._data

    def trace(self) -> bytes:
        """The trace as JSON."""
        return chrome.trace(self.planes)

    def totals(self) -> dict[str, tuple[int, int]]:
        """For each name of a span how often it came, and its time in ns, longest first.

        Spans within spans count for both.
        """
        found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for plane in self.planes:
            for line in plane.lines:
                for item in line.spans:
                    total = found[item.name]
                    total[0] += 1
                    total[1] += item.end - item.start
        ordered = sorted(found.items(), key=lambda item: -item[1][1])
        return {name: (count, spent) for name, (count, spent) in ordered}

    def __str__(self) -> str:
        rows = list(self.totals().items())
        lines = [
            f"{spent / 1e6:10.3f} ms  {count:6}x  {name}" for name, (count, spent) in rows[:20]
        ]
        if len(rows) > 20:
            lines.append(f"{'':19}and {len(rows) - 20} other names")
        if self.without:
            lines.append(f"no profiler of its own: {', '.join(self.without)}; the host's view only")
        if self.trace_file is not None:
            lines.append(f"open {self.trace_file} in ui.perfetto.dev")
        return "\n".join(lines)


@contextmanager
def profile(
    logdir: str | os.PathLike[str] | None = None, *, clients: Iterable[Client] | None = None
) -> Iterator[Profile]:
    """Record what the bridge and the plugins do in a `with` block.

    The bridge notes compilations, executions, transfers, and in programs of a framework each
    segment, with the names of the graph's nodes. Plugins that offer the extension Profiler add what
    they saw. While a profile is recorded the segments of a graph run one after another, so that
    each has a time of its own.

    Args:
        logdir: a folder for TensorBoard (`plugins/profile/<run>/<host>.xplane.pb`, and beside it
            `.trace.json.gz`); None writes nothing.
        clients: whose plugins' profilers take part; by default all that are open, or
            the default plugin's where none is.

    Raises:
        RuntimeError: a profile is being recorded already.
        PjrtError: a plugin's profiler failed.
        OSError: the files cannot be written.
    """
    found = Profile(None if logdir is None else Path(logdir))
    with_one, without = _profilers(_usual_clients() if clients is None else clients)
    with timeline.recording() as recorded, ExitStack() as stack:
        sessions = [stack.enter_context(profiler.session()) for profiler in with_one]
        yield found
    found.plugins = tuple(profiler.client.plugin.name for profiler in with_one)
    found.without = tuple(without)
    found._data = b"".join(
        [xspace.encode(HOST, recorded.spans), *(session.data for session in sessions)]
    )
    found.planes = xspace.decode(found._data)
    if found.logdir is not None:
        _write(found, found.logdir)


def _usual_clients() -> Iterable[Client]:
    """Those that are open; where a program has not begun to use any, the one it would use."""
    return open_clients() or (registry.client(),)


def _profilers(clients: Iterable[Client]) -> tuple[list[Profiler], list[str]]:
    """One profiler a plugin, and the names of plugins that have none."""
    found: dict[str, Profiler] = {}
    without: dict[str, None] = {}
    for client in clients:
        name = client.plugin.name
        if name in found or name in without:
            continue
        try:
            found[name] = client.extension(Profiler)
        except ExtensionUnavailable:
            without[name] = None
    return list(found.values()), list(without)


def _write(found: Profile, logdir: Path) -> None:
    """Write the files where TensorBoard's profile page looks for them."""
    folder = logdir / "plugins" / "profile" / _free_name(logdir / "plugins" / "profile")
    folder.mkdir(parents=True)
    host = socket.gethostname() or "host"
    found.xspace_file = folder / f"{host}.xplane.pb"
    found.trace_file = folder / f"{host}.trace.json.gz"
    found.xspace_file.write_bytes(found.xspace())
    found.trace_file.write_bytes(gzip.compress(found.trace(), mtime=0))


def _free_name(runs: Path) -> str:
    """A name for a run: the time, and a number where two runs came in one second."""
    stem = time.strftime("%Y_%m_%d_%H_%M_%S")
    names = (stem, *(f"{stem}_{count}" for count in range(2, 1000)))
    return next(name for name in names if not (runs / name).exists())

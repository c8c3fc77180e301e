"""Whether a kind of calls is right and faster here, found out in a process that may die.

`python -m pjrt_bridge_cpu.onednn.probe LIBRARY KIND` is that process: it checks every case of the
kind against XLA's own numbers, then measures the ladder, and prints what it found as JSON. What
comes of it is kept beside the compile cache, for this build of the library, this processor and this
number of cores. A process that dies or gives other numbers rules the kind out.

Other processes may compute meanwhile. So the least times of many rounds are compared, more rounds
decide what is near the limit, and that a kind was too slow on a busy machine is believed only until
the machine is not busy.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.runtime import Buffer, Client, Executable, Plugin
from pjrt_bridge.runtime.cache import Cache
from pjrt_bridge.runtime.compile_cache import FOLDER_VARIABLE, cache_folder
from pjrt_bridge.runtime.identity import library_hash, processor
from pjrt_bridge.stablehlo.builder import Builder
from pjrt_bridge.stablehlo.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.onednn.kinds import Body, Case, Kind, kinds

GAIN = 1.25
"""A kind has to be so many times faster: its programs have no place in the compile cache."""
SECONDS = 60.0
"""A process that takes longer hangs."""

MODULE = __spec__.name
"""What the process runs."""

_FORMAT = "2"
_ROUNDS = 7
"""At least; as many without a new least time end the measurement."""
_MOST_ROUNDS = 60
_NEAR = 1.4
"""So many times slower than the limit may be noise."""
_LIMIT = 1_000_000

_lock = threading.Lock()
_known: dict[tuple[Path, str], Finding] = {}


@dataclass(frozen=True)
class Finding:
    """What is known of a kind on this machine.

    Attributes:
        size: from which on it is used; None for never.
        reason: why not, for people; empty where it is used.
        ratios: by size its time in units of XLA's.
        doubtful: it was too slow, and the machine was busy with other things.
    """

    size: int | None
    reason: str = ""
    ratios: tuple[tuple[int, float], ...] = ()
    doubtful: bool = False


def pays(library: Path, kind: str, size: int) -> bool:
    """Whether calls of a kind and size are right and faster; tried now where nobody has."""
    known = kinds().get(kind)
    if known is None or size < known.least:
        return False
    least = finding(library, kind).size
    return least is not None and size >= least


def finding(library: Path, kind: str) -> Finding:
    """What is known of a kind for a build of the plugin; tried now where nothing is."""
    with _lock:
        known = _known.get((library, kind))
        if known is None:
            known = _known[library, kind] = _kept(library, kind)
        return known


def _kept(library: Path, kind: str) -> Finding:
    cache = _cache()
    if cache is None:
        return probe(library, kind)[0]
    key = _key(library, kind)
    found = _read(cache.get(key))
    if found is None or (found.doubtful and not _is_busy()):
        found, final = probe(library, kind)
        if final:
            cache.put(key, json.dumps(asdict(found)).encode())
    return found


def probe(library: Path, kind: str, *, seconds: float = SECONDS) -> tuple[Finding, bool]:
    """Try a kind in another process; also whether that need not be tried again."""
    command = [sys.executable, "-m", MODULE, str(library), kind]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            env={**os.environ, FOLDER_VARIABLE: "off"},
        )
    except subprocess.TimeoutExpired:
        return Finding(None, f"its process did not end within {seconds:.0f} s"), False
    except OSError as error:
        return Finding(None, f"no process could be started: {error}"), False
    if done.returncode:
        # One that was killed by a signal died of the call; others could not be started as they are.
        final = done.returncode < 0
        return Finding(None, f"its process ended with status {done.returncode}"), final
    found = _read(done.stdout.splitlines()[-1] if done.stdout else None)
    if found is None:
        return Finding(None, f"its process wrote {done.stdout[-80:]!r}"), False
    return found, True


def _read(data: bytes | None) -> Finding | None:
    """A finding as it was written, or None where that is no finding."""
    try:
        fields = json.loads(data or b"")
        size, ratios = fields["size"], tuple((int(n), float(r)) for n, r in fields["ratios"])
    except (ValueError, KeyError, TypeError):
        return None
    if size is not None and (type(size) is not int or size < 0):
        return None
    return Finding(size, str(fields.get("reason", "")), ratios, bool(fields.get("doubtful")))


def _cache() -> Cache | None:
    folder = cache_folder()
    return None if folder is None else Cache(folder / "onednn", _LIMIT)


def _key(library: Path, kind: str) -> str:
    parts = (
        _FORMAT,
        kind,
        library_hash(library),
        processor(),
        str(_cores()),
        os.environ.get("XLA_FLAGS", ""),
        *_versions(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _cores() -> int:
    # Not every system tells which of them this process may use.
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


def _is_busy() -> bool:
    """Whether more than this process has been computing here, in the last minute."""
    try:
        return os.getloadavg()[0] > _cores()
    except OSError:
        return False


@cache
def _versions() -> tuple[str, ...]:
    return tuple(map(metadata.version, ("pjrt-bridge", "pjrt-bridge-cpu", "jaxlib")))


# -- in the process that may die -------------------------------------------------------------------


def judge(client: Client, kind: Kind) -> Finding:
    """Check and measure a kind in this process."""
    for case in kind.checks:
        call, plain = (_once(client, case, body) for body in (case.call, case.plain))
        if not _same(call, plain, kind.tolerance):
            what = ", ".join(map(str, case.types))
            return Finding(None, f"its numbers are not XLA's, for {what}")
    ratios = tuple((case.size, round(ratio(client, case), 3)) for case in kind.ladder)
    faster = list(takewhile(lambda rung: rung[1] * GAIN <= 1, reversed(ratios)))
    # One rung alone may be noise.
    if len(faster) > 1:
        return Finding(faster[-1][0], "", ratios)
    return Finding(None, f"it is not {GAIN} times faster", ratios, _is_busy())


def ratio(client: Client, case: Case) -> float:
    """The least time of a call in units of XLA's, of rounds in turns."""
    arguments = [client.put(array) for array in _arguments(case)]
    ways = [client.compile(_program(case, body)) for body in (case.call, case.plain)]
    for executable in ways:
        _time(executable, arguments)
    least = [float("inf"), float("inf")]
    idle = 0
    for turn in range(_MOST_ROUNDS):
        before = tuple(least)
        for index, executable in enumerate(ways):
            least[index] = min(least[index], _time(executable, arguments))
        idle = 0 if least[0] < 0.98 * before[0] or least[1] < 0.98 * before[1] else idle + 1
        near = 1 < GAIN * least[0] / least[1] < _NEAR
        if turn >= _ROUNDS and idle >= (3 * _ROUNDS if near else _ROUNDS):
            break
    return least[0] / least[1]


def _time(executable: Executable, arguments: Sequence[Buffer]) -> float:
    started = time.perf_counter()
    for result in executable.execute(arguments):
        result.block_until_ready()
    return time.perf_counter() - started


def _once(client: Client, case: Case, body: Body) -> np.ndarray[Any, Any]:
    executable = client.compile(_program(case, body))
    (result,) = executable.execute([client.put(array) for array in _arguments(case)])
    return np.asarray(result).astype(np.float32)


def _program(case: Case, body: Body) -> Program:
    builder = Builder(list(case.types), name="probe")
    return builder.finish([body(builder, builder.parameters)])


def _arguments(case: Case) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return [_drawn(random, kind) for kind in case.types]


def _drawn(random: np.random.Generator, kind: TensorType) -> np.ndarray[Any, Any]:
    dtype: DType = kind.dtype
    return random.standard_normal(kind.shape, np.float32).astype(dtype.numpy)


def _same(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: float) -> bool:
    scale = float(np.abs(expected).max())
    return np.allclose(found, expected, rtol=0, atol=tolerance * scale)


def main(arguments: Sequence[str]) -> None:
    """Judge a kind: the path of the library, and the kind's name."""
    library, kind = arguments
    plugin = Plugin.load(library, name="cpu")
    client = plugin.client({"cpu_device_count": 1})
    try:
        found = judge(client, kinds()[kind])
    except PjrtBridgeError as error:
        found = Finding(None, f"it cannot be compiled or executed: {error}")
    print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

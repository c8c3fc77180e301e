"""Operators that PyTorch computes faster than a plugin, as measured here or as a package says.

A compiled program is not faster in everything: XLA sorts a large array several times slower than
PyTorch does. `pjrt-bridge calibrate` measures both in turns, for growing sizes, and stores the size
from which on PyTorch gains more than it costs to divide a graph.

The variable `PJRT_BRIDGE_CALIBRATION` names the folder, or turns what was measured `off`. With
`PJRT_BRIDGE_CACHE=off` what was measured before is read, and nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pjrt_bridge import registry, storage
from pjrt_bridge.errors import OptionError
from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.compile.identity import library_hash, processor

VARIABLE = "PJRT_BRIDGE_CALIBRATION"
_FOLDER = "calibration"
_FILE_LIMIT = 10_000_000
BORDER = 60e-6
"""Seconds that dividing a graph may cost; PyTorch has to gain more."""
MARGIN = 1.3
"""The ratio by which one has to be faster, because measurements are noisy."""
_ROUNDS = 7
_LONGEST = 0.5
"""Seconds of one call after which no larger size is tried."""

CaseOfSize = Callable[[int], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]
"""Makes a function and its arguments, of so many elements."""


@dataclass(frozen=True)
class Measured:
    """One operator at one size.

    Attributes:
        operator: without overload.
        elements: of its largest tensor.
        device: seconds of a call on the plugin, median, less what any compiled call costs.
        host: seconds of a call in PyTorch, median.
    """

    operator: str
    elements: int
    device: float
    host: float

    @property
    def host_wins(self) -> bool:
        """Whether the host is faster by more than the border costs."""
        return self.device > MARGIN * self.host and self.device - self.host > BORDER

    @property
    def device_wins(self) -> bool:
        """Whether the device is faster."""
        return self.host > MARGIN * self.device


def _vector(function: Callable[[torch.Tensor], Any]) -> CaseOfSize:
    return lambda size: (function, (torch.rand(size, device="cpu"),))


def _matrix(function: Callable[[torch.Tensor], Any]) -> CaseOfSize:
    def case(size: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        side = round(size**0.5)
        x = torch.rand(side, side, device="cpu")
        return function, (x @ x.T + side * torch.eye(side, device="cpu"),)

    return case


def _scattered(size: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    base, index, source = (
        torch.zeros(size, device="cpu"),
        torch.randint(size, (size,), device="cpu"),
        torch.rand(size, device="cpu"),
    )
    return lambda a, i, s: a.scatter_add(0, i, s), (base, index, source)


_VECTORS = tuple(10**power for power in range(3, 8))
_MATRICES = tuple(side**2 for side in (8, 16, 32, 64, 128, 256, 512))
# Larger ones have no lowering.
_SPECTRA = tuple(size for size in _MATRICES if size <= 256**2)

CASES: Mapping[str, tuple[CaseOfSize, Sequence[int]]] = {
    "aten.sort": (_vector(lambda x: x.sort()), _VECTORS),
    "aten.topk": (_vector(lambda x: x.topk(10)), _VECTORS),
    "aten.cumsum": (_vector(lambda x: x.cumsum(0)), _VECTORS),
    "aten.cumprod": (_vector(lambda x: x.cumprod(0)), _VECTORS),
    "aten.logcumsumexp": (_vector(lambda x: x.logcumsumexp(0)), _VECTORS),
    "aten.scatter_add": (_scattered, _VECTORS),
    "aten.randperm": (lambda size: (lambda: torch.randperm(size, device="cpu"), ()), _VECTORS),
    "aten.linalg_qr": (_matrix(torch.linalg.qr), _MATRICES),
    "aten._linalg_eigh": (_matrix(torch.linalg.eigh), _SPECTRA),
    "aten._linalg_svd": (_matrix(torch.linalg.svd), _SPECTRA),
    "aten.linalg_cholesky_ex": (_matrix(torch.linalg.cholesky), _MATRICES),
    "aten.linalg_inv_ex": (_matrix(torch.linalg.inv), _MATRICES),
    "aten.linalg_lu_factor_ex": (_matrix(torch.linalg.lu_factor), _MATRICES),
    "aten._linalg_solve_ex": (_matrix(lambda x: torch.linalg.solve(x, x[:, :2])), _MATRICES),
    "aten._linalg_det": (_matrix(torch.linalg.det), _MATRICES),
    "aten._linalg_slogdet": (_matrix(torch.linalg.slogdet), _MATRICES),
    "aten.linalg_solve_triangular": (
        _matrix(lambda x: torch.linalg.solve_triangular(x, x[:, :2], upper=True)),
        _MATRICES,
    ),
}
"""Operators to measure, and the numbers of elements to try."""


def slower_operators(client: Client) -> Mapping[str, int]:
    """By operator from how many elements on PyTorch is faster than the client's plugin.

    Measurements on this machine take precedence over what installed packages say.
    """
    folder = storage.data_folder(_FOLDER, VARIABLE)
    # Without any measurements there is no need to hash the plugin's library.
    if folder is not None and any(folder.glob("*.json")):
        path = path_for(client)
        with suppress(OSError):
            found = None if path is None else _read(path, path.stat().st_mtime_ns)
            if found is not None:
                return found
    return registry.slower(client.plugin)


@cache
def _read(path: Path, _: int) -> Mapping[str, int] | None:
    data = storage.read(path, _FILE_LIMIT)
    if data is None:
        return None
    try:
        found = json.loads(data)["slower"]
        if all(type(size) is int and size > 0 for size in found.values()):
            return dict(found)
        problem = f"{found!r}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = str(error)
    raise OptionError(
        f"{path}: no calibration ({problem}); delete it, or run `pjrt-bridge calibrate` again"
    )


def path_for(client: Client) -> Path | None:
    """Where the measurements for a client's plugin on this machine are, or would be.

    None where they are turned off, or where builds of the plugin cannot be told apart.
    """
    folder = storage.data_folder(_FOLDER, VARIABLE)
    library = client.plugin.library
    if library is None or folder is None:
        return None
    identity = f"{library_hash(library)} {client.platform} {processor()}"
    return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"


def measure(
    plugin: str | None, names: Sequence[str] | None = None, *, longest: float = _LONGEST
) -> Iterator[Measured]:
    """Measure operators on a plugin and in PyTorch, in turns; yields each size when it is measured.

    Args:
        plugin: as the option of the backend.
        names: of `CASES`; None means all.
        longest: seconds of a call after which no larger size is tried.

    Raises:
        OptionError: no such operator.
    """
    unknown = [name for name in names or () if name not in CASES]
    if unknown:
        raise OptionError(f"no operator {unknown[0]!r} to calibrate; there are {', '.join(CASES)}")
    options: dict[str, Any] = {"placement": "device", "fallback": "error", "plugin": plugin}
    overhead = _overhead(options)
    for name in names or CASES:
        case, sizes = CASES[name]
        for size in sizes:
            device, host = _compared(*case(size), options)
            yield Measured(name, size, max(device - overhead, 0.0), host)
            if max(device, host) > longest:
                break


def _overhead(options: dict[str, Any]) -> float:
    """The fixed seconds of a compiled call, which larger graphs pay once for all operators."""
    device, host = _compared(torch.neg, (torch.rand(8, device="cpu"),), options)
    return max(device - host, 0.0)


def _compared(
    function: Callable[..., Any], arguments: Sequence[torch.Tensor], options: dict[str, Any]
) -> tuple[float, ...]:
    torch.compiler.reset()
    compiled = torch.compile(function, backend="pjrt", options=options, dynamic=False)
    return _medians([compiled, function], arguments)


def _medians(
    functions: Sequence[Callable[..., Any]], arguments: Sequence[torch.Tensor]
) -> tuple[float, ...]:
    with torch.no_grad():
        for function in functions:
            function(*arguments)
        samples: list[list[float]] = [[] for _ in functions]
        for _ in range(_ROUNDS):
            for function, found in zip(functions, samples, strict=True):
                started = time.perf_counter()
                function(*arguments)
                found.append(time.perf_counter() - started)
    return tuple(map(statistics.median, samples))


def thresholds(measured: Sequence[Measured]) -> dict[str, int]:
    """For operators that are faster on the host, the least size from which on they always are."""
    found: dict[str, int] = {}
    for name in dict.fromkeys(item.operator for item in measured):
        sizes = sorted(
            (item for item in measured if item.operator == name), key=lambda item: -item.elements
        )
        for item in sizes:
            if item.device_wins:
                break
            if item.host_wins:
                found[name] = item.elements
    return found


def check_can_save(client: Client) -> Path:
    """Where measurements for a client's plugin will be kept.

    Raises:
        OptionError: the plugin is known by an address only, files are turned off, or others can
            write to the folder.
    """
    path = path_for(client)
    if path is None:
        why = f"it has no library, or {VARIABLE} is off"
    elif storage.is_off():
        why = f"{storage.FOLDER_VARIABLE} is off, so no file is written"
    elif (found := storage.objection(path.parent)) is not None:
        why = found
    else:
        return path
    raise OptionError(f"measurements for plugin {client.plugin.name!r} cannot be kept: {why}")


def save(client: Client, measured: Sequence[Measured]) -> Path:
    """Store measurements for the graphs that are compiled from now on; returns the path.

    Raises:
        OptionError: as `check_can_save`.
        OSError: the file cannot be written.
    """
    path = check_can_save(client)
    content = {
        "plugin": client.plugin.name,
        "platform": client.platform,
        "processor": processor().split(" ", 1)[0],
        "slower": thresholds(measured),
        "measured": [asdict(item) for item in measured],
    }
    if not storage.write(path, json.dumps(content, indent=1).encode()):
        raise OSError(f"{path} cannot be written")
    return path

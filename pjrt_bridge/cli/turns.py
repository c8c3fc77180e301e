"""Ways to run a function, each in a process; they take turns, and one runs at a time.

Machines are shared and noisy, so times of separate runs say nothing. In each round every way is
timed once, after a call that is not timed; the order changes from round to round. One that fails is
reported as that, and the others go on.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pjrt_bridge import child_processes
from pjrt_bridge.report.comparison import Account, Comparison, Timing

WORKER = "pjrt_bridge.torch_interop.comparing.worker"
EAGER, OURS = "eager", "pjrt"
_SAMPLE = 0.02
"""Seconds that a sample lasts about; a call that is shorter is repeated."""
_FEWEST = 3


class _Failed(Exception):
    """A process that ended, or an answer that says why there is none."""


class _TurnProcess:
    """One way in a process of its own; it ends with the block."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            child_processes.command(WORKER),
            env=child_processes.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            _Failed: there is none; the text says why.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            _, said = self._process.communicate()
            how = child_processes.ended(self._process.returncode)
            raise _Failed(f"{how}: {child_processes.last_words(said)}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise _Failed(answer["failed"])
        return answer

    def __enter__(self) -> _TurnProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class _Samples:
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.first_tokens: list[float] = []
        self.facts: dict[str, Any] = {}
        self.failed: str | None = None


def compare(
    target: str,
    ways: Sequence[str],
    case: Mapping[str, Any],
    *,
    rounds: int,
    budget: float,
    note: Callable[[str], None],
) -> Comparison:
    """Run a function in several ways.

    Args:
        target: names it.
        ways: `"eager"`, and backends of torch.compile.
        case: what else a worker is to know; see `worker.Worker`.
        rounds: samples of each way, at most.
        budget: seconds that the rounds may take together; longer calls get fewer rounds.
        note: told what is done now.
    """
    found = {way: _Samples() for way in ways}
    account = None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = str(Path(folder) / "results")
        processes = {}
        for way in ways:
            note(f"the first call: {way}")
            process = stack.enter_context(_TurnProcess())
            with _noting(found[way]):
                first = process.ask("prepare", way=way, target=target, **case)["seconds"]
                found[way].facts["first"] = first
                processes[way] = process
                if way == EAGER:
                    process.ask("save", path=file)
                elif Path(file).exists():
                    found[way].facts |= process.ask("compare", path=file)
        _rounds(processes, found, rounds, budget, note)
        for way, process in processes.items():
            with _noting(found[way]):
                found[way].facts |= process.ask("programs")
        if OURS in processes and found[OURS].failed is None:
            note("where the time goes")
            with _noting(found[OURS]):
                told = processes[OURS].ask("account")
                account = Account(**{**told, "advice": tuple(told["advice"])})
    timings = tuple(
        Timing(way, item.failed)
        if item.failed is not None
        else Timing(
            way,
            samples=tuple(item.seconds),
            first_tokens=tuple(item.first_tokens) if case["new_tokens"] is not None else (),
            **item.facts,
        )
        for way, item in found.items()
    )
    return Comparison(target, timings, account, case["new_tokens"])


def _rounds(
    processes: Mapping[str, _TurnProcess],
    found: Mapping[str, _Samples],
    rounds: int,
    budget: float,
    note: Callable[[str], None],
) -> None:
    once = {}
    for way, process in processes.items():
        with _noting(found[way]):
            # Twice, because some things are compiled, or read, at the second call.
            process.ask("time", repeats=2)
            once[way] = max(process.ask("time", repeats=1)["seconds"], 1e-7)
    repeats = {way: max(1, round(_SAMPLE / seconds)) for way, seconds in once.items()}
    spent = sum(seconds * (1 + repeats[way]) for way, seconds in once.items())
    count = min(rounds, max(_FEWEST, int(budget / max(spent, 1e-9))))
    names = list(once)
    for turn in range(count):
        note(f"round {turn + 1} of {count}")
        at = turn % max(len(names), 1)
        for way in names[at:] + names[:at]:
            if found[way].failed is not None:
                continue
            with _noting(found[way]):
                processes[way].ask("time", repeats=1)
                sample = processes[way].ask("time", repeats=repeats[way])
                found[way].seconds.append(sample["seconds"])
                found[way].first_tokens.append(sample["first_token"])


@contextmanager
def _noting(samples: _Samples) -> Iterator[None]:
    """Keeps what fails in the block."""
    try:
        yield
    except _Failed as error:
        samples.failed = str(error)

"""Programs that are compiled again when kernels choose otherwise."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.mixed.background import BACKGROUND
from pjrt_bridge.mixed.renewal import Renewal
from pjrt_bridge.runtime import Client, Executable
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.kernels import Kernels
from tests import programs

ADD, MULTIPLY, SUBTRACT = (
    Program.from_text(programs.elementwise("tensor<64xf32>", op=op))
    for op in ("add", "multiply", "subtract")
)
THREES = np.full(64, 3, np.float32)


class _Learning(Kernels):
    """Kernels that choose otherwise when a test says so."""

    def __init__(self) -> None:
        self._version = 0
        self.waiting: list[Callable[[], None]] = []

    @property
    def version(self) -> int:
        return self._version

    def on_change(self, since: int, told: Callable[[], None]) -> None:
        if self._version > since:
            told()
        else:
            self.waiting.append(told)

    def learn(self) -> None:
        """Choose otherwise, and wait until everything was compiled that follows from that."""
        self._version += 1
        waiting, self.waiting = self.waiting, []
        for told in waiting:
            told()
        wait()


def wait() -> None:
    done = threading.Event()
    BACKGROUND.begin(done.set, limited=False)
    assert done.wait(60)


def first(executable: Executable) -> float:
    (result,) = executable(THREES, THREES)
    return float(np.asarray(result)[0])


class _Renewed:
    """An addition whose next programs a test chooses."""

    def __init__(self, client: Client, version: int = 0) -> None:
        self.kernels = _Learning()
        self.next: Program | None = ADD
        self.replaced = 0
        self.compiled: list[Program] = []
        self.fails = False
        self._client = client
        self.executable = client.compile(ADD)
        Renewal(self.kernels, lambda: self.next, self._compile, self._count).watch(
            self.executable, ADD, version
        )

    def _compile(self, program: Program) -> Executable:
        self.compiled.append(program)
        if self.fails:
            raise ProgramError("no kernel here")
        return self._client.compile(program)

    def _count(self) -> None:
        self.replaced += 1


def test_each_change_replaces_the_program(client: Client) -> None:
    renewed = _Renewed(client)
    for program, result in ((MULTIPLY, 9), (SUBTRACT, 0)):
        renewed.next = program
        renewed.kernels.learn()
        assert first(renewed.executable) == result
    assert renewed.replaced == 2


@pytest.mark.parametrize("program", [ADD, None])
def test_nothing_is_compiled_for_the_same_program_or_other_arguments(
    client: Client, program: Program | None
) -> None:
    renewed = _Renewed(client)
    renewed.next = program
    renewed.kernels.learn()
    assert (renewed.compiled, renewed.replaced, first(renewed.executable)) == ([], 0, 6)
    assert len(renewed.kernels.waiting) == 1


def test_a_change_while_it_was_emitted_is_not_missed(client: Client) -> None:
    kernels = _Learning()
    kernels.learn()
    executable = client.compile(ADD)
    Renewal(kernels, lambda: MULTIPLY, client.compile).watch(executable, ADD, version=0)
    wait()
    assert first(executable) == 9


def test_one_that_cannot_be_compiled_leaves_the_one_before(client: Client) -> None:
    renewed = _Renewed(client)
    renewed.next, renewed.fails = MULTIPLY, True
    with pytest.warns(match=r"stays without kernels .* failed: no kernel here"):
        renewed.kernels.learn()
    assert (renewed.replaced, first(renewed.executable)) == (0, 6)
    renewed.fails = False
    renewed.kernels.learn()
    assert (renewed.replaced, first(renewed.executable)) == (1, 9)


def test_what_was_dropped_is_neither_kept_nor_compiled(client: Client) -> None:
    renewed = _Renewed(client)
    renewed.next = MULTIPLY
    gone = weakref.ref(renewed.executable.renewal)
    del renewed.executable
    gc.collect()
    assert gone() is None
    renewed.kernels.learn()
    assert not renewed.compiled

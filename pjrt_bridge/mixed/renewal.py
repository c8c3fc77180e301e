"""Programs that are compiled again, because the plugin's kernels choose otherwise than before.

A plugin's package may find out in the background which kernels are right and fast on this machine
(`Kernels.on_change`). A program that was compiled meanwhile is emitted again then, on the thread of
`background.py`. If it differs, the new one takes the place of the old one in its executable: all
that starts that stays as it is.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pjrt_bridge import user_warnings
from pjrt_bridge.errors import BridgeWarning
from pjrt_bridge.mixed.background import BACKGROUND
from pjrt_bridge.registry import targets
from pjrt_bridge.runtime import Client, CompileOptions, Executable
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.program.program import Program


def compile_for(
    client: Client, program: Program, options: CompileOptions | None = None
) -> Executable:
    """Compile a portable program with a client's kernels, and again when these change.

    Raises:
        PjrtBridgeError: as `Client.compile`.
    """
    kernels = targets.kernels_of(client)
    emit = partial(targets.for_client, program, client, options)
    compile = partial(client.compile, options=options)
    version, emitted = kernels.version, emit()
    executable = compile(emitted)
    Renewal(kernels, emit, compile).watch(executable, emitted, version)
    return executable


class Renewal:
    """Compiles one program again.

    Args:
        kernels: that it is emitted with.
        emit: emits it with what the kernels choose now; None where it would take other values.
        compile: compiles it.
        replaced: told after each time that it was replaced.
    """

    def __init__(
        self,
        kernels: Kernels,
        emit: Callable[[], Program | None],
        compile: Callable[[Program], Executable],
        replaced: Callable[[], None] | None = None,
    ) -> None:
        self._kernels = kernels
        self._version = 0
        self._emit = emit
        self._compile = compile
        self._told = replaced
        self._digest = b""

    def watch(self, executable: Executable, program: Program, version: int) -> None:
        """Replace what an executable runs when the kernels change, for as long as it is there.

        Args:
            executable: keeps this object.
            program: that it was compiled from.
            version: of the kernels before the program was emitted.
        """
        self._version = version
        self._digest = _digest(program)
        executable.renewal = self
        self._listen(weakref.ref(executable))

    def _listen(self, executable: weakref.ref[Executable]) -> None:
        # The kernels may not change before the program is dropped.
        this = weakref.ref(self)

        def changed() -> None:
            found = this()
            if found is not None:
                BACKGROUND.begin(lambda: found._renew(executable), limited=False)

        self._kernels.on_change(self._version, changed)

    def _renew(self, reference: weakref.ref[Executable]) -> None:
        executable = reference()
        if executable is None:
            return
        self._version = self._kernels.version
        try:
            self._replace(executable)
        except Exception as error:
            # What it runs is as right as before.
            with suppress(BridgeWarning):
                user_warnings.warn(
                    f"program {executable.name!r} stays without kernels that were found fast on "
                    f"this machine: compiling it again failed: {error}"
                )
        self._listen(reference)

    def _replace(self, executable: Executable) -> None:
        program = self._emit()
        if program is None or _digest(program) == self._digest:
            return
        executable.take_over(self._compile(program))
        self._digest = _digest(program)
        if self._told is not None:
            self._told()


def _digest(program: Program) -> bytes:
    return hashlib.sha256(program.bytecode()).digest()

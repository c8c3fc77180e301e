"""KeyboardInterrupt at each moment at which Python may raise it, one after the other.

CPython looks for signals after calls, where functions begin and where loops start again. There it
also makes its pending calls (`Py_AddPendingCall`). One of these counts the moments, and at the one
that is asked for it trips SIGINT, which Python raises at the next.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_python = ctypes.pythonapi
_python.Py_AddPendingCall.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_TRIP = ctypes.cast(_python.PyErr_SetInterruptEx, ctypes.c_void_p)

Forbidden = Callable[[FrameType], bool]


class Interrupts:
    """Interrupts the main thread.

    Args:
        forbidden: of a frame, that nothing is to be raised while it is on the stack. Where that is
            so, the exception comes at the next moment at which it is not.
    """

    def __init__(self, forbidden: Forbidden) -> None:
        self._forbidden = forbidden
        self._look: Any = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._counted)
        self._pointer = ctypes.cast(self._look, ctypes.c_void_p)
        self._left: int | None = None
        self._running = False
        self._last: tuple[int, int] | None = None
        self.where = ""

    def run(self, operation: Callable[[], object], at: int) -> bool:
        """Run an operation, and interrupt it at a moment; whether it came so far."""
        handler = signal.signal(signal.SIGINT, self._handle)
        # What is raised in a finalizer goes there.
        hook, sys.unraisablehook = sys.unraisablehook, self._ignore
        self._left, self._last, self._running = at, None, True
        try:
            _python.Py_AddPendingCall(self._pointer, None)
            operation()
        except KeyboardInterrupt:
            pass
        finally:
            came_so_far = not self._running
            self._running = False
            self._left = None
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, handler)
        return came_so_far

    def _ignore(self, raised: Any) -> None:
        if raised.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(raised)

    def _allowed(self, frame: FrameType | None) -> bool:
        inside, top = False, frame and frame.f_code
        while frame is not None and not self._forbidden(frame):
            inside = inside or frame.f_code is Interrupts.run.__code__
            frame = frame.f_back
        # Before a finalizer has called something there is nobody to do its work later.
        called = top is not None and top.co_name != "__del__"
        return called and inside and frame is None and top is not Interrupts.run.__code__

    def _counted(self, _: int | None) -> int:
        # The interpreter makes a pending call that adds itself again many times in a row.
        if self._left is None:
            return 0
        frame = sys._getframe(1)
        here = id(frame), frame.f_lasti
        if here != self._last:
            self._last = here
            if self._allowed(frame):
                self._left -= 1
        if self._left < 0:
            self._left = None
            _python.Py_AddPendingCall(_TRIP, signal.SIGINT)
        else:
            _python.Py_AddPendingCall(self._pointer, None)
        return 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._running:
            return
        if not self._allowed(frame):
            _python.Py_AddPendingCall(_TRIP, signal.SIGINT)
            return
        assert frame is not None
        self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}, instruction {frame.f_lasti}"
        self._running = False
        raise KeyboardInterrupt

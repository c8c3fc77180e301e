"""Guards: functions of Python that C calls while an exception is on its way."""

from __future__ import annotations

import ctypes

import pytest

from pjrt_bridge.runtime import native
from tests.plugins import require_dispatcher, run_python

require_dispatcher()

DESTRUCTOR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def capsule(destructor: int) -> object:
    """An object whose end calls a function of C."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    made: object = new(1, None, destructor)
    return made


def address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def test_a_pending_exception_is_set_aside() -> None:
    assert native.module is not None
    seen = []

    @DESTRUCTOR
    def end(_: int) -> None:
        # Any of these would fail with an exception pending.
        seen.append(sum(map(int, "123")))
        with pytest.raises(KeyError):
            {}["x"]

    guarded = native.module.guard(address(end))
    # A function of C: its argument dies when it has failed.
    with pytest.raises(ValueError, match="not in list") as raised:
        [].remove(capsule(guarded))
    assert seen == [6]
    assert raised.value.__context__ is None
    # And without one.
    made = capsule(guarded)
    del made
    assert seen == [6, 6]


def test_one_guard_for_a_function() -> None:
    assert native.module is not None
    first, second = DESTRUCTOR(lambda _: None), DESTRUCTOR(lambda _: None)
    guards = [native.module.guard(address(function)) for function in (first, second, first)]
    assert guards[0] == guards[2] != guards[1]


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), ("x", TypeError)])
def test_what_is_no_function(value: object, error: type[Exception]) -> None:
    assert native.module is not None
    with pytest.raises(error):
        native.module.guard(value)  # type: ignore[arg-type]


def test_there_is_an_end_to_them() -> None:
    run_python(
        """
        from pjrt_bridge.runtime import native
        made = {native.module.guard(place) for place in range(1, 257)}
        assert len(made) == 256
        try:
            native.module.guard(1000)
        except OverflowError as error:
            assert "256" in str(error)
        else:
            raise AssertionError
        assert native.module.guard(1) in made
        """
    )

"""Types of the compiled module; see module.c."""

from collections.abc import Callable, Sized
from typing import Any

REVISION: str
FUNCTIONS: tuple[str, ...]
LAYOUTS: dict[str, dict[str, tuple[int, int]]]

class Plan:
    """Launches one executable."""

    def __init__(self, *arguments: Any) -> None: ...
    def launch(
        self, values: list[Any], kept: tuple[Any, bytes, bytes], copies: set[int] | None
    ) -> Launch | int | None:
        """Start; the position of a value that does not fit; None where what is kept is stale."""
    def call(self, values: tuple[Any, ...], kept: tuple[Any, bytes, bytes]) -> list[Any] | None:
        """The results, when all is over; None where the values take another way in."""
    @property
    def crossed(self) -> tuple[int, int]: ...

class Entrance:
    """Leads calls into a plan, as long as all containers of `quiet` are empty.

    Attributes:
        kept: what `Plan.call` takes beside the values; None sends all calls to `attentive`.
        taken: whether a call came this way since this was set to False.
    """

    kept: tuple[Any, bytes, bytes] | None
    taken: bool

    def __init__(
        self,
        plan: Plan,
        quiet: tuple[Sized, ...],
        failures: tuple[type[Exception], ...],
        attentive: Callable[..., Any],
        refused: Callable[..., Any],
        /,
    ) -> None: ...
    def __call__(self, *values: Any) -> Any: ...

class Launch:
    """An execution that may not have ended."""

    @property
    def outputs(self) -> tuple[Output, ...]: ...
    @property
    def shared(self) -> int: ...
    @property
    def copied(self) -> int: ...
    def finish(self) -> None:
        """Wait for the end; every call does, also while another thread waits.

        Raises:
            PjrtError: the execution failed.
            RuntimeError: the same, in calls after the first.
        """
    def tensors(self) -> list[Any]: ...

class Output:
    """A result of a launch."""

    def tensor(self) -> Any: ...

class Pending:
    """What a plugin uses of an execution that nobody waits for, in `pending.queue`."""

    def over(self) -> bool: ...
    def end(self) -> None: ...

def live() -> tuple[int, int]: ...
def busy() -> bool: ...
def close() -> None: ...
def end() -> None: ...
def forked() -> None: ...
def guard(address: int, /) -> int: ...

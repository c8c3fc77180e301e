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
        """The results, when all is over, but for those that were written into their arguments.

        None where the values take another way in.
        """
    def replace(self, handle: object, pointer: int, /) -> None:
        """The next launches are those of another executable, whose handle has a lease."""
    @property
    def crossed(self) -> tuple[int, int]: ...

class Entrance:
    """Leads calls into a plan, as long as all containers of `blockers` are empty.

    Args:
        plan: see above.
        blockers: see above.
        failures: exceptions that `failed_call` gets.
        checked_call: gets all calls while one of the containers is not empty.
        declined_call: gets those whose values the plan declined.
        failed_call: gets the exception and the values of those that failed.

    Attributes:
        pinned: what `Plan.call` takes beside the values; None sends all calls to `checked_call`.
        taken: whether a call came this way since this was set to False.
    """

    pinned: tuple[Any, bytes, bytes] | None
    taken: bool

    def __init__(
        self,
        plan: Plan,
        blockers: tuple[Sized, ...],
        failures: tuple[type[Exception], ...],
        checked_call: Callable[..., Any],
        declined_call: Callable[..., Any],
        failed_call: Callable[[Any, tuple[Any, ...]], Any],
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

    @property
    def pointer(self) -> int: ...
    def tensor(self) -> Any: ...
    def address(self) -> int | None:
        """Device address of the first element, once it is there; None where the plugin failed."""
    def wait(self) -> None:
        """Wait for the execution, if it is of a shortcut; the buffer says whether it failed."""

class Resident:
    """What the storage of a tensor on a device holds."""

    held: Any
    type: Any
    shape: Any
    dtype: Any
    index: int

    def tensor(self, exchange: object, numbers: bytes, /) -> Any:
        """The tensor over these elements; a storage is made once.

        Args:
            exchange: DLPack's exchange API of the framework.
            numbers: code and bits of DLPack's element type, sizes and strides, as int64s.
        """

class Shortcut:
    """The program of calls of one operator.

    Args:
        plan: of its executable, `on_device`.
        contents: the class of what a storage holds, of the kind of Resident.
        types: of each result (type, shape, element type) as `contents` has them.
        returns: for each result of the operator that of the program, (name, position) of an
            argument, None, or a list of these.
        before: has to be called before; None: nothing.
        numbers: gets the numbers of a call; gives a list of 0-d tensors of the host, or None where
            the program does not serve these. None: there are none.
        sources: for each parameter its place among the arrays that a call gives, each once, and
            behind these the numbers.
        updates: pairs of such a place and the result that it gets.
        index: of the device.
    """

    def __init__(
        self,
        plan: Plan,
        contents: type[Resident],
        types: tuple[tuple[Any, Any, Any], ...],
        returns: tuple[Any, ...],
        before: Callable[[], None] | None,
        numbers: Callable[[tuple[float, ...]], list[Any] | None] | None,
        sources: tuple[int, ...],
        updates: tuple[int, ...],
        index: int,
        /,
    ) -> None: ...

class Operators:
    """Calls of operators on a device, which go the way of a Shortcut where one was learned.

    Args:
        tensor: the class of the framework's tensors.
        device: the class of its devices.
        singletons: classes each value of which is one object for good.
        name: of the device.
        default_dtype: gives the element type of calls that ask for none.
        places: for operators a number with a bit for each argument, from the lowest on, whose
            integers are told from each other as floats are; may grow.
        exchange: DLPack's exchange API of the framework.
        quiet: while one of these is not empty, `otherwise` gets all calls.
        deferred: while one of these is not empty, `run_deferred` is called before.
        run_deferred: see `deferred`.
        otherwise: gets calls without a shortcut.

    Attributes:
        taken: how many calls went by a shortcut.
    """

    taken: int

    def __init__(
        self,
        tensor: type,
        device: type,
        singletons: tuple[type, ...],
        name: str,
        default_dtype: Callable[[], object],
        places: dict[Any, int],
        exchange: object,
        quiet: tuple[Sized, ...],
        deferred: tuple[Sized, ...],
        run_deferred: Callable[[], None],
        otherwise: Callable[..., Any],
        /,
    ) -> None: ...
    def __call__(self, op: Any, /, *values: Any, **keywords: Any) -> Any: ...
    def learn(
        self,
        values: tuple[Any, ...],
        keywords: dict[str, Any],
        way: Shortcut | Callable[[list[Any], tuple[float, ...], tuple[Any, ...], Any], Any],
        any_numbers: bool,
        /,
    ) -> bool:
        """Have calls like this one go a way; False where they cannot be told from others.

        Args:
            values: the operator, and its arguments.
            keywords: of the call.
            way: a Shortcut, or what gets the storages and tensors of the host that a call gives,
                its numbers, its values, and its keywords or None; it gives what the operator gives,
                or NotImplemented where the call has to go another way.
            any_numbers: the way is that of calls with other numbers, too.
        """
    def run(self, shortcut: Shortcut, types: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
        """What a graph gives; None where it has to go another way.

        Args:
            shortcut: whose sources are its parameters in their order.
            types: for each parameter the element type, as `Resident.dtype` has it.
            values: anything, and the arguments of the graph.
        """
    def forget(self) -> None: ...

class Pending:
    """What a plugin uses of an execution that nobody waits for, in `pending.queue`."""

    def over(self) -> bool: ...
    def end(self) -> None: ...

def live() -> tuple[int, int]: ...
def busy() -> bool: ...
def close() -> None: ...
def end() -> None: ...
def forked() -> None: ...
def settle() -> None: ...
def wait() -> None: ...
def find(address: int, /) -> Any: ...
def tensor_of(
    contents: type[Resident],
    form: tuple[Any, Any, Any],
    index: int,
    elements: Any,
    exchange: object,
    numbers: bytes,
    /,
) -> Any:
    """A tensor over elements.

    Args:
        contents: the class of what its storage holds.
        form: type, shape and element type of the array in memory, see `Resident`.
        index: of the device.
        elements: see `Resident.held`.
        exchange: DLPack's exchange API of the framework.
        numbers: see `Resident.tensor`.
    """

def guard(address: int, /) -> int: ...

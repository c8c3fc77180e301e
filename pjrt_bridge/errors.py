"""Every exception and warning of the bridge.

Two families share one root, `PjrtBridgeError`:

* `PjrtError` carries what a *plugin* answered: one subclass per `PJRT_Error_Code`
  (pjrt_c_api.h), with the code, the plugin's message, the plugin's name and the API function.
* The others are found by the *bridge* before a call is made. They name what was wrong, where,
  what was found and what was expected, and leave every object usable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """`PJRT_Error_Code` of pjrt_c_api.h (the absl status codes)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_CODES = "|".join(ErrorCode.__members__)
_AROUND = "Buffer Definition Event|Compute error|Error dispatching computation|INTERNAL"
"""What XLA's CPU plugin puts before the error of a program, also once for each program after it."""
_STATED = re.compile(rf"(({_AROUND}): )*(?P<code>{_CODES}): ")


class PjrtBridgeError(Exception):
    """Root of all errors that the bridge raises on purpose."""


class PjrtError(PjrtBridgeError, RuntimeError):
    """A plugin returned a `PJRT_Error`.

    It is a RuntimeError, as errors of devices are in PyTorch and JAX.

    Attributes:
        code: the status code; a number the bridge does not know stays an int.
        message: the plugin's own text.
        plugin: name of the plugin that failed.
        function: API function that returned the error, without the `PJRT_` prefix.
    """

    CODE: ClassVar[ErrorCode | None] = None

    def __init__(self, message: str, *, code: int, plugin: str, function: str) -> None:
        self.code: int = ErrorCode(code) if code in ErrorCode._value2member_map_ else code
        self.message = message
        self.plugin = plugin
        self.function = function
        label = self.code.name if isinstance(self.code, ErrorCode) else f"code {code}"
        super().__init__(f"{label}: {message} [plugin {plugin!r}, PJRT_{function}]")

    @staticmethod
    def from_code(code: int, message: str, *, plugin: str, function: str) -> PjrtError:
        """Build the subclass that belongs to `code` (plain `PjrtError` for an unknown one).

        A message that begins with the name of a code has that code. XLA's CPU plugin returns what a
        custom call failed with as `INTERNAL`, once the call of the program is over.
        """
        stated = _STATED.match(message)
        if stated is not None:
            message = message[stated.end() :]
            code = ErrorCode[stated["code"]]
        cls = _BY_CODE.get(code, PjrtError)
        return cls(message, code=code, plugin=plugin, function=function)


class Cancelled(PjrtError):
    """The operation was cancelled, typically by its caller."""

    CODE = ErrorCode.CANCELLED


class Unknown(PjrtError):
    """The plugin reported an error without a category."""

    CODE = ErrorCode.UNKNOWN


class InvalidArgument(PjrtError):
    """The plugin refused an argument regardless of the state of the system."""

    CODE = ErrorCode.INVALID_ARGUMENT


class DeadlineExceeded(PjrtError):
    """A deadline passed before the operation finished."""

    CODE = ErrorCode.DEADLINE_EXCEEDED


class NotFound(PjrtError):
    """Something that was asked for does not exist (a device, a custom call, ...)."""

    CODE = ErrorCode.NOT_FOUND


class AlreadyExists(PjrtError):
    """Something that was to be created is there already."""

    CODE = ErrorCode.ALREADY_EXISTS


class PermissionDenied(PjrtError):
    """The caller may not do this."""

    CODE = ErrorCode.PERMISSION_DENIED


class ResourceExhausted(PjrtError):
    """A resource ran out: most often device memory."""

    CODE = ErrorCode.RESOURCE_EXHAUSTED


class FailedPrecondition(PjrtError):
    """The system is not in the state that the operation needs."""

    CODE = ErrorCode.FAILED_PRECONDITION


class Aborted(PjrtError):
    """The operation was aborted, for example by a concurrent one."""

    CODE = ErrorCode.ABORTED


class OutOfRange(PjrtError, IndexError):
    """The operation went past a valid range; a position in a tensor of indices, say."""

    CODE = ErrorCode.OUT_OF_RANGE


class Unimplemented(PjrtError):
    """The plugin does not implement the operation."""

    CODE = ErrorCode.UNIMPLEMENTED


class Internal(PjrtError):
    """An invariant of the plugin was broken."""

    CODE = ErrorCode.INTERNAL


class Unavailable(PjrtError):
    """The service behind the plugin is unavailable at the moment."""

    CODE = ErrorCode.UNAVAILABLE


class DataLoss(PjrtError):
    """Data was lost or corrupted for good."""

    CODE = ErrorCode.DATA_LOSS


class Unauthenticated(PjrtError):
    """The request lacks valid credentials."""

    CODE = ErrorCode.UNAUTHENTICATED


_BY_CODE: dict[int, type[PjrtError]] = {
    cls.CODE: cls for cls in PjrtError.__subclasses__() if cls.CODE is not None
}


class PluginNotFound(PjrtBridgeError, LookupError):
    """No plugin of the wanted name was discovered, or the discovered one is unavailable."""


class PluginLoadError(PjrtBridgeError, OSError):
    """A plugin's library could not be loaded, or exports no `GetPjrtApi`.

    Attributes:
        missing: names of the shared libraries that it needs and that were not found.
    """

    def __init__(self, message: str, *, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class PluginIncompatible(PjrtBridgeError):
    """The plugin's API table, or what it returned, cannot be used.

    Its API table: major version, size, a missing or garbage function. Or an output of a function
    that succeeded: NULL, or a number that contradicts the program.
    """


DEVICE_FAILURES = (PjrtError, PluginIncompatible)
"""What a plugin that fails in the middle of its work is known by: an error that it returns, or a
success without what belongs to it."""


class PluginConflict(PjrtBridgeError, ValueError):
    """Two discovered plugins claim one name, or one specification contradicts itself."""


class ArgumentError(PjrtBridgeError, TypeError):
    """An argument of a function is of a wrong kind; the object that was asked is as it was."""


class OptionError(PjrtBridgeError, ValueError):
    """An option has an unknown name, a wrong type or an impossible value."""


class VariableError(OptionError):
    """An environment variable of the bridge has an impossible value."""


class ProgramError(PjrtBridgeError, ValueError):
    """A StableHLO program cannot be parsed, verified, or expressed for the wanted version."""


class UnsupportedDtype(PjrtBridgeError, TypeError):
    """An element type has no counterpart on the other side of a border."""


class DataError(PjrtBridgeError, ValueError):
    """Host data cannot become a buffer: no array, wrong device, cannot be shared, ..."""


class SignatureMismatch(PjrtBridgeError, TypeError):
    """The arguments of a call differ from the executable's signature."""


class BufferUnavailable(PjrtBridgeError, RuntimeError):
    """The buffer was deleted, or donated to the executable that the message names."""


class ExtensionUnavailable(PjrtBridgeError, LookupError):
    """A plugin does not offer an extension, or not the part of it that is needed.

    Attributes:
        extension: name of its type.
        function: the function that is needed; None where the extension itself is absent.
        found: bytes of the plugin's extension struct; None where it has none.
        needed: bytes that the function needs; None where the extension itself is absent.
    """

    def __init__(
        self,
        message: str,
        *,
        extension: str,
        function: str | None = None,
        found: int | None = None,
        needed: int | None = None,
    ) -> None:
        super().__init__(message)
        self.extension = extension
        self.function = function
        self.found = found
        self.needed = needed


class RegistrationError(PjrtBridgeError, ValueError):
    """A custom call or a backend of JAX cannot be registered.

    Its name is taken, the plugin does not find it, or the framework takes no more.
    """


class FallbackForbidden(PjrtBridgeError, RuntimeError):
    """A graph holds what the plugin cannot run, and the user forbade the host."""


class NotExportable(PjrtBridgeError, ValueError):
    """A model cannot become a program that outlives its process.

    Attributes:
        reasons: one for each thing that stands in the way, with its source line where it has one.
    """

    def __init__(self, message: str, *, reasons: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.reasons = tuple(reasons)


class SavedModelError(PjrtBridgeError, ValueError):
    """A saved model cannot be read: the text names file, field, what was found and what needed."""


class CheckFailed(PjrtBridgeError, RuntimeError):
    """An assertion of an exported model does not hold in a call."""


class UntriedVersion(PjrtBridgeError, RuntimeError):
    """Private parts of a library would have to be changed, and its version was not tried."""


class Closed(PjrtBridgeError, RuntimeError):
    """The client, executable or event was closed."""


class ClientLost(PjrtBridgeError, RuntimeError):
    """A client whose devices wait for each other for good; `Plugin.client` gives a new one."""


class DeviceError(PjrtBridgeError, RuntimeError):
    """Torch's device `pjrt` cannot be what is asked for, or a tensor is not where it has to be."""


class ForkedProcess(PjrtBridgeError, RuntimeError):
    """A plugin was loaded before `fork`; its threads do not exist in the child process."""


class BridgeWarning(UserWarning):
    """Root of the bridge's warnings."""


class HostFallbackWarning(BridgeWarning):
    """Something that was meant for the device runs on the host; the text says what and why."""

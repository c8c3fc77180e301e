"""The functions of the table in Python, and the objects behind the pointers that they hand out.

Each module has a `SLOTS` and fills it with functions of the args struct; `table` puts them
together. An opaque pointer is a number that `OBJECTS` knows, so a pointer that was destroyed, or
never given, is an error with a sentence and not a crash.
"""

from __future__ import annotations

from collections.abc import Callable

from pjrt_bridge.abi.implement import TableFunction
from pjrt_bridge.abi.implementation_objects import Errors, Objects

OBJECTS = Objects()
"""Everything that callers hold pointers to."""

ERRORS = Errors()
"""The PJRT_Errors that callers have not destroyed."""


class Slots(dict[str, TableFunction]):
    """Functions of the table by name, without `PJRT_`."""

    def implements(self, name: str) -> Callable[[TableFunction], TableFunction]:
        """Put the decorated function into a slot."""

        def put(function: TableFunction) -> TableFunction:
            self[name] = function
            return function

        return put

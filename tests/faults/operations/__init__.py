"""The public operations of the runtime, as functions of a world.

Each prepares what it needs and returns what is to be run under a fault: a function that can be
called any number of times and gives the same plain values each time.
"""

from tests.faults.operations import buffers, clients, executables, executing
from tests.faults.operations.registry import OPERATIONS, Act, Operation

__all__ = ["OPERATIONS", "Act", "Operation", "buffers", "clients", "executables", "executing"]

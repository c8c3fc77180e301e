"""Ownership of plugin objects: handles, pins, loans, pending work, the exit of the process."""

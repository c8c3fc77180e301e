"""Exceptions by which a check ends when what its docstring says was not found to hold."""


class Fail(Exception):
    """The requirement does not hold; the text says what was found and what was expected."""


class Unsupported(Exception):
    """The plugin does not have the feature, and reports that with a proper error."""


class AbsentDevice(Exception):
    """The plugin works, but the device (or a second one) is not in this machine."""

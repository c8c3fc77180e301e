"""Functions that users name on a command line, as `package.module:name` or `file.py:name`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pjrt_bridge.errors import OptionError


def load(target: str) -> Callable[..., Any]:
    """A function or module; a class is made without arguments.

    Args:
        target: `package.module:name` or `path/to/file.py:name`; modules are also looked for in the
            working folder, and beside the file.

    Raises:
        OptionError: there is none; the text names what was looked for, and the line that raised.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise OptionError(f"found {target!r}, expected package.module:name or file.py:name")
    found: Any = _module(where)
    for part in name.split("."):
        if not hasattr(found, part):
            raise OptionError(f"{target}: {where} has no {name!r}{_callables(found)}")
        found = getattr(found, part)
    if inspect.isclass(found):
        found = found()
    if not callable(found):
        raise OptionError(f"{target} is a {type(found).__name__}, expected a function or module")
    return found  # type: ignore[no-any-return]


def _callables(module: Any) -> str:
    """The names that could have been meant, as the end of a sentence."""
    own = getattr(module, "__name__", None)
    names = [
        name
        for name, value in getattr(module, "__dict__", {}).items()
        if callable(value) and name[0] != "_" and getattr(value, "__module__", None) == own
    ]
    return f"; it has {', '.join(names[:10])}" if names else ""


def _module(where: str) -> Any:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise OptionError(f"{where}: no such file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.parent.resolve()))
        loader = spec.loader
        _imported(where, lambda: loader.exec_module(module))
        return module
    sys.path.insert(0, os.getcwd())
    return _imported(where, lambda: importlib.import_module(where))


def _imported(where: str, run: Callable[[], Any]) -> Any:
    """Import a module of the user's.

    Raises:
        OptionError: it cannot be imported; the text names the line.
    """
    try:
        return run()
    except ModuleNotFoundError as error:
        if error.name is not None and f"{where}.".startswith(f"{error.name}."):
            raise OptionError(f"{where}: no module {error.name!r} here or installed") from error
        install = f"; pip install {error.name}" if error.name in ("torch", "tensorflow") else ""
        raise OptionError(f"{where}: cannot be imported: {error}{install}") from error
    except Exception as error:
        lines = traceback.extract_tb(error.__traceback__)
        line = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else where
        raise OptionError(
            f"{where}: cannot be imported: {line}: {type(error).__name__}: {error}"
        ) from error

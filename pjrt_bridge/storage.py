"""The files that the bridge keeps for later processes: where they are, and who may write them.

Compiled programs are native code that is loaded without further questions, and what was measured
or tried decides which code runs. So the folder has to belong to the user who runs the process, and
nobody else may write to it. Folders are made with mode 0700; one that others could have written to
is neither read nor written, which a `BridgeWarning` says once. Each file is checked, too, when it
is open: it has to be a regular file of the user, of a bounded size. Anything else (a link, a pipe,
somebody else's file) is ignored, which a `BridgeWarning` says once for each file.

The variable `PJRT_BRIDGE_CACHE` names the folder; `off` keeps the bridge from writing any file.

On systems without user ids nothing is compared.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs

from pjrt_bridge import environment, user_warnings

FOLDER_VARIABLE = "PJRT_BRIDGE_CACHE"

UNFINISHED = ".new"
"""Suffix of files that are being written."""

_NAME = "pjrt_bridge"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

_warned: set[str] = set()


def is_off() -> bool:
    """Whether the user wants no file to be written."""
    return environment.names_off(FOLDER_VARIABLE)


def cache_root() -> Path | None:
    """The folder of files that can be made again; None where nothing is to be kept."""
    if is_off():
        return None
    named = environment.value(FOLDER_VARIABLE)
    return Path(named).expanduser() if named else platformdirs.user_cache_path(_NAME)


def cache_folder(name: str) -> Path | None:
    """The folder of one kind of files that can be made again; None as `cache_root`."""
    root = cache_root()
    return None if root is None else root / name


def data_folder(name: str, variable: str) -> Path | None:
    """The folder of files that the user asked for.

    Args:
        name: of the kind of files.
        variable: names another folder, or turns off that the files are used (None).
    """
    if environment.names_off(variable):
        return None
    named = environment.value(variable)
    return Path(named).expanduser() if named else platformdirs.user_data_path(_NAME) / name


def objection(folder: Path) -> str | None:
    """Why the files of a folder are not used; None where they may be, or there is no folder.

    The text says what was found, what is expected and what to do.
    """
    user = _user()
    if user is None:
        return None
    path = Path(os.path.abspath(folder))
    real = Path(os.path.realpath(path))
    with suppress(OSError):
        for part in (*reversed(path.parents), path):
            state = part.lstat()
            if stat.S_ISLNK(state.st_mode) and state.st_uid not in (0, user):
                return (
                    f"{part} is a symbolic link of {_name_of(state.st_uid)}, {_EXPECTED}{_ADVICE}"
                )
    own = {real, *(Path(os.path.realpath(top)) for top in _tops() if top in path.parents)}
    with suppress(OSError):
        for part in (*reversed(real.parents), real):
            state = part.stat()
            if not stat.S_ISDIR(state.st_mode):
                return f"{part} is no folder, {_EXPECTED}{_ADVICE}"
            found = _unsafe(part, state, user, own=part in own)
            if found is not None:
                return found
    return None


def is_trusted(folder: Path) -> bool:
    """Whether nobody else could have written the files of a folder; warns once where they could."""
    found = objection(folder)
    if found is not None and found not in _warned:
        _warned.add(found)
        user_warnings.warn(f"files in {folder} are not used: {found}")
    return found is None


def read(path: Path, limit: int, *, start: bytes = b"") -> bytes | None:
    """The contents of a file; None where there is none, or where it is not used.

    Used is a regular file of this process's user that nobody else can write to. Of anything else
    no byte is read, and a `BridgeWarning` says so once.

    Args:
        path: of the file.
        limit: bytes that it may have.
        start: bytes that it has to begin with; they are no part of what is returned. Of a file that
            begins otherwise nothing else is read.
    """
    if not is_trusted(path.parent):
        return None
    flags = os.O_RDONLY
    # Without O_NONBLOCK a pipe would be waited for.
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _ignore(path, f"it cannot be opened: {error.strerror}", limit)
        return None
    try:
        state = os.fstat(handle)
        found = _unusable(state, limit)
        if found is None:
            with open(handle, "rb", closefd=False) as file:
                if file.read(len(start)) == start:
                    return file.read(state.st_size - len(start))
            found = "it is damaged, or was put in the place of another file"
    except OSError as error:
        found = f"it cannot be read: {error.strerror}"
    finally:
        os.close(handle)
    _ignore(path, found, limit)
    return None


def write(path: Path, data: bytes) -> bool:
    """Write a file, whole or not at all; whether it is there now.

    Nothing is written where the user wants no files, or where others may write. The file is a
    renamed one, so readers see either no file or all of it.
    """
    if is_off() or not is_trusted(path.parent):
        return False
    try:
        _make(path.parent)
        if not is_trusted(path.parent):
            return False
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError:
        return False
    return True


def _unusable(state: os.stat_result, limit: int) -> str | None:
    """Why an open file is not used; None where it is."""
    if not stat.S_ISREG(state.st_mode):
        return "it is no regular file"
    user = _user()
    if user is not None and state.st_uid != user:
        return f"it belongs to {_name_of(state.st_uid)}"
    mode = stat.S_IMODE(state.st_mode)
    if user is not None and mode & _WRITABLE_BY_OTHERS:
        return f"it has mode {mode:04o}, so others can write to it"
    return f"it has {state.st_size} bytes" if state.st_size > limit else None


def _ignore(path: Path, reason: str, limit: int) -> None:
    if str(path) not in _warned:
        _warned.add(str(path))
        user_warnings.warn(
            f"{path} is not used: {reason}; expected a regular file of this process's user of at "
            f"most {limit} bytes, as the bridge writes them. It is safe to delete it"
        )


_EXPECTED = "expected a folder of this process's user that nobody else can write to; "
_ADVICE = (
    f"name one in {FOLDER_VARIABLE} (for calibrations in PJRT_BRIDGE_CALIBRATION), or keep no "
    f"files: {FOLDER_VARIABLE}=off"
)


def _tops() -> tuple[Path, ...]:
    """Folders of the bridge above those that hold files."""
    root = cache_root()
    data = platformdirs.user_data_path(_NAME)
    return (data,) if root is None else (data, Path(os.path.abspath(root)))


def _unsafe(path: Path, state: os.stat_result, user: int, *, own: bool) -> str | None:
    """What is wrong with a file or folder of the bridge, or with a folder above it."""
    mode = stat.S_IMODE(state.st_mode)
    if not own:
        # Whoever can write to a folder can rename what is in it, unless the sticky bit is set.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return (
                f"{path} has mode {mode:04o}, so everybody can replace what is in it, "
                f"{_EXPECTED}{_ADVICE}"
            )
        return None
    if state.st_uid != user:
        return f"{path} belongs to {_name_of(state.st_uid)}, {_EXPECTED}{_ADVICE}"
    if mode & _WRITABLE_BY_OTHERS:
        return (
            f"{path} has mode {mode:04o}, so others can write to it, {_EXPECTED}run "
            f"`chmod 700 {path}` if all that is in it is yours, or {_ADVICE}"
        )
    return None


def _user() -> int | None:
    return os.geteuid() if hasattr(os, "geteuid") else None


def _name_of(user: int) -> str:
    # There is no such module on systems without user ids.
    import pwd

    try:
        return f"user {pwd.getpwuid(user).pw_name!r}"
    except KeyError:
        return f"user {user}"


def _make(folder: Path) -> None:
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)

"""Files that hold keys or events: only this user may read them, whatever directory they are in.

A file gets its mode when it is created. Changing the mode afterwards would leave a moment in which
another user can open the file, and an open file stays readable.

    key, connection string -> create_private, append_private, private_opener -> file of mode 0600
    status, order of a state -> replace_private                              -> file of mode 0600
    data of a stage -> create_private_folder                               -> folder of mode 0700
                       ^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
OTHERS = 0o077  # the permissions of the group and of all other users


def create_private(path: Path) -> int:
    """A descriptor of a new, empty file. An existing file of this name is removed first.

    It is not reused: another user may have opened it while it was readable, or may own it.
    """
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)


def append_private(path: Path) -> int:
    """A descriptor that appends to the file, which is created if it is missing."""
    # A link could lead to a file of another user.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE)
    os.fchmod(descriptor, PRIVATE)
    return descriptor


def private_opener(path: str, flags: int) -> int:
    """For `open(..., opener=)`: a new file is private, one that exists keeps its mode."""
    return os.open(path, flags, PRIVATE)


def replace_private(path: Path, data: bytes) -> None:
    """Replace a file atomically: other processes read the old content or the new one.

    If it cannot be written, the old content stays.
    """
    draft = path.with_name(f".{path.name}")
    try:
        with open(create_private(draft), "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def create_private_folder(path: Path) -> None:
    """Create a folder, and each of its parents that is missing; one that exists keeps its mode."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def make_private(path: Path) -> int | None:
    """Remove the permissions of other users; returns the old mode if there were any.

    The keys in a file that others could read may be known to them.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & OTHERS:
        return None
    with suppress(PermissionError):  # the file belongs to another user
        path.chmod(mode & ~OTHERS)
    return mode

"""Small files and directories that survive a crash, and keep their old content after an error.

A file is durable after three steps: its content is synced, its name is in its directory, and the
directory is synced. Any of them can fail, for example on a full disk.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from pumphouse.private_files import create_private

# The errors of file systems that have no hard links or forbid them.
NO_HARD_LINKS = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class OldContentLost(OSError):
    """A file could not be replaced, and its old content could not be put back."""


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: without this a crash may lose a new file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path, levels: int | None = None) -> None:
    """Create a directory and its missing parents; each is durable in its parent.

    `levels` is the largest number to create: FileNotFoundError if more are missing.
    """
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing[:levels]):
        directory.mkdir(exist_ok=True, mode=0o700)
        # A directory that we may write to but not list cannot be synced.
        with suppress(PermissionError):
            sync_directory(directory.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step: a crash leaves either the old or the new content."""
    temporary_path = path.with_name(path.name + ".new")
    try:
        write_synced(temporary_path, data)
        os.replace(temporary_path, path)
    except OSError:
        remove(temporary_path)
        raise
    sync_directory(path.parent)


def write_or_keep(path: Path, data: bytes) -> None:
    """`write_atomically`, but after an OSError the file has its old content, also for a restart.

    The last step of a replacement, the sync of the directory, can fail when the file is replaced
    already. The old content is therefore kept under another name until then: a rename puts it back,
    which needs no space. OldContentLost if that fails too.
    """
    kept_path = path.with_name(path.name + ".old")
    existed = path.exists()
    if existed:
        keep(path, kept_path)
    try:
        write_atomically(path, data)
    except OSError as failure:
        put_back(path, kept_path if existed else None, failure)
        raise
    finally:
        remove(kept_path)


def keep(path: Path, kept_path: Path) -> None:
    """Give the content of a file a second name, or copy it if the file system has no hard links."""
    remove(kept_path)
    try:
        os.link(path, kept_path)
    except OSError as failure:
        if failure.errno not in NO_HARD_LINKS:
            raise
        write_copy(path, kept_path)


def write_copy(path: Path, copy: Path) -> None:
    """Copy a file to a new name; nothing is left of a copy that fails."""
    data = path.read_bytes()
    try:
        write_synced(copy, data)
    except OSError:
        remove(copy)
        raise


def put_back(path: Path, kept_path: Path | None, failure: OSError) -> None:
    """Undo a replacement, whether it has happened or not; None: there was no file before."""
    try:
        if kept_path is not None:
            os.replace(kept_path, path)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        raise OldContentLost(failure.errno, failure.strerror) from failure
    with suppress(OSError):  # a restart finds the old content, except after a machine crash
        sync_directory(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read, and sync its content."""
    fd = create_private(path)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Remove a file if it exists; one that cannot be removed is overwritten later."""
    with suppress(OSError):
        path.unlink(missing_ok=True)

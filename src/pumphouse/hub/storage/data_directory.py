"""The data directory of a durable hub, locked so that only one process uses it.

    DIR/lock             locked by the process that runs the hub
    DIR/namespace.json   hubs, consumer groups, access rules (with keys: mode 0600)
    DIR/hubs/ID/N/       the segments of partition N of the hub with that id

A hub gets a random id when it is created. A hub that is deleted and created again under the same
name therefore never uses the old files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pumphouse.errors import ChangeNotStored, DataDirectoryError
from pumphouse.forks import close_in_child
from pumphouse.hub.disk_errors import is_full, todo
from pumphouse.hub.storage.durable_files import OldContentLost, make_directory, write_or_keep
from pumphouse.hub.storage.records import (
    NamespaceRecord,
    checksum,
    decode_namespace,
    encode_namespace,
    verify_checksum,
)
from pumphouse.logs import line
from pumphouse.private_files import make_private

log = logging.getLogger("pumphouse.hub")

DELETED = ".deleted"  # suffix of a hub's directory while it is being deleted


class DirectoryLost(OSError):
    """The path does not lead to the directory that this process has locked."""

    def __init__(self) -> None:
        text = "the data directory was moved, deleted or replaced while the hub was running"
        super().__init__(errno.ENOENT, text)


class DataDirectory:
    """A data directory, locked until `close`."""

    def __init__(self, path: Path) -> None:
        try:
            # Absolute, so that a later change of the working directory has no effect.
            self.path = path.absolute()
            make_directory(path)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as failure:
            what_to_do = todo(failure, "choose another one")
            raise DataDirectoryError(
                f"data directory {path} cannot be used: {failure.strerror}; {what_to_do}"
            ) from None
        self.take_lock()
        close_in_child(self)

    def take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock)
            raise DataDirectoryError(
                f"data directory {self.path} is in use by process {holder}; "
                "stop that hub, or give this one another directory"
            ) from None
        # The process id is only for the error above. A full disk causes a clearer error at a save.
        with suppress(OSError):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def verify(self) -> None:
        """DirectoryLost unless the path still leads to the directory that was opened.

        It compares the lock file at the path with the one that this process holds. Callable from
        every thread.
        """
        try:
            present = os.stat(self.path / "lock")
        except (FileNotFoundError, NotADirectoryError):
            raise DirectoryLost from None
        if not os.path.samestat(present, os.fstat(self._lock)):
            raise DirectoryLost

    def close(self) -> None:
        """Release the lock; in a forked child, close only its copy of the descriptor.

        A second call must not close the descriptor again: it may be reused.
        """
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def partition(self, hub_id: str, number: int) -> Path:
        return self.path / "hubs" / hub_id / str(number)

    def delete_hub(self, hub_id: str) -> None:
        """Remove a hub's events. The rename lets a later start complete an interrupted deletion."""
        hubs = self.path / "hubs"
        directory, renamed = hubs / hub_id, hubs / f"{hub_id}{DELETED}"
        if directory.exists():
            directory.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)

    def unknown_entries(self, known: Sequence[str]) -> list[str]:
        """The names below hubs/ that are not ids of known hubs."""
        hubs = self.path / "hubs"
        return (
            sorted(p.name for p in hubs.iterdir() if p.name not in known) if hubs.is_dir() else []
        )

    # -- hubs, groups and rules -------------------------------------------------------------------

    def load(self) -> NamespaceRecord | None:
        """The last saved record; None in a new directory."""
        path = self.path / "namespace.json"
        if not path.exists():
            if self.unknown_entries([]):
                raise DataDirectoryError(
                    f"{self.path} holds events but no namespace.json, which lists their hubs; "
                    "restore that file, or start with an empty directory"
                )
            return None
        warn_if_exposed(path)
        try:
            data = json.loads(path.read_text())
            verify_checksum(data)
            return decode_namespace(data)
        except (OSError, ValueError, KeyError, TypeError) as failure:
            raise DataDirectoryError(
                f"{path} cannot be read ({type(failure).__name__}: {failure}); "
                "restore it, or start with an empty directory"
            ) from None

    def save(self, record: NamespaceRecord) -> None:
        """Store a record durably; ChangeNotStored if that fails, and the old one is kept."""
        data = encode_namespace(record)
        text = json.dumps({**data, "crc32": checksum(data)}, indent=2)
        try:
            self.verify()
            write_or_keep(self.path / "namespace.json", text.encode())
        except OSError as failure:
            raise not_stored(self.path, failure) from failure


def warn_if_exposed(path: Path) -> None:
    """Make a file with keys private. A key that others could read may be known to them."""
    mode = make_private(path)
    if mode is not None:
        todo = "change the keys in it if other users have access to this machine"
        log.warning("%s", line("key_file_exposed", file=path, mode=f"{mode:o}", todo=todo))


def not_stored(path: Path, failure: OSError) -> ChangeNotStored:
    outcome = "nothing was changed"
    if isinstance(failure, OldContentLost):
        outcome = "the change is not in effect, but a restart may show it"
    text = (
        f"namespace.json cannot be written ({failure.strerror}): {outcome}; "
        f"{todo(failure)}, then retry"
    )
    return ChangeNotStored(str(path), text, disk_full=is_full(failure))

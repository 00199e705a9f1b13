"""A disk whose n-th operation on a data directory fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NO_FAILURE = 1_000_000


class FailingDisk:
    """Counts the operations below a directory, and makes one of them or all later ones fail.

    The operations are those that store a small file: open, write, fsync, link, replace. Partitions
    are written with other ones (pwrite, fdatasync), which work.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = str(directory)
        self.error = errno.ENOSPC
        self.fail_at = NO_FAILURE
        self.for_good = False  # whether all later writes and syncs fail too
        self.done: list[str] = []
        self.failed = ""  # the operation that failed first
        self._fds: dict[int, str] = {}
        for name in ("open", "write", "fsync", "link", "replace"):
            monkeypatch.setattr(os, name, self.watched(name, getattr(os, name)))

    def fail(self, at: int, error: int = errno.ENOSPC, for_good: bool = False) -> None:
        self.fail_at, self.error, self.for_good = at, error, for_good
        self.done, self.failed = [], ""

    def repair(self) -> None:
        self.fail_at = NO_FAILURE

    def watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *args: Any, **options: Any) -> Any:
            path = self._fds.get(target, "") if isinstance(target, int) else os.fspath(target)
            if str(path).startswith(self.directory):
                self.count(name, Path(path).name)
            result = real(target, *args, **options)
            if name == "open":
                self._fds[result] = str(path)
            return result

        return call

    def count(self, name: str, file: str) -> None:
        number = len(self.done)
        self.done.append(f"{name} {file}")
        # A full or broken disk can still rename a file, and open one that exists.
        later = self.for_good and number > self.fail_at and name in ("write", "fsync")
        if number == self.fail_at or later:
            self.failed = self.failed or self.done[-1]
            raise OSError(self.error, os.strerror(self.error))

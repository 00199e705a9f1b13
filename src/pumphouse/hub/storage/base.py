"""The storage of a namespace, in memory or in a data directory, and the protocol of a log.

The namespace opens logs, and reports changes of hubs, groups and rules, which a data directory
stores.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pumphouse.errors import AmqpError
from pumphouse.events import Position
from pumphouse.hub.annotations import Batch
from pumphouse.hub.options import ALWAYS, Retention
from pumphouse.hub.storage.data_directory import DELETED, DataDirectory, NamespaceRecord
from pumphouse.hub.storage.disk_log import DiskLog
from pumphouse.hub.storage.memory_log import MemoryLog
from pumphouse.hub.storage.run import Run
from pumphouse.hub.storage.writer import Writer
from pumphouse.logs import line

log = logging.getLogger("pumphouse.hub")

Committed = Callable[[AmqpError | None], None]


class Log(Protocol):
    """The events of one partition."""

    begin: int  # the oldest sequence number that is kept
    next_sequence: int  # one above the newest readable one
    last_offset: int  # -1 if nothing was ever written
    last_ms: int
    size: int

    @property
    def empty(self) -> bool: ...

    def publish(
        self, batch: Batch, now_ms: int, publisher: str | None, committed: Committed
    ) -> None:
        """Append a batch; `committed` is called after it is safe and readable, or has failed."""

    def read(self, sequence: int, count_max: int, bytes_max: int) -> Run | None:
        """Events from a sequence number on; None at the end."""

    def locate(self, position: Position) -> int:
        """The sequence number at which reading from a position starts."""

    def expire(self, now_ms: int) -> None: ...

    def close(self) -> None: ...


class Storage(Protocol):
    """Stores the logs of a namespace, and its record: hubs, groups and rules."""

    def new_hub_id(self) -> str: ...

    def open_log(self, hub_id: str, partition: int, retention: Retention) -> Log: ...

    def delete_hub(self, hub_id: str) -> None: ...

    def load(self) -> NamespaceRecord | None: ...

    def save(self, record: Callable[[], NamespaceRecord]) -> None:
        """Store the record after a change. `record` is called only if it is needed."""

    def close(self) -> None: ...


class MemoryStorage:
    """Keeps everything in memory, until the process ends."""

    def new_hub_id(self) -> str:
        return ""

    def open_log(self, hub_id: str, partition: int, retention: Retention) -> Log:
        return MemoryLog(retention)

    def delete_hub(self, hub_id: str) -> None:
        """Nothing to delete: the logs belong to the hub."""

    def load(self) -> NamespaceRecord | None:
        return None

    def save(self, record: Callable[[], NamespaceRecord]) -> None:
        """Nothing to store."""

    def close(self) -> None:
        """Nothing to close."""


class DiskStorage:
    """A data directory, with one writer for all logs in it."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, sync: str = ALWAYS) -> None:
        self.directory = DataDirectory(path)
        self.writer = Writer(loop, sync)

    def new_hub_id(self) -> str:
        return uuid.uuid4().hex

    def open_log(self, hub_id: str, partition: int, retention: Retention) -> Log:
        directory = self.directory.partition(hub_id, partition)
        disk_log = DiskLog(directory, bytes.fromhex(hub_id), partition, retention, self.writer)
        for problem in disk_log.open():
            todo = "check the disk; restore a backup if events are missing"
            report = line(
                "log_damaged", hub=hub_id, partition=partition, problem=problem, todo=todo
            )
            log.warning("%s", report)
        return disk_log

    def delete_hub(self, hub_id: str) -> None:
        self.directory.delete_hub(hub_id)

    def load(self) -> NamespaceRecord | None:
        record = self.directory.load()
        known_ids = [hub.id for hub in record.hubs] if record is not None else []
        for name in self.directory.unknown_entries(known_ids):
            if name.endswith(DELETED):
                log.info("%s", line("hub_deletion_completed", directory=name))
                self.directory.delete_hub(name.removesuffix(DELETED))
            else:
                todo = "not in namespace.json: move it away if not needed"
                log.warning("%s", line("directory_unknown", directory=name, todo=todo))
        return record

    def save(self, record: Callable[[], NamespaceRecord]) -> None:
        self.directory.save(record())

    def close(self) -> None:
        self.writer.stop()
        self.directory.close()

"""Where a namespace keeps its events: in memory, or in a data directory.

The namespace asks for logs and says when hubs, groups or rules have changed; whether that is
written down is decided here.
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
from pumphouse.hub.storage.data_directory import DELETED, DataDirectory, NamespaceRecord
from pumphouse.hub.storage.disk_log import DiskLog
from pumphouse.hub.storage.memory_log import PartitionLog, Retention, Run
from pumphouse.hub.storage.writer import ALWAYS, Writer

log = logging.getLogger("pumphouse.hub")

Committed = Callable[[AmqpError | None], None]


class Log(Protocol):
    """What one partition holds, wherever that is."""

    begin: int  # the oldest sequence number still there
    next_sequence: int  # of what can be read
    last_offset: int  # -1 if nothing was ever written
    last_ms: int
    size: int

    @property
    def empty(self) -> bool: ...

    def publish(
        self, batch: Batch, now_ms: int, publisher: str | None, committed: Committed
    ) -> None:
        """Append a batch; `committed` is called once it is safe and can be read, or has failed."""

    def read(self, sequence: int, count_max: int, bytes_max: int) -> Run | None:
        """Events from a sequence number on; None at the end."""

    def locate(self, position: Position) -> int:
        """The sequence number at which reading from a position starts."""

    def expire(self, now_ms: int) -> None: ...

    def close(self) -> None: ...


class Storage(Protocol):
    """Where a namespace keeps what it has."""

    def new_hub_id(self) -> str: ...

    def open_log(self, hub_id: str, partition: int, retention: Retention) -> Log: ...

    def delete_hub(self, hub_id: str) -> None: ...

    def load(self) -> NamespaceRecord | None: ...

    def save(self, record: Callable[[], NamespaceRecord]) -> None:
        """Something has changed; `record` says how all of it is now."""

    def close(self) -> None: ...


class MemoryStorage:
    """Everything is gone when the process ends."""

    def new_hub_id(self) -> str:
        return ""

    def open_log(self, hub_id: str, partition: int, retention: Retention) -> Log:
        return PartitionLog(retention)

    def delete_hub(self, hub_id: str) -> None:
        """The logs go with the hub."""

    def load(self) -> NamespaceRecord | None:
        return None

    def save(self, record: Callable[[], NamespaceRecord]) -> None:
        """Nothing is written down."""

    def close(self) -> None:
        """Nothing is open."""


class DiskStorage:
    """A data directory, with one writer for all logs in it."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, sync: str = ALWAYS) -> None:
        self.directory = DataDirectory(path)
        self.writer = Writer(loop, sync)

    def new_hub_id(self) -> str:
        return uuid.uuid4().hex

    def open_log(self, hub_id: str, partition: int, retention: Retention) -> Log:
        place = self.directory.partition(hub_id, partition)
        found = DiskLog(place, bytes.fromhex(hub_id), partition, retention, self.writer)
        for sentence in found.open():
            log.warning("recover partition=%s %s", partition, sentence)
        return found

    def delete_hub(self, hub_id: str) -> None:
        self.directory.delete_hub(hub_id)

    def load(self) -> NamespaceRecord | None:
        record = self.directory.load()
        known = [hub.id for hub in record.hubs] if record is not None else []
        for stray in self.directory.strays(known):
            if stray.endswith(DELETED):
                log.warning("recover hub=%s removing what is left of it", stray)
                self.directory.delete_hub(stray.removesuffix(DELETED))
            else:
                log.warning("recover %s belongs to no hub of namespace.json; left alone", stray)
        return record

    def save(self, record: Callable[[], NamespaceRecord]) -> None:
        self.directory.save(record())

    def close(self) -> None:
        self.writer.stop()
        self.directory.close()

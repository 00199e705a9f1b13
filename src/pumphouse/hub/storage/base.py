"""The storage of a namespace, in memory or in a data directory, and the protocol of a log.

The namespace opens logs, and reports changes of hubs, groups and rules, which a data directory
stores.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from pumphouse.errors import AmqpError, ChangeNotStored, OptionError
from pumphouse.events import Position
from pumphouse.hub.annotations import Batch
from pumphouse.hub.options import ALWAYS, QUEUE_BYTES_MAX, Retention
from pumphouse.hub.routing import check_group_name
from pumphouse.hub.storage.backlog import Backlog
from pumphouse.hub.storage.data_directory import DELETED, DataDirectory, DirectoryLost
from pumphouse.hub.storage.disk_log import DiskLog
from pumphouse.hub.storage.memory_log import MemoryLog
from pumphouse.hub.storage.records import NamespaceRecord
from pumphouse.hub.storage.run import Run
from pumphouse.hub.storage.writer import FileTask, Writer
from pumphouse.logs import line

log = logging.getLogger("pumphouse.hub")

PUT_BACK = "stop the hub, put the directory back or give its new path, then start the hub again"
LOST = (
    "The data directory of the hub was moved, deleted or replaced while the hub was running: "
    "nothing of this batch was stored. Put the directory back, or restart the hub."
)
CHECK_DISK = "free some space, or check the disk; then repeat the change"

Committed = Callable[[AmqpError | None], None]


class Log(Protocol):
    """The events of one partition."""

    begin: int  # the oldest sequence number that is kept
    next_sequence: int  # one above the newest readable one
    last_offset: int  # -1 if nothing was ever written
    last_ms: int  # when the newest event was enqueued
    size: int  # bytes

    @property
    def empty(self) -> bool: ...

    def publish(
        self, batch: Batch, now_ms: int, publisher: str | None, committed: Committed
    ) -> None:
        """Append a batch; `committed` is called after it is stored and readable, or has failed."""

    def read(self, sequence: int, count_max: int, bytes_max: int) -> Run | None:
        """Events from a sequence number on; None at the end."""

    def locate(self, position: Position) -> int:
        """The sequence number at which reading from a position starts."""

    def expire(self, now_ms: int) -> None: ...

    def close(self) -> None: ...


class Storage(Protocol):
    """Stores the logs of a namespace, and its record: hubs, groups and rules."""

    backlog: Backlog  # of the writes of all logs
    failure: AmqpError | None  # with which every send is refused

    def check(self) -> None:
        """Set or clear `failure`; called about once a second."""

    def new_hub_id(self) -> str: ...

    def open_log(self, hub_id: str, partition: int, retention: Retention) -> Log: ...

    def delete_hub(self, hub_id: str) -> None:
        """Remove the events of a hub that is not in the stored record any more."""

    def load(self) -> NamespaceRecord | None: ...

    def save(self, record: NamespaceRecord) -> None:
        """Store a changed record. ChangeNotStored if that fails: the old record is kept then."""

    def measure_syncs(self, record: Callable[[float], None]) -> None:
        """Call `record` with the seconds of every sync, in the thread that syncs."""

    def close(self) -> None: ...


class MemoryStorage:
    """Keeps everything in memory, until the process ends."""

    def __init__(self) -> None:
        self.backlog = Backlog()  # nothing waits
        self.failure: AmqpError | None = None

    def check(self) -> None:
        """Memory does not fail."""

    def new_hub_id(self) -> str:
        return ""

    def open_log(self, hub_id: str, partition: int, retention: Retention) -> Log:
        return MemoryLog(retention)

    def delete_hub(self, hub_id: str) -> None:
        """Nothing to delete: the logs belong to the hub."""

    def load(self) -> NamespaceRecord | None:
        return None

    def save(self, record: NamespaceRecord) -> None:
        """Nothing to store."""

    def measure_syncs(self, record: Callable[[float], None]) -> None:
        """Nothing is synced."""

    def close(self) -> None:
        """Nothing to close."""


class DiskStorage:
    """A data directory, with one writer for all logs in it."""

    def __init__(
        self,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        sync: str = ALWAYS,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        self.directory = DataDirectory(path)
        self.backlog = Backlog(queue_bytes_max)
        verify = self.directory.verify
        self.writer = Writer(loop, sync, backlog=self.backlog, verify=verify)
        self.opened = False  # whether a record has been stored
        self.failure: AmqpError | None = None

    def check(self) -> None:
        """Refuse every send while the data directory is not at its path."""
        path = self.directory.path
        try:
            self.directory.verify()
        except DirectoryLost as lost:
            if self.failure is None:
                report = line(
                    "data_directory_lost", directory=path, error=lost.strerror, todo=PUT_BACK
                )
                log.error("%s", report)
                self.failure = AmqpError("amqp:internal-error", LOST)
        except OSError:
            pass  # the disk fails: writes report it
        else:
            if self.failure is not None:
                log.info("%s", line("data_directory_back", directory=path))
            self.failure = None

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
        # On the writer's thread, after the last writes to the files, and not on the event loop: a
        # large hub takes a while.
        self.writer.put(FileTask(lambda: self.delete_files(hub_id), lambda error: None))

    def delete_files(self, hub_id: str) -> None:
        try:
            self.directory.delete_hub(hub_id)
        except OSError as failure:
            todo = f"remove hubs/{hub_id} in the data directory"
            log.warning("%s", line("hub_files_left", hub=hub_id, error=failure, todo=todo))

    def load(self) -> NamespaceRecord | None:
        record = self.directory.load()
        known_ids = [hub.id for hub in record.hubs] if record is not None else []
        for hub, group in invalid_groups(record):
            todo = "use a group without slashes: other tools, as Event Hubs, refuse this name"
            log.warning("%s", line("group_name_invalid", hub=hub, group=group, todo=todo))
        for name in self.directory.unknown_entries(known_ids):
            if name.endswith(DELETED):
                log.info("%s", line("hub_deletion_completed", directory=name))
                self.directory.delete_hub(name.removesuffix(DELETED))
            else:
                todo = "not in namespace.json: move it away if not needed"
                log.warning("%s", line("directory_unknown", directory=name, todo=todo))
        return record

    def save(self, record: NamespaceRecord) -> None:
        try:
            self.directory.save(record)
        except ChangeNotStored as failure:
            if self.opened:  # otherwise the start fails, and its caller gets the error
                log.error("%s", line("change_not_stored", directory=self.directory.path,
                                     error=failure.description, todo=CHECK_DISK))  # fmt: skip
            raise
        self.opened = True

    def measure_syncs(self, record: Callable[[float], None]) -> None:
        self.writer.on_sync = record

    def close(self) -> None:
        self.writer.stop()
        self.directory.close()


def invalid_groups(record: NamespaceRecord | None) -> Iterator[tuple[str, str]]:
    """Hub and name of the groups that could not be created with this version."""
    for hub in record.hubs if record is not None else ():
        for group in hub.groups:
            try:
                check_group_name(group)
            except OptionError:
                yield hub.name, group

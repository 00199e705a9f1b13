"""The driver of a tenant, called as Spark calls it: plan, journal, run, commit; and crashes.

`CheckpointFolder` stands for Spark's checkpoint folder, and outlives the query. Tasks are pickled,
as they are on their way to executors, and read with the code of the source.
"""

from __future__ import annotations

import json
import pickle
import time
from dataclasses import dataclass, field
from typing import Any

from pumphouse.spark.driver.base import ColumnSelection
from pumphouse.spark.options import read_source
from pumphouse.spark.source import read_task_partition
from pumphouse.spark.tenancy.driver import TenantDriver
from pumphouse.spark.tenancy.host import TenantHost
from tests.spark.support.waiting import until

COLUMNS = ColumnSelection(("partition", "sequenceNumber"))

Row = tuple[str, int]  # partition, sequence number


@dataclass
class CheckpointFolder:
    """What Spark keeps: the end of each batch and how many are committed; and the output."""

    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    rows: list[Row] = field(default_factory=list)

    @property
    def batch(self) -> int:
        return len(self.offsets) - 1


class Query:
    """One run of a query."""

    def __init__(self, folder: CheckpointFolder, connection: str, **options: str) -> None:
        given = {
            "connectionString": connection,
            "startingPosition": "earliest",
            "assignment": "steady",
            "leaseDuration": "4s",
            "renewInterval": "500ms",
            "cycleInterval": "200ms",
        }
        source = read_source(given | options, streaming=True, now_ms=int(time.time() * 1000))
        assert source.tenancy is not None
        self.folder, self.driver = folder, TenantDriver(source, source.tenancy)
        self._ended = False
        self._initial = json.dumps(self.driver.initial_offset())
        if len(folder.offsets) > folder.committed:  # Spark replays a batch without a commit
            self.run()

    @property
    def host(self) -> TenantHost:
        assert self.driver.host is not None, "the first batch starts the host"
        return self.driver.host

    # -- what Spark does --------------------------------------------------------------------------

    def offset(self, batch: int) -> dict[str, Any]:
        offset: dict[str, Any] = json.loads(
            self._initial if batch < 0 else self.folder.offsets[batch]
        )
        return offset

    def plan(self) -> bool:
        """Journal the next batch, if there is one."""
        assert len(self.folder.offsets) == self.folder.committed
        start = self.offset(self.folder.batch)
        end = self.driver.latest_offset(start, 1000)
        if end == start:
            return False
        self.folder.offsets.append(json.dumps(end))
        return True

    def read(self) -> list[Row]:
        """Run the tasks of the batch, without a commit."""
        batch = self.folder.batch
        tasks = self.driver.tasks(self.offset(batch - 1), self.offset(batch), COLUMNS)
        rows: list[Row] = []
        for task in pickle.loads(pickle.dumps(tasks)):
            for record_batch in read_task_partition(task):
                columns = (column.to_pylist() for column in record_batch.columns)
                rows += zip(*columns, strict=True)
        return rows

    def commit(self, rows: list[Row]) -> None:
        self.folder.rows += rows
        self.folder.committed += 1

    def run(self) -> list[Row]:
        rows = self.read()
        self.commit(rows)
        return rows

    def step(self) -> list[Row]:
        """One trigger."""
        return self.run() if self.plan() else []

    def drain(self, count: int) -> None:
        """Run until the output has `count` rows, and Spark has planned an empty batch."""
        until(lambda: not self.step() and len(self.folder.rows) >= count)

    # -- the end ----------------------------------------------------------------------------------

    def stop(self) -> None:
        self._ended = True
        self.driver.close()

    def crash(self) -> None:
        """End as kill -9 does, except that the sockets are closed."""
        if self._ended:
            return
        self._ended = True
        host, self.driver.host = self.driver.host, None
        if host is not None:
            host.thread.close(host.stop_engine(abandon=True))
        self.driver.close()

    # -- state ------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """The tenancy in the progress of the query."""
        nothing: dict[str, Any] = {"owns": {}, "leaving": [], "lost": []}
        report: dict[str, Any] = self.driver.report().get("@tenancy", nothing)
        return report

    def owned(self) -> set[str]:
        return set(self.report()["owns"])

    def freeze(self, seconds: float) -> None:
        """Block the thread of the host, as SIGSTOP does."""
        self.host.thread.loop.call_soon_threadsafe(time.sleep, seconds)

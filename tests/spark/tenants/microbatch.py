"""Spark's side of a source, without Spark: plan, journal, run, commit, in its order; and crashes.

What Spark keeps in its checkpoint folder is a `Folder` here, and outlives the query. Tasks are
pickled, as they are on their way to executors, and read by the source's own code.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pumphouse.spark.options import read_source
from pumphouse.spark.source import ColumnSelection, read_task_partition
from pumphouse.spark.tenancy.driver import TenantDriver
from pumphouse.spark.tenancy.tenant import Tenant

UNTIL_S = 100
COLUMNS = ColumnSelection(("partition", "sequenceNumber"))

Row = tuple[str, int]  # partition, sequence number


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UNTIL_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass
class Folder:
    """What Spark has written down: where each batch ends, how many are done; and what came out."""

    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    rows: list[Row] = field(default_factory=list)

    @property
    def batch(self) -> int:
        return len(self.offsets) - 1


class Query:
    """One run of a query."""

    def __init__(self, folder: Folder, connection: str, **options: str) -> None:
        given = {
            "connectionString": connection,
            "startingPosition": "earliest",
            "assignment": "steady",
            "leaseDuration": "4s",
            "renewInterval": "500ms",
            "cycleInterval": "200ms",
        }
        found = read_source(given | options, streaming=True, now_ms=int(time.time() * 1000))
        assert found.tenancy is not None
        self.folder, self.driver = folder, TenantDriver(found, found.tenancy)
        self._ended = False
        self._initial = json.dumps(self.driver.initial())
        if len(folder.offsets) > folder.committed:  # Spark replays what it has not committed
            self.run()

    @property
    def tenant(self) -> Tenant:
        assert self.driver._tenant is not None
        return self.driver._tenant

    # -- as Spark does it -------------------------------------------------------------------------

    def offset(self, batch: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self._initial if batch < 0 else self.folder.offsets[batch]
        )
        return found

    def plan(self) -> bool:
        """Whether there is another batch; it is journalled then."""
        assert len(self.folder.offsets) == self.folder.committed
        start = self.offset(self.folder.batch)
        end = self.driver.latest(start, 1000)
        if end == start:
            return False
        self.folder.offsets.append(json.dumps(end))
        return True

    def read(self) -> list[Row]:
        """Run the tasks of the batch; nothing is committed."""
        batch = self.folder.batch
        parts = self.driver.parts(self.offset(batch - 1), self.offset(batch), COLUMNS)
        rows: list[Row] = []
        for part in pickle.loads(pickle.dumps(parts)):
            for found in read_task_partition(part):
                rows += zip(*(column.to_pylist() for column in found.columns), strict=True)
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
        """Until so many rows have come out of it, and Spark has asked for more in vain."""
        until(lambda: not self.step() and len(self.folder.rows) >= count)

    # -- the end ----------------------------------------------------------------------------------

    def stop(self) -> None:
        self._ended = True
        self.driver.close()

    def crash(self) -> None:
        """As kill -9 would end it, except that we close the sockets."""
        if self._ended:
            return
        self._ended = True
        tenant, self.driver._tenant = self.driver._tenant, None
        if tenant is not None:
            tenant.abandon()
        self.driver.close()

    # -- how it stands ----------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """What the progress says of it."""
        nothing: dict[str, Any] = {"owns": {}, "leaving": [], "lost": []}
        found: dict[str, Any] = self.driver.report().get("@tenancy", nothing)
        return found

    def owned(self) -> set[str]:
        return set(self.told()["owns"])

    def freeze(self, seconds: float) -> None:
        """Hold the tenant's thread up, as SIGSTOP would."""
        self.tenant._loop.call_soon_threadsafe(time.sleep, seconds)

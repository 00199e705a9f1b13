"""A hub, the leases of its group, and queries whose drivers are called as Spark calls them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pumphouse.leases.model import Group
from tests.spark.conftest import Hub
from tests.spark.support.waiting import until
from tests.spark.tenancy.support.lease_view import LeaseView
from tests.spark.tenancy.support.microbatch import CheckpointFolder, Query, Row

PARTITIONS = "0123"


class SharedGroup:
    """A hub, the leases of its group, and the queries that a test has started."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.store = hub, f"sqlite:///{folder}/leases.db"
        self.leases = LeaseView(self.store, Group(hub.embedded.authority, hub.name))
        self.queries: list[Query] = []
        self.sent = dict.fromkeys(PARTITIONS, 0)

    def send(self, count: int = 10) -> None:
        for partition in PARTITIONS:
            self.hub.send(*["x"] * count, partition=partition)
            self.sent[partition] += count

    def query(self, folder: CheckpointFolder, host: str, **options: str) -> Query:
        given = {"store": self.store, "host": host} | options
        query = Query(folder, self.hub.connection, **given)
        self.queries.append(query)
        return query

    def all_rows(self) -> set[Row]:
        return {(name, number) for name, sent in self.sent.items() for number in range(sent)}


@contextmanager
def shared_group(hub: Hub, folder: Path) -> Iterator[SharedGroup]:
    group = SharedGroup(hub, folder)
    try:
        yield group
    finally:
        for query in group.queries:
            query.crash()


def duplicates(*folders: CheckpointFolder) -> set[Row]:
    count = Counter(row for folder in folders for row in folder.rows)
    return {row for row, times in count.items() if times > 1}


def is_in_order(folder: CheckpointFolder) -> bool:
    """Whether the sequence numbers of each partition rise."""
    last: dict[str, int] = {}
    for partition, number in folder.rows:
        if number <= last.get(partition, -1):
            return False
        last[partition] = number
    return True


def run_together(*queries: Query, done: Callable[[], bool]) -> None:
    """Trigger the queries, each in a thread as in a process of its own, until `done`."""
    stop = threading.Event()

    def trigger(query: Query) -> None:
        while not stop.is_set():
            query.step()

    with ThreadPoolExecutor(len(queries)) as pool:
        running = [pool.submit(trigger, query) for query in queries]
        try:
            until(lambda: done() or any(each.done() for each in running))
        finally:
            stop.set()
    for each in running:
        each.result()

"""A hub, the leases of its group, and queries that are driven as Spark drives them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pumphouse.leases.model import Group

from .leases import Leases
from .microbatch import Folder, Query, Row, until

if TYPE_CHECKING:
    from tests.spark.conftest import Hub

PARTITIONS = "0123"


class House:
    """A hub, the leases of its group, and the queries that were started there."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.store = hub, f"sqlite:///{folder}/leases.db"
        self.leases = Leases(self.store, Group(hub.house.authority, hub.name))
        self.queries: list[Query] = []
        self.sent = dict.fromkeys(PARTITIONS, 0)

    def send(self, count: int = 10) -> None:
        for partition in PARTITIONS:
            self.hub.send(*["x"] * count, partition=partition)
            self.sent[partition] += count

    def query(self, folder: Folder, host: str, **options: str) -> Query:
        given = {"store": self.store, "host": host} | options
        query = Query(folder, self.hub.connection, **given)
        self.queries.append(query)
        return query

    def everything(self) -> set[Row]:
        return {(one, number) for one, sent in self.sent.items() for number in range(sent)}


@contextmanager
def house_of(hub: Hub, folder: Path) -> Iterator[House]:
    found = House(hub, folder)
    try:
        yield found
    finally:
        for query in found.queries:
            query.crash()


def repeats(*folders: Folder) -> set[Row]:
    count = Counter(row for folder in folders for row in folder.rows)
    return {row for row, times in count.items() if times > 1}


def in_order(folder: Folder) -> bool:
    """Whether the numbers of each partition rise."""
    last: dict[str, int] = {}
    for partition, number in folder.rows:
        if number <= last.get(partition, -1):
            return False
        last[partition] = number
    return True


def together(*queries: Query, done: Callable[[], bool]) -> None:
    """Trigger all of them, each in a thread as in a process of its own, until it is done."""
    enough = threading.Event()

    def trigger(query: Query) -> None:
        while not enough.is_set():
            query.step()

    with ThreadPoolExecutor(len(queries)) as pool:
        running = [pool.submit(trigger, query) for query in queries]
        try:
            until(lambda: done() or any(one.done() for one in running))
        finally:
            enough.set()
    for one in running:
        one.result()

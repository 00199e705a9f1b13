"""`pumphouse checkpoints reset` while hosts run: they continue at the new position."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pumphouse.leases.stores.sqlite.store import SqliteStore
from pumphouse.processor.engine import Engine
from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from tests.cli.orders_group import OrdersGroup

DEADLINE_S = 60.0


class RunningHost:
    """A host in a thread of its own. It has handled everything, and waits for events."""

    def __init__(self, orders: OrdersGroup, group: str) -> None:
        self.handled: dict[str, list[int]] = {"0": [], "1": []}
        self.stop = asyncio.Event()
        self.engine = Engine(
            orders.connection,
            self.serve,
            store=SqliteStore(orders.path),
            group=group,
            host="anna",
            options=ProcessorOptions(checkpoints=CheckpointPolicy(every_events=1)),
        )

    async def serve(self, partition: PartitionClient) -> None:
        async for batch in partition.batches():
            self.handled[partition.id] += [event.sequence or 0 for event in batch]

    async def main(self) -> None:
        self.loop = asyncio.get_running_loop()
        async with self.engine:
            await self.stop.wait()

    def until_handled(self, partition: str, *sequences: int) -> None:
        self.until(lambda: self.handled[partition] == list(sequences))

    def until(self, condition: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < give_up_s, self.handled
            time.sleep(0.02)


@contextmanager
def running(orders: OrdersGroup, group: str = "$Default") -> Iterator[RunningHost]:
    host = RunningHost(orders, group)
    thread = threading.Thread(target=lambda: asyncio.run(host.main()))
    thread.start()
    try:
        for partition in ("0", "1"):
            host.until_handled(partition, *range(10))
        # A checkpoint that is still being written would be the start of a shift.
        host.until(lambda: all(row.sequence == 9 for row in orders.stored(group).values()))
        yield host
    finally:
        host.loop.call_soon_threadsafe(host.stop.set)
        thread.join(DEADLINE_S)


@pytest.mark.parametrize("to", ["seq:7", "earliest", "time:1"])
def test_a_running_host_follows_a_reset(
    to: str, orders: OrdersGroup, caplog: pytest.LogCaptureFixture
) -> None:
    first = 7 if to == "seq:7" else 0
    with caplog.at_level(logging.INFO, "pumphouse.processor"), running(orders) as host:
        done = orders.run("checkpoints", "reset", "--to", to, "-p", "0", "--execute")
        assert done.exit_code == 0, done.stderr
        assert "Running hosts continue at the new position: anna." in done.stderr
        host.until_handled("0", *range(10), *range(first, 10))
        host.until_handled("1", *range(10))
    position = first - 1 if first else "beginning"
    line = f"checkpoint_moved host=anna partition=0 sequence=9 to={position}"
    assert line in [record.getMessage() for record in caplog.records]
    assert orders.stored()["0"].sequence == 9


def test_a_running_host_follows_a_shift(orders: OrdersGroup) -> None:
    with running(orders) as host:
        done = orders.run("checkpoints", "reset", "--shift-by", "-3", "--execute")
        assert done.exit_code == 0, done.stderr
        for partition in ("0", "1"):
            host.until_handled(partition, *range(10), *range(7, 10))


def test_a_preview_does_not_disturb_a_host_of_another_group(
    orders: OrdersGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """The events are read in the group $Default, which has no reader."""
    orders.hub.create_group("orders", "readers")
    with caplog.at_level(logging.INFO, "pumphouse.processor"), running(orders, "readers") as host:
        preview = orders.run("checkpoints", "reset", "--to", "seq:4", "--group", "readers")
        assert preview.stderr == "Preview only. Add --execute to write the changes.\n"
        assert host.engine.reporter.counts["receive_failed"] == 0

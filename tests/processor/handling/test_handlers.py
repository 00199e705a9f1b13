"""Handlers that raise, hang, or run in threads, and the poison policy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pumphouse.client.factory import open_client
from pumphouse.clock import SystemClock
from pumphouse.errors import HandlerStuck, OptionError, PoisonEvent, PumphouseError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.dead_letters import (
    DeadLetter,
)
from pumphouse.processor.engine import Engine
from pumphouse.processor.handlers import Handler, Handling
from pumphouse.processor.handling.threads import is_async
from pumphouse.processor.options import CheckpointPolicy, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.reporting import Reporter
from tests.processor.support.virtual_time import LoopClock, run

OPTIONS = ProcessorOptions(
    checkpoints=CheckpointPolicy(every_events=1), poison=PoisonPolicy(then="skip")
)
BAD = b"bad"


class HandlerHost:
    """One host, one handler, one hub with partitions 0 and 1."""

    def __init__(
        self, handler: Handler, options: ProcessorOptions = OPTIONS, **settings: Any
    ) -> None:
        self.handler, self.options, self.settings = handler, options, settings
        self.clock = LoopClock()
        self.errors: list[tuple[str | None, Exception]] = []
        self.stack = AsyncExitStack()

    async def __aenter__(self) -> HandlerHost:
        self.hub = await self.stack.enter_async_context(EmbeddedHub({"eh": 2, "dead": 1}))
        self.client = await self.stack.enter_async_context(
            open_client(self.hub.connection_string("eh"))
        )
        reporter = Reporter("a", self.settings.pop("report", self.failed))
        dead_letters = self.settings.pop("dead_letters", None)
        if callable(dead_letters):
            dead_letters = dead_letters(self.hub)
        handling = Handling(
            self.handler, self.options, reporter, dead_letters=dead_letters, rng=Random(1)
        )
        self.stack.push_async_callback(handling.close)
        self.engine = Engine(
            self.hub.connection_string("eh"),
            handling.serve,
            store=MemoryStore(self.settings.get("clock", self.clock)),
            strategy="greedy",
            host="a",
            options=self.options,
            **{"clock": self.clock, "on_error": self.failed, **self.settings},
        )
        await self.stack.enter_async_context(self.engine)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stack.aclose()

    def failed(self, partition: str | None, error: Exception) -> None:
        self.errors.append((partition, error))

    async def send(self, *bodies: bytes, partition: str = "0") -> None:
        sender = await self.client.sender(partition)
        await sender.send([Event(body) for body in bodies])

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(600):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.25)

    async def checkpoint(self, partition: str = "0") -> int | None:
        marks = await self.engine.store.list_checkpoints(self.engine.group)
        return next((m.sequence for m in marks if m.partition == partition), None)

    async def until_checkpoint(self, sequence: int, partition: str = "0") -> None:
        async with asyncio.timeout(600):
            while await self.checkpoint(partition) != sequence:  # noqa: ASYNC110
                await asyncio.sleep(0.25)

    def kinds(self) -> list[str]:
        return [type(failed).__name__ for _, failed in self.errors]


class Picky:
    """A handler that raises on bad events, and records its calls."""

    def __init__(self) -> None:
        self.given: list[list[bytes]] = []
        self.handled: list[bytes] = []

    async def __call__(self, partition: PartitionClient, batch: list[Event]) -> None:
        self.given.append([event.body for event in batch])
        if any(event.body == BAD for event in batch):
            raise ValueError("it is bad")
        self.handled += [event.body for event in batch]


def test_a_batch_is_retried_and_then_handled_one_by_one() -> None:
    async def scenario() -> None:
        picky = Picky()
        async with HandlerHost(picky) as host:
            await host.send(b"1", BAD, b"2")
            await host.until_checkpoint(2)
            assert picky.handled == [b"1", b"2"]
            assert picky.given[:4] == [[b"1", BAD, b"2"]] * 4
            assert picky.given[4:] == [[b"1"], [BAD], [b"2"]]
            assert host.kinds() == ["ValueError"] * 5 + ["PoisonEvent"]
            poison = host.errors[-1][1]
            assert isinstance(poison, PoisonEvent)
            assert (poison.partition, poison.sequence) == ("0", 1)
            assert isinstance(poison.__cause__, ValueError)

    run(scenario())


def test_a_checkpoint_during_one_by_one_covers_only_the_current_event() -> None:
    """I5: `checkpoint()` without an event never passes one that was not handled."""
    marks: list[tuple[int | None, int | None]] = []

    async def scenario() -> None:
        async def handle(partition: PartitionClient, batch: list[Event]) -> None:
            if any(event.body == BAD for event in batch):
                raise ValueError("it is bad")
            await partition.checkpoint()
            marks.append((batch[-1].sequence, await env.checkpoint()))

        async with HandlerHost(handle, replace(OPTIONS, checkpoints=CheckpointPolicy())) as env:
            await env.send(b"1", b"2", BAD, b"3")
            await env.until(lambda: len(marks) == 3)

    run(scenario())
    assert marks == [(0, 0), (1, 1), (3, 3)]


def test_events_handled_one_by_one_are_not_repeated_after_a_stop() -> None:
    """I6: the next owner gets only the rest of the batch."""
    patient = PoisonPolicy(retries=0, then="dead-letter", first_s=5.0)
    options = replace(OPTIONS, poison=patient, checkpoints=CheckpointPolicy(every_s=600.0))

    class Nowhere:
        async def write(self, letter: DeadLetter) -> None:
            raise PumphouseError("there is no place for it")

        async def close(self) -> None: ...

    async def scenario() -> None:
        picky = Picky()
        async with HandlerHost(picky, options, dead_letters=Nowhere()) as host:
            await host.send(b"1", b"2", BAD, b"3")
            await host.until(lambda: picky.given[-1:] == [[BAD]])
            await host.engine.stop()
            assert picky.handled == [b"1", b"2"]
            assert await host.checkpoint() == 1

    run(scenario())


def test_a_partly_handled_batch_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marked event by event and then by the batch: the rate is not doubled."""

    async def scenario() -> None:
        counted: list[int] = []

        async def handle(partition: PartitionClient, batch: list[Event]) -> None:
            monkeypatch.setattr(partition._term, "count", counted.append)
            for event in batch[:2]:
                partition.mark_handled([event])

        async with HandlerHost(handle) as host:
            await host.send(b"1", b"2", b"3")
            await host.until_checkpoint(2)
            await host.send(b"4")
            await host.until_checkpoint(3)
        assert sum(counted) == 4

    run(scenario())


def test_a_poisoned_partition_stops_and_the_others_continue() -> None:
    """I11 and I5: it is reported, stays ours, is not skipped, and can be resumed."""

    async def scenario() -> None:
        picky = Picky()
        async with HandlerHost(picky, replace(OPTIONS, poison=PoisonPolicy(retries=1))) as host:
            await host.send(BAD)
            await host.until(lambda: "PoisonEvent" in host.kinds())
            await host.send(b"1", partition="1")
            await host.until_checkpoint(0, "1")
            tried = len(picky.given)
            await asyncio.sleep(600)
            assert len(picky.given) == tried, "no silent loop"
            assert await host.checkpoint() is None
            assert host.engine.owned == ("0", "1")
            host.engine.resume("0")
            await host.until(lambda: host.kinds().count("PoisonEvent") == 2)

    run(scenario())


def test_events_handled_before_the_poison_are_checkpointed() -> None:
    async def scenario() -> None:
        options = ProcessorOptions(
            checkpoints=CheckpointPolicy(every_events=1000),
            poison=PoisonPolicy(retries=0),
            batch_events_max=1,
        )
        async with HandlerHost(Picky(), options) as host:
            await host.send(b"1", b"2", BAD)
            await host.until(lambda: "PoisonEvent" in host.kinds())
            assert await host.checkpoint() == 1

    run(scenario())


def test_a_lost_partition_hands_nothing_more_to_the_handler() -> None:
    async def scenario() -> None:
        given: list[list[bytes]] = []

        async def unlucky(partition: PartitionClient, batch: list[Event]) -> None:
            given.append([event.body for event in batch])
            if len(batch) > 1:
                raise ValueError("not all at once")
            if len(given) == 2:
                host.engine.leases.lose("0")

        async with HandlerHost(unlucky, replace(OPTIONS, poison=PoisonPolicy(retries=0))) as host:
            await host.send(b"1", b"2", b"3")
            await host.until_checkpoint(2)
            whole = [b"1", b"2", b"3"]
            assert given == [whole, [b"1"], whole, [b"1"], [b"2"], [b"3"]]

    run(scenario())


def test_a_handler_that_recovers_gets_no_poison_report() -> None:
    async def scenario() -> None:
        calls = 0

        async def shaky(partition: PartitionClient, batch: list[Event]) -> None:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise OSError("the database is away")

        async with HandlerHost(shaky) as host:
            await host.send(b"1", b"2")
            await host.until_checkpoint(1)
            assert calls == 3
            assert host.kinds() == ["OSError", "OSError"]

    run(scenario())


def test_the_dead_letter_policy_needs_dead_letters() -> None:
    options = ProcessorOptions(poison=PoisonPolicy(then="dead-letter"))
    with pytest.raises(OptionError, match="dead_letters="):
        Handling(Picky(), options, Reporter("a"))


def test_a_handler_that_hangs_is_reported_once_and_not_interrupted() -> None:
    """I11."""

    async def scenario() -> None:
        ended = []

        async def slow(partition: PartitionClient, batch: list[Event]) -> None:
            await asyncio.sleep(100)
            ended.append(len(batch))

        async with HandlerHost(slow, replace(OPTIONS, handler_timeout_s=5.0)) as host:
            await host.send(b"1")
            await host.until(lambda: ended)
            (stuck,) = [failed for _, failed in host.errors if isinstance(failed, HandlerStuck)]
            assert 5 <= stuck.seconds <= 10

    run(scenario())


def test_a_slow_handler_slows_only_its_own_partition() -> None:
    async def scenario() -> None:
        handled: list[tuple[str, bytes]] = []

        async def slow(partition: PartitionClient, batch: list[Event]) -> None:
            if partition.id == "0":
                await asyncio.sleep(200)
            handled.extend((partition.id, event.body) for event in batch)

        async with HandlerHost(slow) as host:
            await host.send(b"slow")
            for number in range(20):
                await host.send(b"%d" % number, partition="1")
                await asyncio.sleep(1)
            assert [env for env, _ in handled] == ["1"] * 20
            await host.until(lambda: ("0", b"slow") in handled)

    run(scenario())


# -- in real time: threads ------------------------------------------------------------------------


async def test_a_plain_function_runs_in_a_thread_and_blocks_nothing() -> None:
    names: list[str] = []
    busy, release = threading.Event(), threading.Event()

    def compute(partition: PartitionClient, batch: list[Event]) -> None:
        names.append(threading.current_thread().name)
        busy.set()
        release.wait(60)

    options = replace(OPTIONS, interval_s=0.05, renew_s=0.05, lease_s=60.0)
    async with HandlerHost(compute, options, clock=SystemClock()) as host:
        await host.send(b"1")
        await host.until(busy.is_set)
        before = host.engine.leases.held["0"].row.etag
        await host.until(lambda: host.engine.leases.held["0"].row.etag != before)
        release.set()
        await host.until_checkpoint(0)
    assert names[0].startswith("pumphouse handler")


def test_coroutine_functions_are_recognised() -> None:
    class PlainProcessor:
        def __call__(self, partition: PartitionClient, batch: list[Event]) -> None: ...

    assert is_async(Picky())
    assert is_async(Picky().__call__)
    assert not is_async(PlainProcessor())
    assert not is_async(time.sleep)

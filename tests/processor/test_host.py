"""The Event Processor Host: every rule that its documentation states, as a test."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError, PoisonEvent, PumphouseError
from pumphouse.events import LATEST, Event, Position
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Checkpoint
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    CheckpointPolicy,
    EventProcessorOptions,
    ExceptionReceived,
    PartitionManagerOptions,
    PoisonPolicy,
    host_engine_options,
)
from tests.processor.hub_and_store import HUB, Place, until
from tests.processor.virtual_time import run


def sequence_of(mark: Checkpoint | None) -> int | None:
    return None if mark is None else mark.sequence


QUICK = PoisonPolicy(retries=1, first_s=0.1, then="skip")


class Diary:
    """What all event processors of a test were called with."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []
        self.bodies: defaultdict[str, list[bytes]] = defaultdict(list)

    def word(self, *words: Any) -> None:
        self.lines.append(words)

    def said(self, word: str) -> list[tuple[Any, ...]]:
        return [line for line in self.lines if line[0] == word]


def processor(diary: Diary, fail: Callable[[Event], bool] = lambda event: False) -> type:
    """A class as a user would write it."""

    class SimpleEventProcessor:
        def __init__(self) -> None:
            diary.word("made", self)

        async def open(self, context: PartitionContext) -> None:
            diary.word("open", context.partition_id, context.host_name)

        async def close(self, context: PartitionContext, reason: CloseReason) -> None:
            diary.word("close", context.partition_id, reason, context.host_name)

        async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            diary.word("events", context.partition_id, len(messages), self)
            for event in messages:
                if fail(event):
                    raise ValueError(event.body)
                diary.bodies[context.partition_id].append(event.body)
            await context.checkpoint()

        async def process_error(self, context: PartitionContext, error: Exception) -> None:
            diary.word("error", context.partition_id, error)

    return SimpleEventProcessor


class Quiet:
    """What an event processor must have besides process_events, and here need not do."""

    async def open(self, context: PartitionContext) -> None: ...

    async def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

    async def process_error(self, context: PartitionContext, error: Exception) -> None: ...


def make_host(place: Place, name: str = "host-a", **more: Any) -> EventProcessorHost:
    return EventProcessorHost(name, place.connection, store=place.store, clock=place.clock, **more)


def test_every_owned_partition_has_an_object_of_its_own() -> None:
    async def scenario() -> None:
        diary = Diary()
        async with Place() as place:
            for partition in place.partitions:
                await place.send("a", "b", partition=partition)
            async with make_host(place) as host:
                await host.register(processor(diary))
                await until(lambda: len(diary.bodies) == 4)
                assert len(diary.said("made")) == 4
                assert {line[1] for line in diary.said("open")} == set(place.partitions)
                served = {(line[1], line[3]) for line in diary.said("events")}
                assert len(served) == 4  # each partition by its own object
                seen = "<EventProcessorHost host-a | owns 0 1 2 3 | 4 pumps | settled>"
                await until(lambda: repr(host) == seen)

    run(scenario())


def test_sixteen_partitions_and_five_hosts() -> None:
    """Five machines, sixteen partitions: sixteen objects, three or four on each host."""

    async def scenario() -> None:
        diary = Diary()
        async with Place(16) as place:
            hosts = [make_host(place, f"vm{number}") for number in range(5)]
            await asyncio.gather(*(host.register(processor(diary)) for host in hosts))
            await until(lambda: sorted(len(host.owned) for host in hosts) == [3, 3, 3, 3, 4])
            await asyncio.gather(*(host.unregister() for host in hosts))
            assert len(diary.said("open")) == len(diary.said("close")) == 16

    run(scenario())


def test_a_batch_has_at_most_max_batch_size_events() -> None:
    async def scenario() -> None:
        diary = Diary()
        async with Place(1) as place, make_host(place) as host:
            await place.send(*map(str, range(25)))
            await host.register(processor(diary), EventProcessorOptions(max_batch_size=10))
            await until(lambda: len(diary.bodies["0"]) == 25)
            assert max(line[2] for line in diary.said("events")) <= 10
            await place.send("one more")
            await until(lambda: len(diary.bodies["0"]) == 26)
            assert diary.said("events")[-1][2] == 1

    run(scenario())


def test_calls_for_one_partition_never_overlap() -> None:
    async def scenario() -> None:
        inside: defaultdict[str, int] = defaultdict(int)
        worst, handled = 0, 0

        class Slow(Quiet):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None:
                nonlocal worst, handled
                inside[context.partition_id] += 1
                worst = max(worst, *inside.values())
                await asyncio.sleep(1)
                inside[context.partition_id] -= 1
                handled += len(messages)

        async with Place(2) as place, make_host(place) as host:
            for partition in place.partitions:
                await place.send(*map(str, range(50)), partition=partition)
            await host.register(Slow)
            await until(lambda: handled == 100)
            assert worst == 1

    run(scenario())


def test_a_checkpoint_without_an_event_covers_all_and_with_one_up_to_it() -> None:
    async def scenario() -> None:
        marks: list[int | None] = []

        class Marking(Quiet):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None:
                await context.checkpoint(messages[0])
                marks.append(sequence_of(await place.checkpoint()))
                await context.checkpoint()
                marks.append(sequence_of(await place.checkpoint()))

        async with Place(1) as place, make_host(place) as host:
            await place.send(*map(str, range(10)))
            await host.register(Marking)
            await until(lambda: len(marks) == 2)
            assert marks == [0, 9]

    run(scenario())


def test_close_may_write_a_checkpoint() -> None:
    async def scenario() -> None:
        handled = 0

        class Late(Quiet):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None:
                nonlocal handled
                handled += len(messages)

            async def close(self, context: PartitionContext, reason: CloseReason) -> None:
                await context.checkpoint()

        async with Place(1) as place:
            await place.send("a", "b", "c")
            async with make_host(place) as host:
                await host.register(Late)
                await until(lambda: handled == 3)
                mark = await place.checkpoint()
                assert mark is not None
                assert not mark.has_position
            assert sequence_of(await place.checkpoint()) == 2

    run(scenario())


def test_unregister_releases_and_closes_with_shutdown() -> None:
    async def scenario() -> None:
        diary = Diary()
        async with Place(2) as place:
            host = make_host(place)
            await host.register(processor(diary))
            await until(lambda: len(host.owned) == 2)
            await host.unregister()
            assert {line[2] for line in diary.said("close")} == {CloseReason.SHUTDOWN}
            rows = (await place.store.list_ownership(place.group)).ownerships
            assert [row.owner for row in rows] == ["", ""]
            assert all(row.epoch for row in rows)  # so that the epoch only ever rises
            await host.unregister()  # nothing more to do
            assert repr(host) == "<EventProcessorHost host-a | not registered>"

    run(scenario())


def test_a_new_host_takes_over_and_the_old_owner_closes_with_lease_lost() -> None:
    async def scenario() -> None:
        diary = Diary()
        async with Place(4) as place, make_host(place, "a") as a, make_host(place, "b") as b:
            await a.register(processor(diary))
            await until(lambda: len(a.owned) == 4)
            await b.register(processor(diary))
            await until(lambda: len(a.owned) == len(b.owned) == 2)
            closed = {(line[2], line[3]) for line in diary.said("close")}
            assert closed == {(CloseReason.LEASE_LOST, "a")}

    run(scenario())


@pytest.mark.parametrize("strategy", ["eph", "eph_js"])
def test_hosts_balance_with_the_original_strategies(strategy: str) -> None:
    async def scenario() -> None:
        diary = Diary()
        async with Place(8) as place:
            hosts = [make_host(place, name, strategy=strategy) for name in "abc"]
            for host in hosts:
                await host.register(processor(diary))
            await until(lambda: sorted(len(host.owned) for host in hosts) == [2, 3, 3])
            for partition in place.partitions:
                await place.send("x", partition=partition)
            await until(lambda: len(diary.bodies) == 8)
            await asyncio.gather(*(host.unregister() for host in hosts))

    run(scenario())


def test_reading_continues_behind_the_checkpoint() -> None:
    async def scenario() -> None:
        first, second = Diary(), Diary()
        async with Place(1) as place:
            await place.send("a", "b")
            async with make_host(place, "one") as host:
                await host.register(processor(first))
                await until(lambda: len(first.bodies["0"]) == 2)
            await place.send("c")
            async with make_host(place, "two") as host:
                await host.register(processor(second))
                await until(lambda: second.bodies["0"])
        assert second.bodies["0"] == [b"c"]

    run(scenario())


def test_the_initial_position_provider_is_called_for_each_partition() -> None:
    async def scenario() -> None:
        diary, asked = Diary(), []

        def provide(partition: str) -> Position:
            asked.append(partition)
            return LATEST if partition == "0" else Position("sequence", "1", inclusive=True)

        async with Place(2) as place, make_host(place) as host:
            for partition in place.partitions:
                await place.send("old", "older", partition=partition)
            options = EventProcessorOptions(initial_position_provider=provide)
            await host.register(processor(diary), options)
            await until(lambda: diary.bodies["1"] and len(diary.said("open")) == 2)
            await place.send("new")
            await until(lambda: diary.bodies["0"] == [b"new"])
            assert diary.bodies["1"] == [b"older"]
            assert sorted(asked) == ["0", "1"]

    run(scenario())


def test_a_checkpoint_takes_precedence_over_the_initial_position() -> None:
    async def scenario() -> None:
        diary = Diary()
        async with Place(1) as place:
            await place.send("a")
            async with make_host(place, "one") as host:
                await host.register(processor(Diary()))
                await place.until_checkpoint(0)
            await place.send("b")
            async with make_host(place, "two") as host:
                options = EventProcessorOptions(initial_position_provider=lambda partition: LATEST)
                await host.register(processor(diary), options)
                await until(lambda: diary.bodies["0"] == [b"b"])

    run(scenario())


def test_process_events_is_called_without_events_after_the_receive_timeout() -> None:
    async def scenario() -> None:
        diary = Diary()

        class Idle(Quiet):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None:
                diary.word("events", len(messages))

        options = EventProcessorOptions(
            invoke_processor_after_receive_timeout=True, receive_timeout_s=5
        )
        async with Place(1) as place, make_host(place) as host:
            await host.register(Idle, options)
            await until(lambda: len(diary.lines) == 3)
            assert set(diary.lines) == {("events", 0)}

    run(scenario())


def test_an_error_reaches_process_error_on_exception_and_on_error_in_the_same_order() -> None:
    async def scenario() -> None:
        diary, received, general = Diary(), list[ExceptionReceived](), list[Exception]()
        options = EventProcessorOptions(poison=QUICK, on_exception=received.append)
        async with Place(1) as place, make_host(place, on_error=general.append) as host:
            await place.send("good", "bad", "fine")
            await host.register(processor(diary, lambda event: event.body == b"bad"), options)
            await until(lambda: b"fine" in diary.bodies["0"])
            errors = [line[2] for line in diary.said("error")]
            assert any(isinstance(error, ValueError) for error in errors)
            assert isinstance(errors[-1], PoisonEvent)  # it was skipped, and that is said
            assert [one.exception for one in received] == general
            assert {(one.host_name, one.partition) for one in received} == {("host-a", "0")}

    run(scenario())


def test_more_hosts_than_partitions_are_hot_standbys() -> None:
    async def scenario() -> None:
        diary = Diary()
        async with Place(2) as place:
            hosts = [make_host(place, name) for name in "abcd"]
            for host in hosts:
                await host.register(processor(diary))
            await until(lambda: sorted(len(host.owned) for host in hosts) == [0, 0, 1, 1])
            active = [host for host in hosts if host.owned]
            await active[0].unregister()
            await until(lambda: sum(len(host.owned) for host in hosts) == 2)
            await asyncio.gather(*(host.unregister() for host in hosts))

    run(scenario())


def test_a_factory_may_take_the_context() -> None:
    async def scenario() -> None:
        diary, given = Diary(), []
        made = processor(diary)

        def factory(context: PartitionContext) -> Any:
            given.append((context.partition_id, context.hub, context.consumer_group))
            return made()

        async with Place(1) as place, make_host(place) as host:
            await host.register(factory)
            await until(lambda: diary.said("open"))
            assert given == [("0", HUB, "$Default")]

    run(scenario())


def test_a_policy_writes_checkpoints_automatically() -> None:
    async def scenario() -> None:
        class Careless(Quiet):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None: ...

        options = EventProcessorOptions(checkpoints=CheckpointPolicy(every_events=5))
        async with Place(1) as place, make_host(place) as host:
            await place.send(*map(str, range(10)))
            await host.register(Careless, options)
            await place.until_checkpoint(9)

    run(scenario())


async def test_plain_methods_run_in_threads() -> None:
    """In real time: a virtual loop would not wait for a thread."""
    threads: set[str] = set()
    handled = threading.Event()

    class Plain:
        def open(self, context: PartitionContext) -> None:
            threads.add(threading.current_thread().name)

        def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            threads.add(threading.current_thread().name)
            handled.set()

        def process_error(self, context: PartitionContext, error: Exception) -> None: ...

        def close(self, context: PartitionContext, reason: CloseReason) -> None:
            threads.add(threading.current_thread().name)

    async with EmbeddedHub({HUB: 1}) as hub, open_client(hub.connection_string(HUB)) as client:
        await (await client.sender()).send([Event(b"x")])
        host = EventProcessorHost("a", hub.connection_string(HUB), store=MemoryStore())
        async with host:
            await host.register(Plain)
            assert await asyncio.to_thread(handled.wait, 60)
    assert threads
    assert all(name.startswith("pumphouse processor") for name in threads)


def test_host_names_are_unique() -> None:
    names = {EventProcessorHost.create_host_name("vm") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("vm-") for name in names)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            lambda: EventProcessorOptions(max_batch_size=20, prefetch_count=10),
            "prefetch_count must",
        ),
        (
            lambda: PartitionManagerOptions(10, 10),
            "lease_duration_s must be above renew_interval_s",
        ),
        (lambda: EventProcessorHost("", "x", store=MemoryStore()), "host_name is empty"),
    ],
)
def test_invalid_host_options_are_refused(wrong: Callable[[], object], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        wrong()


def test_the_defaults_are_those_of_the_event_processor_host() -> None:
    events, leases = EventProcessorOptions(), PartitionManagerOptions()
    assert (events.max_batch_size, events.prefetch_count, events.receive_timeout_s) == (10, 300, 60)
    assert (leases.lease_duration_s, leases.renew_interval_s) == (30, 10)
    options = host_engine_options(events, leases)
    assert (options.lease_s, options.renew_s, options.interval_s) == (30, 10, 10)
    assert options.max_wait_s is None


def test_a_second_register_and_a_missing_hub_are_refused() -> None:
    async def scenario() -> None:
        async with Place(1) as place, make_host(place) as host:
            await host.register(processor(Diary()))
            with pytest.raises(OptionError, match="host-a is registered already"):
                await host.register(processor(Diary()))
            missing = EventProcessorHost(
                "b",
                place.hub.connection_string(HUB).replace(f"={HUB}", "=nowhere"),
                store=place.store,
            )
            with pytest.raises(PumphouseError, match="nowhere"):
                await missing.register(processor(Diary()))
            await missing.unregister()

    run(scenario())

"""EventProcessorHost: one test for every rule of its documentation."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.errors import PoisonEvent
from pumphouse.events import LATEST, Event, Position
from pumphouse.leases.model import Checkpoint
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    CheckpointPolicy,
    EventProcessorOptions,
    ExceptionReceived,
    PoisonPolicy,
)
from tests.processor.support.hub_and_store import HUB, HubAndStore, until
from tests.processor.support.virtual_time import run


def sequence_of(mark: Checkpoint | None) -> int | None:
    return None if mark is None else mark.sequence


QUICK = PoisonPolicy(retries=1, first_s=0.1, then="skip")


class CallRecord:
    """The calls of all event processors of a test."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.bodies: defaultdict[str, list[bytes]] = defaultdict(list)

    def add(self, *call: Any) -> None:
        self.calls.append(call)

    def calls_of(self, method: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == method]


def processor(record: CallRecord, fail: Callable[[Event], bool] = lambda event: False) -> type:
    """An event processor like that of a user, which records its calls."""

    class SimpleEventProcessor:
        def __init__(self) -> None:
            record.add("made", self)

        async def open(self, context: PartitionContext) -> None:
            record.add("open", context.partition_id, context.host_name)

        async def close(self, context: PartitionContext, reason: CloseReason) -> None:
            record.add("close", context.partition_id, reason, context.host_name)

        async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            record.add("events", context.partition_id, len(messages), self)
            for event in messages:
                if fail(event):
                    raise ValueError(event.body)
                record.bodies[context.partition_id].append(event.body)
            await context.checkpoint()

        async def process_error(self, context: PartitionContext, error: Exception) -> None:
            record.add("error", context.partition_id, error)

    return SimpleEventProcessor


class IdleProcessor:
    """The methods of an event processor besides process_events; they do nothing."""

    async def open(self, context: PartitionContext) -> None: ...

    async def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

    async def process_error(self, context: PartitionContext, error: Exception) -> None: ...


def make_host(env: HubAndStore, name: str = "host-a", **more: Any) -> EventProcessorHost:
    return EventProcessorHost(name, env.connection, store=env.store, clock=env.clock, **more)


def test_every_owned_partition_has_an_object_of_its_own() -> None:
    async def scenario() -> None:
        record = CallRecord()
        async with HubAndStore() as env:
            for partition in env.partitions:
                await env.send("a", "b", partition=partition)
            async with make_host(env) as host:
                await host.register(processor(record))
                await until(lambda: len(record.bodies) == 4)
                assert len(record.calls_of("made")) == 4
                assert {call[1] for call in record.calls_of("open")} == set(env.partitions)
                served = {(call[1], call[3]) for call in record.calls_of("events")}
                assert len({made for _, made in served}) == len(served) == 4
                shown = "<EventProcessorHost host-a | owns 0 1 2 3 | 4 pumps | settled>"
                await until(lambda: repr(host) == shown)

    run(scenario())


def test_sixteen_partitions_and_five_hosts() -> None:
    """Five machines, sixteen partitions: sixteen objects, three or four on each host."""

    async def scenario() -> None:
        record = CallRecord()
        async with HubAndStore(16) as env:
            hosts = [make_host(env, f"vm{number}") for number in range(5)]
            await asyncio.gather(*(host.register(processor(record)) for host in hosts))
            await until(lambda: sorted(len(host.owned) for host in hosts) == [3, 3, 3, 3, 4])
            await asyncio.gather(*(host.unregister() for host in hosts))
            assert len(record.calls_of("open")) == len(record.calls_of("close")) == 16

    run(scenario())


def test_a_batch_has_at_most_max_batch_size_events() -> None:
    async def scenario() -> None:
        record = CallRecord()
        async with HubAndStore(1) as env, make_host(env) as host:
            await env.send(*map(str, range(25)))
            await host.register(processor(record), EventProcessorOptions(max_batch_size=10))
            await until(lambda: len(record.bodies["0"]) == 25)
            assert max(call[2] for call in record.calls_of("events")) <= 10
            await env.send("one more")
            await until(lambda: len(record.bodies["0"]) == 26)
            assert record.calls_of("events")[-1][2] == 1

    run(scenario())


def test_calls_for_one_partition_never_overlap() -> None:
    async def scenario() -> None:
        inside: defaultdict[str, int] = defaultdict(int)
        worst, handled, fails = 0, 0, False

        class Slow(IdleProcessor):
            async def open(self, context: PartitionContext) -> None:
                await self.call(context.partition_id)

            async def close(self, context: PartitionContext, reason: CloseReason) -> None:
                await self.call(context.partition_id)

            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None:
                nonlocal handled, fails
                await self.call(context.partition_id)
                if fails:
                    fails = False
                    raise ValueError("once")
                handled += len(messages)

            async def call(self, partition: str) -> None:
                nonlocal worst
                inside[partition] += 1
                worst = max(worst, *inside.values())
                await asyncio.sleep(1)
                inside[partition] -= 1

        async with HubAndStore(2) as env, make_host(env) as host:
            for partition in env.partitions:
                await env.send(*map(str, range(50)), partition=partition)
            await host.register(Slow, EventProcessorOptions(poison=PoisonPolicy(retries=0)))
            await until(lambda: handled == 100)
            fails = True  # the partition stops and is closed; then it is opened again
            await env.send("poison", partition="0")
            await until(lambda: inside["0"] and not fails)
            while handled == 100:
                host.resume("0")
                await asyncio.sleep(0.25)
            assert worst == 1

    run(scenario())


def test_a_checkpoint_without_an_event_covers_all_and_with_one_up_to_it() -> None:
    async def scenario() -> None:
        marks: list[int | None] = []

        class Marking(IdleProcessor):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None:
                await context.checkpoint(messages[0])
                marks.append(sequence_of(await env.checkpoint()))
                await context.checkpoint()
                marks.append(sequence_of(await env.checkpoint()))

        async with HubAndStore(1) as env, make_host(env) as host:
            await env.send(*map(str, range(10)))
            await host.register(Marking)
            await until(lambda: len(marks) == 2)
            assert marks == [0, 9]

    run(scenario())


def test_close_may_write_a_checkpoint() -> None:
    async def scenario() -> None:
        handled = 0

        class Late(IdleProcessor):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None:
                nonlocal handled
                handled += len(messages)

            async def close(self, context: PartitionContext, reason: CloseReason) -> None:
                await context.checkpoint()

        # Otherwise the host writes it when it stops, whatever `close` does.
        options = EventProcessorOptions(checkpoint_on_stop=False)
        async with HubAndStore(1) as env:
            await env.send("a", "b", "c")
            async with make_host(env) as host:
                await host.register(Late, options)
                await until(lambda: handled == 3)
                mark = await env.checkpoint()
                assert mark is not None
                assert not mark.has_position
            assert sequence_of(await env.checkpoint()) == 2

    run(scenario())


def test_unregister_releases_and_closes_with_shutdown() -> None:
    async def scenario() -> None:
        record = CallRecord()
        async with HubAndStore(2) as env:
            host = make_host(env)
            await host.register(processor(record))
            await until(lambda: len(host.owned) == 2)
            await host.unregister()
            assert {call[2] for call in record.calls_of("close")} == {CloseReason.SHUTDOWN}
            rows = (await env.store.list_ownership(env.group)).ownerships
            assert [row.owner for row in rows] == ["", ""]
            assert all(row.epoch for row in rows)  # so that the epoch only ever rises
            await host.unregister()  # a second call does nothing
            assert repr(host) == "<EventProcessorHost host-a | not registered>"

    run(scenario())


def test_a_new_host_takes_over_and_the_old_owner_closes_with_lease_lost() -> None:
    async def scenario() -> None:
        record = CallRecord()
        async with HubAndStore(4) as env, make_host(env, "a") as a, make_host(env, "b") as b:
            await a.register(processor(record))
            await until(lambda: len(a.owned) == 4)
            await b.register(processor(record))
            await until(lambda: len(a.owned) == len(b.owned) == 2)
            closed = {(call[2], call[3]) for call in record.calls_of("close")}
            assert closed == {(CloseReason.LEASE_LOST, "a")}

    run(scenario())


@pytest.mark.parametrize("strategy", ["eph", "eph_js"])
def test_hosts_balance_with_the_original_strategies(strategy: str) -> None:
    async def scenario() -> None:
        record = CallRecord()
        async with HubAndStore(8) as env:
            hosts = [make_host(env, name, strategy=strategy) for name in "abc"]
            for host in hosts:
                await host.register(processor(record))
            await until(lambda: sorted(len(host.owned) for host in hosts) == [2, 3, 3])
            for partition in env.partitions:
                await env.send("x", partition=partition)
            await until(lambda: len(record.bodies) == 8)
            await asyncio.gather(*(host.unregister() for host in hosts))

    run(scenario())


def test_reading_continues_behind_the_checkpoint() -> None:
    async def scenario() -> None:
        first, second = CallRecord(), CallRecord()
        async with HubAndStore(1) as env:
            await env.send("a", "b")
            async with make_host(env, "one") as host:
                await host.register(processor(first))
                await until(lambda: len(first.bodies["0"]) == 2)
            await env.send("c")
            async with make_host(env, "two") as host:
                await host.register(processor(second))
                await until(lambda: second.bodies["0"])
        assert second.bodies["0"] == [b"c"]

    run(scenario())


def test_the_initial_position_provider_is_called_for_each_partition() -> None:
    async def scenario() -> None:
        record, asked = CallRecord(), []

        def provide(partition: str) -> Position:
            asked.append(partition)
            return LATEST if partition == "0" else Position("sequence", "1", inclusive=True)

        async with HubAndStore(2) as env, make_host(env) as host:
            for partition in env.partitions:
                await env.send("old", "older", partition=partition)
            options = EventProcessorOptions(initial_position_provider=provide)
            await host.register(processor(record), options)
            await until(lambda: record.bodies["1"] and len(record.calls_of("open")) == 2)
            await env.send("new")
            await until(lambda: record.bodies["0"] == [b"new"])
            assert record.bodies["1"] == [b"older"]
            assert sorted(asked) == ["0", "1"]

    run(scenario())


def test_a_checkpoint_takes_precedence_over_the_initial_position() -> None:
    async def scenario() -> None:
        record = CallRecord()
        async with HubAndStore(1) as env:
            await env.send("a")
            async with make_host(env, "one") as host:
                await host.register(processor(CallRecord()))
                await env.until_checkpoint(0)
            await env.send("b")
            async with make_host(env, "two") as host:
                options = EventProcessorOptions(initial_position_provider=lambda partition: LATEST)
                await host.register(processor(record), options)
                await until(lambda: record.bodies["0"] == [b"b"])

    run(scenario())


def test_process_events_is_called_without_events_after_the_receive_timeout() -> None:
    async def scenario() -> None:
        record = CallRecord()

        class Idle(IdleProcessor):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None:
                record.add("events", len(messages))

        options = EventProcessorOptions(
            invoke_processor_after_receive_timeout=True, receive_timeout_s=5
        )
        async with HubAndStore(1) as env, make_host(env) as host:
            await host.register(Idle, options)
            await until(lambda: len(record.calls) == 3)
            assert set(record.calls) == {("events", 0)}

    run(scenario())


def test_an_error_reaches_process_error_on_exception_and_on_error_in_the_same_order() -> None:
    async def scenario() -> None:
        record, received, general = CallRecord(), list[ExceptionReceived](), list[Exception]()
        options = EventProcessorOptions(poison=QUICK, on_exception=received.append)
        async with HubAndStore(1) as env, make_host(env, on_error=general.append) as host:
            await env.send("good", "bad", "fine")
            await host.register(processor(record, lambda event: event.body == b"bad"), options)
            await until(lambda: b"fine" in record.bodies["0"])
            await until(lambda: len(general) == 4)  # two attempts, one by itself, the poison
            errors = [call[2] for call in record.calls_of("error")]
            assert any(isinstance(error, ValueError) for error in errors)
            assert isinstance(errors[-1], PoisonEvent)  # the skipped event is reported
            assert [each.exception for each in received] == general == errors
            assert {(each.host_name, each.partition) for each in received} == {("host-a", "0")}

    run(scenario())


def test_more_hosts_than_partitions_are_hot_standbys() -> None:
    async def scenario() -> None:
        record = CallRecord()
        async with HubAndStore(2) as env:
            hosts = [make_host(env, name) for name in "abcd"]
            for host in hosts:
                await host.register(processor(record))
            await until(lambda: sorted(len(host.owned) for host in hosts) == [0, 0, 1, 1])
            active = [host for host in hosts if host.owned]
            await active[0].unregister()
            await until(lambda: sorted(len(host.owned) for host in hosts) == [0, 0, 1, 1])
            assert len(active[1].owned) == 1, "a standby has taken the free partition"
            await asyncio.gather(*(host.unregister() for host in hosts))

    run(scenario())


def test_a_factory_may_take_the_context() -> None:
    async def scenario() -> None:
        record, given = CallRecord(), []
        made = processor(record)

        def factory(context: PartitionContext) -> Any:
            given.append((context.partition_id, context.hub, context.consumer_group))
            return made()

        async with HubAndStore(1) as env, make_host(env) as host:
            await host.register(factory)
            await until(lambda: record.calls_of("open"))
            assert given == [("0", HUB, "$Default")]

    run(scenario())


def test_a_policy_writes_checkpoints_automatically() -> None:
    async def scenario() -> None:
        class Careless(IdleProcessor):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None: ...

        options = EventProcessorOptions(checkpoints=CheckpointPolicy(every_events=5))
        async with HubAndStore(1) as env, make_host(env) as host:
            await env.send(*map(str, range(10)))
            await host.register(Careless, options)
            await env.until_checkpoint(9)

    run(scenario())

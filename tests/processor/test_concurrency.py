"""Key-ordered concurrency: several handlers of a partition at once, each key in order."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import HandlerStuck, OptionError, PoisonEvent
from pumphouse.events import Event
from pumphouse.processor.dead_letters import DeadLetterFile
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.handling.key_order import Concurrency
from pumphouse.processor.host import EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    CheckpointPolicy,
    EventProcessorOptions,
    PoisonPolicy,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.hub_and_store import HubAndStore, until
from tests.processor.virtual_time import run

N = 4
EACH = CheckpointPolicy(every_events=1)
OPTIONS = ProcessorOptions(concurrency=N, checkpoints=EACH, poison=PoisonPolicy(retries=0))


class Handler:
    """Waits for a second with each event, or until its key is released."""

    def __init__(self) -> None:
        self.handled: list[tuple[str | None, int]] = []
        self.running: Counter[str | None] = Counter()
        self.most = 0
        self.held: dict[str | None, asyncio.Event] = {}
        self.bad: set[str | None] = set()
        self.empty_calls = 0

    async def __call__(self, partition: PartitionClient, events: list[Event]) -> None:
        self.empty_calls += not events
        for event in events:
            await self.handle(event)

    async def handle(self, event: Event) -> None:
        key = event.partition_key
        self.running[key] += 1
        self.most = max(self.most, self.running.total())
        assert key is None or self.running[key] == 1
        try:
            await asyncio.sleep(1)
            if key in self.held:
                await self.held[key].wait()
            if key in self.bad:
                raise ValueError("it is bad")
            self.handled.append((key, event.sequence or 0))
        finally:
            self.running[key] -= 1

    def hold(self, key: str) -> asyncio.Event:
        self.held[key] = asyncio.Event()
        return self.held[key]

    def sequences(self) -> list[int]:
        return [sequence for _, sequence in self.handled]

    def check_order(self) -> None:
        for key in {key for key, _ in self.handled if key is not None}:
            of_key = [sequence for each, sequence in self.handled if each == key]
            assert of_key == sorted(of_key)


class Env(HubAndStore):
    """One partition, events with keys, and the errors of all hosts."""

    def __init__(self) -> None:
        super().__init__(1)
        self.errors: list[Exception] = []

    async def send_keys(self, keys: str) -> None:
        """An event for each letter; one without a key for each dash."""
        sender = await self.client.sender()
        for key in keys:
            await sender.send([Event(b"", {}, None if key == "-" else key)])
        await sender.close()

    def host(
        self, handler: Any, options: ProcessorOptions = OPTIONS, *, name: str = "a", **more: Any
    ) -> RunningProcessor:
        return RunningProcessor(self, handler, options, name, **more)

    def failed(self, partition: str | None, error: Exception) -> None:
        self.errors.append(error)

    async def state(self) -> str:
        return (await self.store.list_ownership(self.group)).ownerships[0].state


class RunningProcessor:
    """A Processor that runs a handler in the background."""

    def __init__(
        self,
        env: Env,
        handler: Any,
        options: ProcessorOptions,
        name: str,
        clock: Clock | None = None,
        **more: Any,
    ) -> None:
        self.processor = Processor(
            env.connection,
            store=env.store,
            host=name,
            options=options,
            clock=clock or env.clock,
            on_error=env.failed,
        )
        self._handler, self._more = handler, more

    async def __aenter__(self) -> Self:
        await self.processor.__aenter__()
        self._running = asyncio.create_task(self.processor.run(handler=self._handler, **self._more))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.processor.stop()
        await self._running

    @property
    def client(self) -> PartitionClient:
        client = self.processor.engine._supervisors["0"].client
        assert client is not None
        return client


def stuck_at(errors: list[Exception]) -> list[int | None]:
    """The last events of the handlers that were reported as stuck."""
    return [error.sequence for error in errors if isinstance(error, HandlerStuck)]


def test_keys_are_handled_at_once_and_each_in_order() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            await env.send_keys("abcdeabcde" * 4)
            async with env.host(handler):
                await until(lambda: len(handler.handled) == 40)
                await env.until_checkpoint(39)
        assert handler.most == N
        handler.check_order()
        assert sorted(handler.sequences()) == list(range(40))

    run(scenario())


def test_events_without_a_key_are_unordered_or_ordered() -> None:
    async def most(keyless: str) -> int:
        handler = Handler()
        options = replace(OPTIONS, concurrency=Concurrency(N, keyless), batch_events_max=1)
        async with Env() as env:
            await env.send_keys("-" * 12)
            async with env.host(handler, options):
                await env.until_checkpoint(11)
        if keyless == "ordered":
            assert handler.sequences() == list(range(12))
        return handler.most

    assert run(most("unordered")) == N
    assert run(most("ordered")) == 1


def test_the_checkpoint_stays_below_the_first_unhandled_event() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            held = handler.hold("b")
            await env.send_keys("abcacd")
            async with env.host(handler) as host:
                await until(lambda: len(handler.handled) == 5)
                await env.until_checkpoint(0)
                assert host.client.order is not None
                assert host.client.order.handled_ahead == 4
                held.set()
                await env.until_checkpoint(5)

    run(scenario())


def test_after_a_crash_only_events_above_the_checkpoint_are_repeated() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            held = handler.hold("b")
            await env.send_keys("aabca")
            async with env.host(handler) as host:
                await until(lambda: len(handler.handled) == 4)
                await env.until_checkpoint(1)
                host.processor.engine.abandon()
            held.set()
            async with env.host(handler, name="b"):
                await env.until_checkpoint(4)
        assert sorted(handler.sequences()) == [0, 1, 2, 3, 3, 4, 4]

    run(scenario())


def test_a_stop_handles_what_is_below_the_last_started_event() -> None:
    """Key a has a queue of events; those between handled events of other keys are not left out."""

    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, batch_events_max=1)
        async with Env() as env:
            await env.send_keys("aaaabcdeaaaa")
            async with env.host(handler, options):
                await until(lambda: ("b", 4) in handler.handled)
            handled = handler.sequences()
            assert handled[-1] < 11, "what had not started is not handled"
            assert sorted(handled) == list(range(len(handled)))
            assert await env.checkpoint() is not None
            await env.until_checkpoint(len(handled) - 1)
            async with env.host(handler, options, name="b"):
                await env.until_checkpoint(11)
        assert sorted(handler.sequences()) == list(range(12))
        handler.check_order()

    run(scenario())


def test_a_stop_does_not_wait_for_a_long_queue_of_one_key() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, batch_events_max=1, stop_s=20.0)
        async with Env() as env:
            await env.send_keys("a" * 40 + "b")
            async with env.host(handler, options):
                await until(lambda: ("b", 40) in handler.handled)
                stopped_s = env.clock.monotonic()
            assert env.clock.monotonic() - stopped_s < 15
            async with env.host(handler, options, name="b"):
                await env.until_checkpoint(40)
        repeated = [n for n, times in Counter(handler.sequences()).items() if times > 1]
        assert repeated == [40]

    run(scenario())


def test_a_stop_leaves_out_what_follows_a_failing_event_of_its_key() -> None:
    """The next owner handles the failing event first, and then those behind it."""

    async def scenario() -> None:
        handler, second = Handler(), Handler()
        policy = PoisonPolicy(retries=5, first_s=25.0)
        options = replace(OPTIONS, poison=policy, batch_events_max=2)

        async def fail_at_first(partition: PartitionClient, events: list[Event]) -> None:
            if events and events[0].sequence == 0:
                raise ValueError("not yet")
            await handler(partition, events)

        async with Env() as env:
            await env.send_keys("xbxbxbxbcdcdcd")
            async with env.host(fail_at_first, options):
                await until(lambda: len(handler.handled) > 7)
                await asyncio.sleep(5)  # the key of the failing event waits for its retry
            assert "x" not in [key for key, _ in handler.handled]
            async with env.host(second, options, name="b"):
                await env.until_checkpoint(13)
        second.check_order()
        assert [sequence for key, sequence in second.handled if key == "x"] == [0, 2, 4, 6]

    run(scenario())


def test_a_hand_over_repeats_nothing() -> None:
    async def scenario() -> None:
        first, second = Handler(), Handler()
        async with HubAndStore(2) as env:
            sender = await env.client.sender()
            for number in range(60):
                await sender.send([Event(b"", {}, "abcdefgh"[number % 8])])
            processors = [
                Processor(
                    env.connection, store=env.store, host=name, options=OPTIONS, clock=env.clock
                )
                for name in "ab"
            ]
            async with processors[0], processors[1]:
                runs = [asyncio.create_task(processors[0].run(handler=first))]
                await until(lambda: len(first.handled) > 5)
                runs.append(asyncio.create_task(processors[1].run(handler=second)))
                await until(lambda: len(first.handled) + len(second.handled) == 60)
                for processor in processors:
                    await processor.stop()
                await asyncio.gather(*runs)
        assert second.handled
        keys = Counter(key for key, _ in first.handled + second.handled)
        assert keys.total() == 60
        first.check_order()
        second.check_order()

    run(scenario())


# -- poison ---------------------------------------------------------------------------------------


def test_an_event_that_fails_stops_the_partition_and_a_resume_continues() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, batch_events_max=1)
        async with Env() as env:
            handler.bad.add("x")
            slow = handler.hold("a")
            await env.send_keys("aaxbcdefgh" + "bcdefgh" * 5)
            async with env.host(handler, options) as host:
                await until(lambda: env.errors)
                slow.set()
                await env.until_checkpoint(1)
                count = len(handler.handled)
                await asyncio.sleep(60)
                assert len(handler.handled) == count < 12
                assert await env.state() == "stopped"
                handler.bad.clear()
                host.processor.resume()
                await env.until_checkpoint(44)
        poison = [error for error in env.errors if isinstance(error, PoisonEvent)]
        assert [error.sequence for error in poison] == [2]

    run(scenario())


def test_with_stop_key_only_the_key_of_a_failing_event_waits() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, poison=PoisonPolicy(retries=0, then="stop-key"))
        async with Env() as env:
            handler.bad.add("x")
            await env.send_keys("axbxcxdabc-x")
            async with env.host(handler, options) as host:
                await until(lambda: len(handler.handled) == 8)
                await asyncio.sleep(60)
                assert len(handler.handled) == 8
                await env.until_checkpoint(0)
                assert await env.state() == "stopped"
                handler.bad.clear()
                host.processor.resume("0")
                await env.until_checkpoint(11)
                await asyncio.sleep(60)
                assert await env.state() == ""
        assert sorted(handler.sequences()) == list(range(12))
        handler.check_order()

    run(scenario())


def test_a_key_that_waits_fills_the_buffer_and_then_the_partition_waits() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(
            OPTIONS,
            concurrency=Concurrency(N, ahead_events_max=8),
            poison=PoisonPolicy(retries=0, then="stop-key"),
            batch_events_max=1,
        )
        async with Env() as env:
            handler.bad.add("x")
            await env.send_keys("x" + "abcd" * 10)
            async with env.host(handler, options) as host:
                await until(lambda: len(handler.handled) == 7)
                await asyncio.sleep(60)
                assert len(handler.handled) == 7
                assert host.client.order is not None
                assert host.client.order.ahead == 8
                handler.bad.clear()
                host.processor.resume()
                await env.until_checkpoint(40)

    run(scenario())


def test_a_failing_event_of_a_key_is_skipped_while_others_continue(tmp_path: Path) -> None:
    async def scenario() -> None:
        handler = Handler()
        policy = PoisonPolicy(retries=2, first_s=10.0, then="dead-letter")
        letters = DeadLetterFile(tmp_path / "letters")
        async with Env() as env:
            handler.bad.add("x")
            await env.send_keys("xabcdabcd")
            options = replace(OPTIONS, poison=policy)
            async with env.host(handler, options, dead_letters=letters):
                await until(lambda: len(handler.handled) == 8)
                assert not [error for error in env.errors if isinstance(error, PoisonEvent)]
                await env.until_checkpoint(8)
        assert len(letters.path.read_text().splitlines()) == 1

    run(scenario())


# -- the other APIs -------------------------------------------------------------------------------


def test_functions_get_one_event_per_call() -> None:
    async def scenario() -> None:
        handler = Handler()

        async def on_message(context: PartitionContext, event: Event) -> None:
            await handler.handle(event)
            await context.checkpoint()

        async with Env() as env:
            await env.send_keys("abcdeabcde" * 3)
            host = EventProcessorHost("a", env.connection, store=env.store, clock=env.clock)
            await host.start(on_message, options=EventProcessorOptions(concurrency=N))
            await env.until_checkpoint(29)
            await host.stop()
        assert handler.most == N
        assert sorted(handler.sequences()) == list(range(30))
        handler.check_order()

    run(scenario())


def test_a_class_is_called_for_several_keys_at_once() -> None:
    async def scenario() -> None:
        handler = Handler()
        calls: list[str] = []

        class Rows:
            async def open(self, context: PartitionContext) -> None:
                calls.append("open")

            async def process_events(self, context: PartitionContext, messages: Any) -> None:
                await handler(context.partition, messages)
                await context.checkpoint(messages[-1])

            async def process_error(self, context: PartitionContext, error: Exception) -> None:
                calls.append(repr(error))

            async def close(self, context: PartitionContext, reason: str) -> None:
                assert not handler.running.total()
                calls.append("close")

        async with Env() as env:
            await env.send_keys("abcdeabcde" * 3)
            host = EventProcessorHost("a", env.connection, store=env.store, clock=env.clock)
            await host.register(Rows, EventProcessorOptions(concurrency=N))
            await env.until_checkpoint(29)
            await host.stop()
        assert handler.most == N
        assert calls == ["open", "close"]

    run(scenario())


def test_a_fixed_processor_handles_keys_at_once() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            await env.send_keys("abcde" * 4)
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, clock=env.clock, concurrency=N
            )
            processor.on_batch(handler)
            async with processor:
                await until(lambda: len(handler.handled) == 20)
            await env.until_checkpoint(19)
        assert handler.most == N
        handler.check_order()

    run(scenario())


async def test_plain_functions_run_in_threads_at_once() -> None:
    """In real time: a virtual loop does not wait for a thread."""
    met = threading.Barrier(N)
    handled: list[int | None] = []

    def handle(partition: PartitionClient, events: list[Event]) -> None:
        met.wait(60)
        handled.extend(event.sequence for event in events)

    async with Env() as env:
        await env.send_keys("abcd")
        async with env.host(handle, clock=SystemClock()):
            async with asyncio.timeout(600):
                while len(handled) < N:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await env.until_checkpoint(3)
    assert sorted(each or 0 for each in handled) == [0, 1, 2, 3]
    assert not env.errors


# -- together with other options ------------------------------------------------------------------


def test_each_handler_that_hangs_is_reported_and_others_continue() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            held = [handler.hold("a"), handler.hold("b")]
            await env.send_keys("abccc")
            async with env.host(handler):
                await until(lambda: len(env.errors) == 2)
                assert len(handler.handled) == 3
                await asyncio.sleep(300)
                assert stuck_at(env.errors) == [0, 1]
                for each in held:
                    each.set()
                await env.until_checkpoint(4)

    run(scenario())


def test_only_the_handler_that_hangs_is_cancelled() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(
            OPTIONS,
            on_handler_timeout="cancel",
            poison=PoisonPolicy(retries=1, then="skip"),
            batch_events_max=10,
        )
        async with Env() as env:
            handler.hold("a")
            await env.send_keys("ab" + "bbbb" * 30)
            async with env.host(handler, options):
                await env.until_checkpoint(121)
        assert stuck_at(env.errors) == [0, 0]
        assert len(handler.handled) == 121

    run(scenario())


def test_a_pause_completes_what_has_started_and_a_resume_continues() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, batch_events_max=1)
        async with Env() as env:
            await env.send_keys("aaab" + "abcd" * 5)
            async with env.host(handler, options) as host:
                await until(lambda: ("b", 3) in handler.handled)
                host.processor.pause()
                await asyncio.sleep(60)
                paused = len(handler.handled)
                assert paused < 24
                await env.until_checkpoint(paused - 1)
                host.processor.resume()
                await env.until_checkpoint(23)

    run(scenario())


def test_no_more_events_are_read_ahead_than_allowed() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(
            OPTIONS, concurrency=Concurrency(N, ahead_events_max=10), batch_events_max=5
        )
        async with Env() as env:
            held = handler.hold("a")
            await env.send_keys("a" + "bcde" * 20)
            async with env.host(handler, options) as host:
                await asyncio.sleep(60)
                assert host.client.order is not None
                assert 10 <= host.client.order.ahead < 15
                held.set()
                await env.until_checkpoint(80)

    run(scenario())


def test_a_checkpoint_is_written_in_time_while_the_reader_waits_for_events() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, checkpoints=CheckpointPolicy(every_s=5.0))
        async with Env() as env, env.host(handler, options):
            await until(lambda: env.store is not None)
            await asyncio.sleep(100)
            await env.send_keys("abc")
            sent_s = env.clock.monotonic()
            await env.until_checkpoint(2)
            assert env.clock.monotonic() - sent_s < 8

    run(scenario())


def test_a_checkpoint_never_passes_an_event_of_another_handler() -> None:
    async def scenario() -> None:
        handler = Handler()

        async def handle(partition: PartitionClient, events: list[Event]) -> None:
            await handler(partition, events)
            await partition.checkpoint(events[-1])

        options = replace(OPTIONS, checkpoints=CheckpointPolicy())
        async with Env() as env:
            held = handler.hold("b")
            await env.send_keys("abcd")
            async with env.host(handle, options):
                await until(lambda: len(handler.handled) == 3)
                await env.until_checkpoint(0)
                await asyncio.sleep(60)
                await env.until_checkpoint(0)
                held.set()
                await env.until_checkpoint(3)

    run(scenario())


def test_a_handler_may_stop_its_processor() -> None:
    async def scenario() -> None:
        handled: list[int] = []

        async def handle(partition: PartitionClient, events: list[Event]) -> None:
            await host.processor.stop()
            handled.append(len(events))

        async with Env() as env:
            await env.send_keys("a")
            host = env.host(handle)
            async with host:
                started_s = env.clock.monotonic()
                await until(lambda: handled)
            assert env.clock.monotonic() - started_s < 5

    run(scenario())


def test_an_empty_batch_tells_that_no_event_has_come() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            held = handler.hold("a")
            await env.send_keys("a")
            async with env.host(handler, replace(OPTIONS, max_wait_s=10.0)):
                await asyncio.sleep(50)
                assert handler.empty_calls == 0, "an event is in hand"
                held.set()
                await until(lambda: handler.empty_calls >= 2)

    run(scenario())


# -- what is refused ------------------------------------------------------------------------------


def test_a_transaction_is_refused() -> None:
    async def scenario() -> None:
        refused: list[Exception] = []

        async def handle(partition: PartitionClient, events: list[Event]) -> None:
            with pytest.raises(OptionError, match=r"transaction\(\) needs concurrency=1") as error:
                partition.transaction()
            refused.append(error.value)

        async with Env() as env:
            await env.send_keys("a")
            async with env.host(handle):
                await until(lambda: refused)

    run(scenario())


def test_loops_over_batches_are_refused() -> None:
    async def scenario() -> None:
        async def serve(partition: PartitionClient) -> None:
            raise AssertionError("not called")

        async with Env() as env:
            processor = Processor(env.connection, store=env.store, options=OPTIONS)
            with pytest.raises(OptionError, match=r"run\(serve\) handles one batch at a time"):
                await processor.run(serve)
            with pytest.raises(OptionError, match=r"partitions\(\) handles one batch at a time"):
                await anext(aiter(processor.partitions()))
            with pytest.raises(OptionError, match="give one of them"):
                await processor.run(serve, handler=Handler())

    run(scenario())


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: ProcessorOptions(**options),
        lambda **options: EventProcessorOptions(**options),
    ],
)
def test_options_that_do_not_fit_are_refused(make: Callable[..., object]) -> None:
    with pytest.raises(OptionError, match="concurrency must be at least 1"):
        make(concurrency=0)
    with pytest.raises(OptionError, match="concurrency must be a whole number"):
        make(concurrency="4")
    with pytest.raises(OptionError, match=r"'stop-key'.* needs concurrency above 1"):
        make(poison=PoisonPolicy(then="stop-key"))

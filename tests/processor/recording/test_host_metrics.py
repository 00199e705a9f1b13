"""The metrics of hosts on a real hub: what they show, and when their series vanish."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pumphouse.events import Event
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    EventProcessorOptions,
    PoisonPolicy,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.recording.recorder import NO_RECORDER
from pumphouse.processor.reporting import RELEASED
from pumphouse.telemetry.definitions import LEASE_OPERATIONS, METRICS, PROCESS_DURATION
from pumphouse.telemetry.meter import METER
from pumphouse.telemetry.prometheus import metric_name, page
from tests.lag.prometheus_server import promtool
from tests.processor.support.fleet import Fleet
from tests.processor.support.hub_and_store import HUB, HubAndStore, until
from tests.processor.support.virtual_time import run
from tests.telemetry.page import recording, scrape

PREFIX = "pumphouse_processor_"
PROCESS = "messaging_process_duration_seconds"


@pytest.fixture(autouse=True)
def recorded() -> Iterator[None]:
    with recording():
        yield


def value(name: str, **labels: str) -> float:
    (found,) = scrape(f"{PREFIX}{name}", **labels).values()
    return found


def calls(error: str = "") -> tuple[float, Any]:
    """The number of recorded calls that ended so, and their seconds. Cheaper than a scrape."""
    chosen = [each for each in METER.series(PROCESS_DURATION)]
    chosen = [each for each in chosen if each.labels.get("error.type", "") == error]
    return sum(each.count for each in chosen), sum(each.total for each in chosen)


def operations(host: str, operation: str) -> float:
    labels = {"host": host, "op": operation, "outcome": "ok"}.items()
    return sum(
        each.total for each in METER.series(LEASE_OPERATIONS) if labels <= each.labels.items()
    )


def check_page(text: str) -> None:
    """Every metric of a processor is there, and Prometheus' own tool accepts the page."""
    names = [metric_name(each) for each in METRICS.values() if each.name.startswith("pumphouse.p")]
    assert names
    assert [name for name in names if f"# TYPE {name}" not in text] == []
    checked = promtool("check", "metrics", text=text)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_host_shows_what_it_owns_and_its_series_vanish() -> None:
    async def scenario() -> None:
        async with Fleet(4) as fleet:
            await fleet.add("m-a")
            await fleet.until_even()
            await fleet.add("m-b")
            await fleet.until_even()
            for host in ("m-a", "m-b"):
                assert value("owned_partitions", host=host) == 2
            labels = {"eventhub": "eh", "group": "$Default", "host": "m-a"}
            assert value("handoffs_total", outcome="clean", **labels) == 2
            assert value("handoff_seconds_count", **labels) == 2
            assert value("lease_operations_total", op="claim", outcome="ok", **labels) == 4
            assert value("lease_operations_total", op="release", outcome="ok", **labels) == 2
            assert value("lease_operations_total", op="request", outcome="ok", host="m-b") == 2
            assert value("cycle_seconds_count", **labels) >= 2
            listed = {"op": "list_ownership", "outcome": "ok"}
            assert value("store_request_seconds_count", **listed, **labels) >= 2
            check_page(page().decode())
            await fleet.leave("m-b")
            assert scrape(PREFIX, host="m-b") == {}
            fleet.hosts["m-a"].abandon()
            assert scrape(PREFIX, host="m-a") == {}
        assert scrape(PROCESS) == {}

    run(scenario())


def test_series_of_a_partition_that_was_handed_over_vanish() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            await fleet.add("m-a")
            await fleet.until_even()
            assert len(scrape(f"{PREFIX}queue_events", host="m-a")) == 2
            assert len(scrape(f"{PROCESS}_count")) == 2
            await fleet.add("m-b")
            await fleet.until_even()
            for name in ("queue_events", "checkpoint_age_seconds"):
                for host in ("m-a", "m-b"):
                    (series,) = scrape(f"{PREFIX}{name}", host=host)
                    assert ("partition", fleet.hosts[host].owned[0]) in series[1]

    run(scenario())


def test_the_age_of_a_checkpoint_and_the_queue() -> None:
    async def scenario() -> None:
        blocked = asyncio.Event()

        async def work(partition: PartitionClient, batch: list[Event]) -> None:
            if batch[-1].sequence == 19:
                await blocked.wait()

        options = replace(ProcessorOptions(), batch_events_max=10, handler_timeout_s=60.0)
        async with Fleet(1, options=options) as fleet:
            host = await fleet.add("m-a", work=work, checkpoint=False)
            await fleet.until_even()
            await fleet.send(25)
            await fleet.until(lambda: len(fleet.record["0"]) == 20, "the second batch")
            await asyncio.sleep(50.0)  # the first batch is handled, and not in the checkpoint
            assert value("checkpoint_age_seconds", host="m-a") == pytest.approx(50.0, abs=1.0)
            assert value("queue_events", host="m-a") == 5
            assert value("stuck_handlers", host="m-a") == 0
            await asyncio.sleep(20.0)
            assert value("stuck_handlers", host="m-a") == 1
            blocked.set()
            await fleet.until_handled()
            assert value("stuck_handlers", host="m-a") == 0
            assert value("queue_events", host="m-a") == 0
            client = next(iter(host._supervisors.values())).client
            assert client is not None
            await client.checkpoint()
            assert value("checkpoint_age_seconds", host="m-a") == 0

    run(scenario())


def test_a_turn_of_the_loop_over_batches_is_recorded() -> None:
    async def scenario() -> None:
        async def work(partition: PartitionClient, batch: list[Event]) -> None:
            await asyncio.sleep(3.0)
            if batch[0].body == b"10":
                raise ValueError("cannot")

        async with Fleet(1) as fleet:
            await fleet.add("m-a", work=work)
            await fleet.until_even()
            await fleet.send(10)
            await fleet.until_handled()
            await fleet.until(lambda: calls() != (0, 0), "the call to end")
            assert calls() == (1, pytest.approx(3.0, abs=0.5))
            await fleet.send(1)
            await fleet.until(lambda: calls("_OTHER")[0] >= 1, "the loop to be left")

    run(scenario())


def test_each_call_of_a_class_and_each_retry_is_recorded() -> None:
    class Slow:
        async def open(self, context: PartitionContext) -> None: ...
        async def close(self, context: PartitionContext, reason: object) -> None: ...
        async def process_error(self, context: PartitionContext, error: Exception) -> None: ...
        async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            await asyncio.sleep(2.0)
            if messages[0].body == b"bad":
                raise ValueError("bad")

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            options = EventProcessorOptions(poison=PoisonPolicy(retries=1, then="skip"))
            host = EventProcessorHost("m-a", env.connection, store=env.store, clock=env.clock)
            await host.register(Slow, options)
            await env.send("bad", "good")
            await until(lambda: calls()[0] == 1)
            # The batch twice, and each event by itself.
            assert calls("ValueError") == (3, pytest.approx(6.0, abs=0.1))
            assert calls() == (1, pytest.approx(2.0, abs=0.1))
            assert value("poison_events_total", end="skip", host="m-a") == 1
            assert value("poison_events_total", end="stop", host="m-a") == 0
            await host.unregister()

    run(scenario())


def test_each_call_of_a_function_is_recorded() -> None:
    async def on_message(context: PartitionContext, event: Event) -> None:
        await asyncio.sleep(1.0)

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            host = EventProcessorHost("m-a", env.connection, store=env.store, clock=env.clock)
            await host.start(on_message)
            await env.send("a", "b", "c")
            await until(lambda: calls()[0] == 3)
            assert calls() == (3, pytest.approx(3.0, abs=0.1))
            await host.unregister()

    run(scenario())


def test_each_call_of_a_fixed_processor_is_recorded() -> None:
    handled: list[int] = []

    async def handle(partition: PartitionClient, batch: list[Event]) -> None:
        handled.append(len(batch))

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, host="m-a", clock=env.clock
            )
            processor.on_batch(handle)
            async with processor:
                await env.send("a", "b")
                await until(lambda: sum(handled) == 2 and calls()[0])
                assert calls()[0] == len(handled)

    run(scenario())


def test_a_failing_store_is_measured_by_its_error() -> None:
    class Away(MemoryStore):
        async def list_ownership(self, *args: Any) -> Any:
            raise OSError("away")

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            store = Away(env.clock)
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=store, host="m-a", clock=env.clock
            )
            async with processor:
                await until(lambda: processor.engine.reporter.counts["cycle_failed"] >= 2)
                failed = {"op": "list_ownership", "outcome": "OSError", "host": "m-a"}
                assert value("store_request_seconds_count", **failed) >= 2
                assert value("cycle_seconds_count", host="m-a") >= 1

    run(scenario())


def test_a_partition_given_up_with_a_stuck_handler_is_released_once() -> None:
    """I19: the log, the metrics and the callback agree."""

    async def work(partition: PartitionClient, batch: list[Event]) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        options = replace(ProcessorOptions(), handler_timeout_s=15.0, on_handler_timeout="give-up")
        async with Fleet(1, options=options) as fleet:
            await fleet.add("m-a", work=work)
            await fleet.until_even()
            await fleet.send(1)
            await fleet.until(lambda: operations("m-a", "release") == 1, "the release")
            assert fleet.changes.count(("m-a", RELEASED, "0")) == 1

    run(scenario())


def test_nothing_is_recorded_while_nothing_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    METER.is_served = False
    monkeypatch.setattr(METER, "uses_opentelemetry", False)

    async def scenario() -> None:
        async with Fleet(1) as fleet:
            host = await fleet.add("m-a")
            assert host.reporter.recorder is NO_RECORDER
            assert host.store is fleet.store
            await fleet.until_even()
            assert scrape(PREFIX, eventhub=HUB) == {}

    run(scenario())

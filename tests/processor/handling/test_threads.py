"""Plain handlers in threads: how many threads there are, and what a handler that hangs delays."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace

import pytest

from pumphouse.client.factory import open_client
from pumphouse.clock import SystemClock
from pumphouse.errors import HandlerStuck
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.handling.threads import DaemonThreads, ThreadCall, call_user_code
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from tests.processor.handling.test_handlers import OPTIONS, HandlerHost

FAST = replace(OPTIONS, interval_s=0.05, renew_s=0.05, lease_s=60.0)

HANGING_HOSTS = {
    "fixed": """
        from pumphouse import FixedPartitionProcessor

        def make(connection, store):
            processor = FixedPartitionProcessor(connection, partitions=1, store=store, stop_s=0.1)
            processor.on_batch(hang)
            return processor

        async def start(processor):
            await processor.start()
    """,
    "host": """
        from pumphouse import EventProcessorHost
        from pumphouse.processor.options import EventProcessorOptions

        def make(connection, store):
            return EventProcessorHost("a", connection, store=store)

        async def start(host):
            await host.start(hang, options=EventProcessorOptions(stop_s=0.1))
    """,
}
PROGRAM = """
import asyncio, logging, threading
from azure.eventhub import EventData, EventHubProducerClient
from pumphouse import EmbeddedHub, MemoryStore

logging.basicConfig(level=logging.WARNING)
running = threading.Event()

def hang(*args):
    running.set()
    threading.Event().wait()

{host}

async def main():
    async with EmbeddedHub({{"eh": 1}}) as hub:
        connection = hub.connection_string("eh")
        def send():
            with EventHubProducerClient.from_connection_string(connection) as producer:
                producer.send_batch([EventData("x")])
        await asyncio.to_thread(send)
        processor = make(connection, MemoryStore())
        await start(processor)
        await asyncio.to_thread(running.wait, 60)
        await processor.stop()
        print("stopped", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("name", HANGING_HOSTS)
def test_a_plain_handler_that_hangs_does_not_keep_the_process_alive(name: str) -> None:
    program = PROGRAM.format(host=textwrap.dedent(HANGING_HOSTS[name]))
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "stopped\n"), ended.stderr
    assert "handler_abandoned" in ended.stderr


async def test_a_handler_that_waits_for_a_thread_is_not_stuck() -> None:
    busy, release = threading.Event(), threading.Event()
    handled: list[str] = []

    def compute(partition: PartitionClient, batch: list[Event]) -> None:
        busy.set()
        release.wait(60)
        handled.append(partition.id)

    options = replace(FAST, handler_threads=1, handler_timeout_s=0.2)
    async with HandlerHost(compute, options, clock=SystemClock()) as host:
        await host.send(b"1", partition="0")
        await host.send(b"1", partition="1")
        await host.until(lambda: any(isinstance(error, HandlerStuck) for _, error in host.errors))
        release.set()
        await host.until(lambda: len(handled) == 2)
    stuck = [partition for partition, error in host.errors if isinstance(error, HandlerStuck)]
    assert stuck == handled[:1]


async def test_a_pool_starts_a_thread_only_when_all_others_are_busy() -> None:
    threads, names = DaemonThreads(4, "pool"), set[str]()
    for _ in range(10):
        await call_user_code(threads, lambda: names.add(threading.current_thread().name))
    assert names == {"pool 1"}
    meeting = threading.Barrier(4)
    await asyncio.gather(*(call_user_code(threads, meeting.wait, 30) for _ in range(4)))
    assert threads.close() == 0


async def test_a_closed_pool_cancels_calls_that_wait_and_counts_those_that_run() -> None:
    threads, running, release = DaemonThreads(1, "pool"), threading.Event(), threading.Event()

    def hang() -> None:
        running.set()
        release.wait(60)

    first, second = threads.submit(hang), threads.submit(hang)
    await asyncio.to_thread(running.wait, 60)
    assert threads.close() == 1
    assert second.cancelled()
    release.set()
    await asyncio.wrap_future(first)
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(hang)


def test_stop_iteration_becomes_an_error_that_a_future_can_hold() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        ThreadCall(next, iter(()))()


def test_the_default_number_of_threads_serves_32_partitions_at_once() -> None:
    assert ProcessorOptions().handler_threads == 32


@pytest.mark.parametrize(
    ("owned", "concurrency", "expected"), [(1, 1, 1), (2, 1, 2), (1, 3, 3), (2, 3, 6), (2, 20, 32)]
)
async def test_the_threads_follow_owned_partitions_and_concurrency_up_to_the_limit(
    owned: int, concurrency: int, expected: int
) -> None:
    lock, release = threading.Lock(), threading.Event()
    threads: set[int] = set()
    running: list[int] = [0, 0]  # now, at most

    def handle(partition: PartitionClient, batch: list[Event]) -> None:
        with lock:
            threads.add(threading.get_ident())
            running[0] += 1
            running[1] = max(running)
        release.wait(60)
        with lock:
            running[0] -= 1

    options = replace(FAST, concurrency=concurrency, max_partitions=owned, batch_events_max=1)
    async with HandlerHost(handle, options, clock=SystemClock()) as host:
        for partition in ("0", "1"):
            await host.send(*[b"event"] * 25, partition=partition)
        await host.until(lambda: running[0] == expected)
        release.set()
        await host.until(lambda: running[0] == 0)
    assert (len(threads), running[1]) == (expected, expected)


async def test_plain_methods_run_in_threads() -> None:
    """In real time: a virtual loop does not wait for a thread."""
    threads: set[str] = set()
    handled = threading.Event()

    class PlainProcessor:
        def open(self, context: PartitionContext) -> None:
            threads.add(threading.current_thread().name)

        def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            threads.add(threading.current_thread().name)
            handled.set()

        def process_error(self, context: PartitionContext, error: Exception) -> None: ...

        def close(self, context: PartitionContext, reason: CloseReason) -> None:
            threads.add(threading.current_thread().name)

    async with (
        EmbeddedHub({"sensors": 1}) as hub,
        open_client(hub.connection_string("sensors")) as client,
    ):
        await (await client.sender()).send([Event(b"x")])
        host = EventProcessorHost("a", hub.connection_string("sensors"), store=MemoryStore())
        async with host:
            await host.register(PlainProcessor)
            assert await asyncio.to_thread(handled.wait, 60)
    assert threads
    assert all(name.startswith("pumphouse processor") for name in threads)

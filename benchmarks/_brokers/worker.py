"""A client of a broker in its own process: does one task and prints the result.

python -m benchmarks._brokers.worker TASK KIND ADDRESS STREAM MODE NUMBER...

publish  BROKER_PID SIZE EVENTS      costs of publishing
consume  BROKER_PID EVENTS PASSES    costs of reading all events of a stream
delays   EVENTS RATE                 times from publishing to reading, at a fixed rate
pace     EVENTS RATE                 publishes for `delays`
load     SIZE EVENTS                 publishes, without costs
flood    SECONDS                     publishes numbered events until the broker is gone
find     EVENTS                      how many of the first numbered events are still there
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib import import_module
from typing import NamedTuple

from benchmarks._brokers.model import BATCH_EVENTS, Client
from benchmarks._processes import cpu_s, print_result

CLIENTS = {
    "hub-native": "hub:NativeHubClient",
    "hub-bulk": "hub:BulkHubClient",
    "hub-sdk": "hub:SdkHubClient",
    "redis": "redis_streams:RedisClient",
    "nats": "nats_jetstream:NatsClient",
    "kafka": "kafka_mock:KafkaClient",
    "rabbitstream": "rabbitmq:StreamClient",
    "rabbitqueue": "rabbitmq:QueueClient",
}
GONE_S = 5.0  # without a further event, the rest of the events is gone
ATTACH_S = 20.0  # for the first event
WARM_EVENTS = 20  # the first delays include connecting
TASK_S = 240.0


class Clocks(NamedTuple):
    wall_s: float
    client_s: float
    broker_s: float


class Meter:
    """Adds up the costs of the measured intervals."""

    def __init__(self, broker_pid: int) -> None:
        self.broker_pid = broker_pid
        self.total = Clocks(0.0, 0.0, 0.0)

    def read(self) -> Clocks:
        return Clocks(time.perf_counter(), cpu_s(os.getpid()), cpu_s(self.broker_pid))

    def start(self) -> None:
        self.started = self.read()

    def stop(self) -> None:
        passed = zip(self.total, self.read(), self.started, strict=True)
        self.total = Clocks(*(total + end - start for total, end, start in passed))


def make_client(kind: str, address: str, stream: str, mode: str) -> Client:
    module, _, name = CLIENTS[kind].partition(":")
    client: Client = getattr(import_module(f"benchmarks._brokers.{module}"), name)(
        address, stream, mode
    )
    return client


def batches_of(body: bytes, events: int) -> Iterator[Sequence[bytes]]:
    for first in range(0, events, BATCH_EVENTS):
        yield [body] * min(BATCH_EVENTS, events - first)


class Counter:
    """Counts acknowledged events."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> None:
        self.count += number


async def publish(client: Client, pid: int, size: int, events: int) -> None:
    acknowledged, meter = Counter(), Meter(pid)
    # Brokers and clients load code for their first batch. The events of this one are tiny.
    await client.publish(batches_of(b"x", BATCH_EVENTS), lambda count: None)
    meter.start()
    await client.publish(batches_of(bytes(size), events), acknowledged.add)
    meter.stop()
    if acknowledged.count != events:
        raise RuntimeError(f"{acknowledged.count} of {events} events were acknowledged")
    print_result(events=events, **meter.total._asdict())


async def consume(client: Client, pid: int, events: int, passes: int) -> None:
    meter = Meter(pid)
    for _ in range(passes):
        meter.start()
        seen, reading = 0, client.consume()
        async for bodies in reading:
            seen += len(bodies)
            if seen >= events:
                break
        meter.stop()
        await reading.aclose()  # type: ignore[attr-defined]
    print_result(events=events * passes, **meter.total._asdict())


async def load(client: Client, size: int, events: int) -> None:
    await client.publish(batches_of(bytes(size), events), lambda count: None)
    print_result(events=events)


# -- delays ---------------------------------------------------------------------------------------


async def delays(client: Client, events: int, rate: int) -> None:
    """Milliseconds from just before an event is published until its body is here."""
    command = [sys.executable, "-m", __spec__.name, "pace", *sys.argv[2:6], str(events), str(rate)]
    pacing = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL)
    found: list[float] = []
    reading = client.consume()
    async for bodies in reading:
        now = time.monotonic_ns()
        found += [(now - int(body)) / 1e6 for body in bodies]
        if len(found) >= events:
            break
        await asyncio.sleep(0)
    await reading.aclose()  # type: ignore[attr-defined]
    await pacing.wait()
    print_result(delays_ms=found[WARM_EVENTS:])


async def pace(client: Client, events: int, rate: int) -> None:
    due = time.monotonic()
    for _ in range(events):
        due += 1 / rate
        await asyncio.sleep(due - time.monotonic())
        await client.send(b"%d" % time.monotonic_ns())
    print_result(events=events)


# -- a crash --------------------------------------------------------------------------------------


def numbered() -> Iterator[Sequence[bytes]]:
    first = 0
    while True:
        yield [b"%d" % number for number in range(first, first + BATCH_EVENTS)]
        first += BATCH_EVENTS


async def flood(client: Client, seconds: int) -> None:
    """Publish until the broker is killed; a client may wait for a lost broker until the end."""
    acknowledged = Counter()

    def add(number: int) -> None:
        if not acknowledged.count:
            print_result(started=True)
        acknowledged.add(number)

    try:
        async with asyncio.timeout(seconds):
            await client.publish(numbered(), add)
    except Exception as error:  # each client has its own
        print(f"ended: {type(error).__name__}", file=sys.stderr)
    print_result(acknowledged=acknowledged.count)
    sys.stdout.flush()
    os._exit(0)  # some clients wait for the broker when they are closed


async def find(client: Client, events: int) -> None:
    missing = set(range(events))
    until = time.monotonic() + ATTACH_S
    async for bodies in client.consume():
        missing.difference_update(map(int, bodies))
        if bodies:
            until = time.monotonic() + GONE_S
        if not missing or time.monotonic() > until:
            break
        await asyncio.sleep(0)
    print_result(missing=len(missing))


TASKS: dict[str, Callable[..., Awaitable[None]]] = {
    "publish": publish,
    "consume": consume,
    "delays": delays,
    "pace": pace,
    "load": load,
    "flood": flood,
    "find": find,
}


async def main(task: str, kind: str, address: str, stream: str, mode: str, *rest: str) -> None:
    client = make_client(kind, address, stream, mode)
    async with asyncio.timeout(TASK_S):
        await client.open()
        await TASKS[task](client, *map(int, rest))
        await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""librdkafka's mock broker, in a process of its own, and confluent-kafka. Only in memory.

    python -m benchmarks._brokers.kafka_mock      # the mock broker; prints its address

The client cuts its own batches, as is usual with Kafka. The mock keeps 5 MiB of a partition and
drops older events, so less is published and it is read more often.
"""

from __future__ import annotations

import asyncio
import selectors
import signal
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

from benchmarks._brokers.model import (
    IDLE_S,
    INSTALL,
    MEMORY,
    PEERS_PYTHON,
    WINDOW,
    Acknowledged,
    Kind,
    Launch,
)
from benchmarks._brokers.servers import NotReady

KEEPS_BYTES = 4 << 20
READ_COUNT = 1000
FETCH_WAIT_MS = 5
DELIVER_S = 30.0


class KafkaMock:
    name = "librdkafka's mock broker"
    kinds = (
        Kind(
            "kafka",
            "librdkafka's mock broker",
            PEERS_PYTHON,
            modes=(MEMORY,),
            keeps_bytes=KEEPS_BYTES,
            survives=False,
        ),
    )

    def absent(self) -> str:
        return "" if PEERS_PYTHON.exists() else INSTALL

    def launch(self, folder: Path, mode: str) -> Launch:
        command = [str(PEERS_PYTHON), "-m", "benchmarks._brokers.kafka_mock"]
        return Launch((command,), {}, ready, prints_address=True)


def ready(process: Popen[bytes], until: float) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        if not waiting.select(until - time.monotonic()):
            raise NotReady("no address")
    address = process.stdout.readline().decode().strip()
    if not address:
        raise NotReady(f"it ended with status {process.wait()}")
    return address


def serve() -> None:
    """Run the mock broker, which lives as long as the producer that has it, until SIGTERM."""
    from confluent_kafka import Producer

    holder = Producer({"test.mock.num.brokers": 1})
    (broker,) = holder.list_topics(timeout=10).brokers.values()
    print(f"{broker.host}:{broker.port}", flush=True)
    signal.sigwait({signal.SIGTERM})


class KafkaClient:
    def __init__(self, address: str, stream: str, mode: str) -> None:
        self.address, self.stream = address, stream
        self.producer: Any = None

    async def open(self) -> None:
        """The mock creates topics at their first use."""

    async def close(self) -> None:
        if self.producer is not None:
            self.producer.flush(DELIVER_S)

    def use_producer(self, **settings: object) -> None:
        from confluent_kafka import Producer

        if self.producer is None:
            common = {"bootstrap.servers": self.address, "acks": "all"}
            self.producer = Producer({**common, **settings})

    async def publish(self, batches: Iterable[Sequence[bytes]], acknowledged: Acknowledged) -> None:
        # A window of 2,000 events would always be waiting for the default linger time of 5 ms.
        self.use_producer(**{"linger.ms": 0.5})
        pending = 0

        def delivered(error: object, message: object) -> None:
            nonlocal pending
            if error is not None:
                raise RuntimeError(f"not delivered: {error}")
            pending -= 1
            acknowledged(1)

        for batch in batches:
            for body in batch:
                self.producer.produce(self.stream, body, partition=0, on_delivery=delivered)
            pending += len(batch)
            self.producer.poll(0)
            while pending > WINDOW - len(batch):
                self.producer.poll(0.01)
        self.producer.flush(DELIVER_S)

    async def send(self, body: bytes) -> None:
        self.use_producer(**{"linger.ms": 0})
        self.producer.produce(self.stream, body, partition=0)
        self.producer.flush(DELIVER_S)

    async def consume(self) -> AsyncIterator[Sequence[bytes]]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        settings = {
            "bootstrap.servers": self.address,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            # The mock responds to a fetch only at the end of this wait; the default is 500 ms.
            "fetch.wait.max.ms": FETCH_WAIT_MS,
        }
        consumer: Any = Consumer(settings)
        consumer.assign([TopicPartition(self.stream, 0, OFFSET_BEGINNING)])
        try:
            while True:
                first = consumer.poll(IDLE_S)
                # `consume` waits for as many as it was asked for: ask without a wait.
                found = [first, *consumer.consume(READ_COUNT, 0)] if first is not None else []
                yield [message.value() for message in found if message.error() is None]
                await asyncio.sleep(0)
        finally:
            consumer.close()


if __name__ == "__main__":
    serve()

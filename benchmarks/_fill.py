"""Fills a data directory with events by writing to the log, without clients.

python -m benchmarks._fill DIR EVENTS BODY_BYTES
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from benchmarks._processes import print_result
from pumphouse.amqp.messages import BATCH_FORMAT, Message, encode_batch, encode_message
from pumphouse.clock import SystemClock, now_ms
from pumphouse.errors import AmqpError
from pumphouse.hub.annotations import parse_payload
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import Retention

PARTITIONS = 16
BATCH = 1000
OUTSTANDING = 64
RETENTION = Retention(bytes_max=1 << 40)


async def fill(directory: Path, events: int, body: int) -> None:
    message = encode_message(Message(data=(bytes(body),)))
    batch = parse_payload(encode_batch([message] * BATCH), BATCH_FORMAT)
    async with EmbeddedHub(
        {"hub0": PARTITIONS}, data=directory, sync="never", retention=RETENTION
    ) as hub:
        logs = [partition.log for partition in hub.namespace.hub("hub0").partitions]
        slots = asyncio.Semaphore(OUTSTANDING)

        def committed(failed: AmqpError | None) -> None:
            assert failed is None, failed
            slots.release()

        for number in range(events // BATCH):
            await slots.acquire()
            now = now_ms(SystemClock())
            logs[number % PARTITIONS].publish(batch, now, None, committed)
        for _ in range(OUTSTANDING):
            await slots.acquire()
    print_result(events=events // BATCH * BATCH)


if __name__ == "__main__":
    asyncio.run(fill(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

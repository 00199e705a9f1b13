"""Records the frames of the official client: python -m tests.amqp.record_sdk_frames

It runs azure-eventhub against an embedded hub through a recording proxy, and writes one frame of
each kind to recorded_sdk_frames.json. Requests to $cbs and $management are recorded without their
payload, because it contains tokens.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient

from pumphouse.amqp.composites import decode_performative, encode_performative
from pumphouse.amqp.frames import ByteReader, Frame
from pumphouse.amqp.performatives import Attach, Target, Transfer
from pumphouse.hub.embedded import EmbeddedHub

RECORD = Path(__file__).parent / "recorded_sdk_frames.json"
HUB = "recorded"


class Proxy:
    """Carries bytes between client and hub, and records those of the client per connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: list[bytearray] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = bytearray()
        self.streams.append(stream)
        hub_reader, hub_writer = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(carry(reader, hub_writer, stream), carry(hub_reader, writer))


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray | None = None
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            if record is not None:
                record += data
            writer.write(data)
            await writer.drain()
        writer.close()


async def use(connection: str) -> None:
    """Use every feature once."""
    producer = EventHubProducerClient.from_connection_string(connection)
    async with producer:
        await producer.get_eventhub_properties()
        batch = await producer.create_batch(partition_key="home-7")
        for number in range(3):
            event = EventData(f"event {number}")
            event.properties = {"number": number, "float": 1.5, "text": "é", "flag": True}
            event.message_id = f"id-{number}"
            batch.add(event)
        await producer.send_batch(batch)
        await producer.send_batch([EventData(b"x" * 100_000)], partition_id="0")  # several frames
        await producer.send_event(EventData("alone"))
    consumer = EventHubConsumerClient.from_connection_string(connection, "$Default")
    got = asyncio.Event()

    async def on_event(context: Any, event: Any) -> None:
        got.set()

    async with consumer:
        reading = asyncio.create_task(
            consumer.receive(
                on_event,
                partition_id="0",
                starting_position="-1",
                owner_level=3,
                prefetch=10,
                track_last_enqueued_event_properties=True,
            )
        )
        await got.wait()
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


def frames_of(stream: bytes) -> list[dict[str, Any]]:
    reader = ByteReader(1 << 20)
    reader.feed(stream)
    frames = [{"name": "header", "body": (reader.header() or b"").hex()}]
    secret: set[int] = set()  # handles of links to $cbs and $management
    while reader.pending:
        if (rest := stream[len(stream) - reader.pending :]).startswith(b"AMQP"):
            frames.append({"name": "header", "body": rest[:8].hex()})
            reader.header()
        elif (frame := reader.frame()) is None:
            break
        elif frame.start < frame.end:
            frames.append(describe(frame, secret))
    return frames


def describe(frame: Frame, secret: set[int]) -> dict[str, Any]:
    body = frame.data[frame.start : frame.end]
    performative, after = decode_performative(body, 0, len(body))
    if isinstance(performative, Attach) and "$" in str(cast(Target, performative.target).address):
        secret.add(performative.handle)
    if isinstance(performative, Transfer) and performative.handle in secret:
        body = body[:after]
    if len(body) - after > 1000:
        body = body[: after + 40]  # the rest repeats one letter
    return {
        "name": performative.NAME,
        "kind": frame.kind,
        "channel": frame.channel,
        "body": body.hex(),
    }


def kind_of(frame: dict[str, Any]) -> str:
    """The kind of a frame: frames of one kind differ in numbers and names only."""
    if frame["name"] in ("header", "sasl-init"):
        return str(frame["body"])
    body = bytes.fromhex(frame["body"])
    performative, after = decode_performative(body, 0, len(body))
    if isinstance(performative, Attach):
        fields = (performative.source, performative.desired_capabilities, performative.properties)
        return f"attach {performative.role} {' '.join(map(str, fields))}"
    if isinstance(performative, Transfer):
        performative = replace(performative, handle=0, delivery_id=0, delivery_tag=b"")
        return f"transfer {performative} {len(body) - after > 0}"
    return str(frame["name"]) + encode_performative(performative).hex()[:12]


async def record() -> None:
    async with EmbeddedHub({HUB: 1}) as hub:
        proxy = Proxy(hub.port)
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await use(hub.connection_string(HUB).replace(f":{hub.port}", f":{port}"))
        server.close()
    kinds: dict[str, dict[str, Any]] = {}
    for stream in proxy.streams:
        for frame in frames_of(bytes(stream)):
            kinds.setdefault(kind_of(frame), frame)
    lines = ",\n ".join(json.dumps(frame) for frame in kinds.values())
    RECORD.write_text(f"[{lines}]\n")


if __name__ == "__main__":
    asyncio.run(record())

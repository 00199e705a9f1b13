"""One round trip of the official clients through any listener."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, TransportType

from pumphouse.hub.embedded import EmbeddedHub
from tests.conformance.readers import BackgroundCloser, bodies
from tests.conformance.sdks import NEVER_S, SDKS

ONE_TRY = {"retry_total": 0}


def over_tls(hub: EmbeddedHub, host: str = "127.0.0.1") -> dict[str, Any]:
    """The options of the official client for the TLS port."""
    return {
        "transport_type": TransportType.Amqp,
        "custom_endpoint_address": f"sb://{host}:{hub.tls_port}",
        "connection_verify": str(hub.ca_file),
    }


def over_websocket(hub: EmbeddedHub, host: str = "127.0.0.1") -> dict[str, Any]:
    """The options of the official client for the WebSocket port."""
    return {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"sb://{host}:{hub.ws_port}",
        **({"connection_verify": str(hub.ca_file)} if hub.ca_file is not None else {}),
    }


async def send(
    sdk_name: str, connection: str, content: list[bytes], options: dict[str, Any]
) -> None:
    sdk = SDKS[sdk_name](BackgroundCloser())
    async with sdk.producer(connection, **ONE_TRY, **options) as producer:
        for body in content:
            await producer.send_batch([EventData(body)], partition_id="0")


async def read(sdk_name: str, connection: str, count: int, options: dict[str, Any]) -> list[bytes]:
    closer = BackgroundCloser()
    sdk = SDKS[sdk_name](closer)
    client = sdk.consumer_class.from_connection_string(
        connection, "$Default", load_balancing_interval=NEVER_S, **ONE_TRY, **options
    )
    async with sdk.read_with(client, "0") as reader:
        events = await reader.take(count)
    await closer.finish()
    return bodies(events)


async def round_trip(
    sdk_name: str, connection: str, content: list[bytes], options: dict[str, Any]
) -> list[bytes]:
    """Send to partition 0 and read it back, both through the same listener."""
    await send(sdk_name, connection, content, options)
    return await read(sdk_name, connection, len(content), options)


# -- JavaScript -----------------------------------------------------------------------------------

PACKAGES = Path(__file__).parents[2] / "conformance" / "js"
DEADLINE_S = 30.0
SCRIPT = """
import {
  EventHubConsumerClient, EventHubProducerClient, earliestEventPosition,
} from "@azure/event-hubs";

const { connection, websocket } = JSON.parse(process.env.PUMPHOUSE_LISTENER);
const options = { retryOptions: { maxRetries: 0, timeoutInMs: 10_000 } };
if (websocket) options.webSocketOptions = { webSocket: WebSocket };

const producer = new EventHubProducerClient(connection, options);
await producer.sendBatch([{ body: "hello" }], { partitionId: "0" });
await producer.close();

const consumer = new EventHubConsumerClient("$Default", connection, options);
const got = await new Promise((resolve, reject) => {
  consumer.subscribe("0", {
    processEvents: async (events) => { if (events.length) resolve(events[0].body); },
    processError: async (error) => reject(error),
  }, { startPosition: earliestEventPosition });
});
await consumer.close();
console.log(got);
"""


async def javascript_round_trip(connection: str, ca_file: Path, websocket: bool = False) -> str:
    """The body that the official JavaScript client has sent and read back."""
    if shutil.which("node") is None or not (PACKAGES / "node_modules").is_dir():
        pytest.skip("needs node and its packages: run scripts/npm-ci, or make test, which does")
    settings = json.dumps({"connection": connection, "websocket": websocket})
    process = await asyncio.create_subprocess_exec(
        *("node", "--no-warnings", *(["--experimental-websocket"] if websocket else [])),
        *("--input-type=module", "--eval", SCRIPT),
        cwd=PACKAGES,
        env={**os.environ, "PUMPHOUSE_LISTENER": settings, "NODE_EXTRA_CA_CERTS": str(ca_file)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    if websocket and b"bad option" in errors:
        pytest.skip("this node has no WebSocket of its own: it needs node 20.10")
    assert process.returncode == 0, errors.decode()
    return output.decode().strip()

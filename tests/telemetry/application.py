"""An application that uses OpenTelemetry: it sends, processes, and prints what it has recorded.

python -m tests.telemetry.application early   # a MeterProvider, set before anything else
python -m tests.telemetry.application late    # set after client and processor were created
python -m tests.telemetry.application traces  # only a TracerProvider
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from pumphouse import EmbeddedHub, Event, MemoryStore, PartitionClient, Processor, open_client
from pumphouse.client.base import HubClient
from pumphouse.telemetry.meter import METER

EVENTS = 6

READER = InMemoryMetricReader()


def set_provider() -> None:
    metrics.set_meter_provider(MeterProvider([READER]))


async def main(when: str) -> None:
    if when == "early":
        set_provider()
    elif when == "traces":
        trace.set_tracer_provider(TracerProvider())
    async with EmbeddedHub({"doors": 1}) as hub:
        connection = hub.connection_string("doors")
        client = open_client(connection)
        processor = Processor(connection, store=MemoryStore())
        if when == "late":
            set_provider()
        await send(client)
        await process(processor)
    recorded = [each.name for each in METER.metrics]
    json.dump({"recorded": recorded, "exported": exported()}, sys.stdout)


async def send(client: HubClient) -> None:
    """With a sender for each event, as an application that sends once per request."""
    async with client:
        for number in range(EVENTS):
            sender = await client.sender("0")
            await sender.send([Event(b"%d" % number)])
            await sender.close()


async def process(processor: Processor) -> None:
    handled: list[Event] = []
    complete = asyncio.Event()

    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():
            handled.extend(batch)
            await partition.checkpoint()
            if len(handled) == EVENTS:
                exported_while_running.update(exported())
                complete.set()

    running = asyncio.create_task(processor.run(serve))
    await complete.wait()
    await processor.stop()
    await running


exported_while_running: dict[str, Any] = {}


def exported() -> dict[str, Any]:
    """What the reader of the provider collects: the points of each metric."""
    data = READER.get_metrics_data()
    found = {
        metric.name: {
            "unit": metric.unit,
            "points": [json.loads(point.to_json()) for point in metric.data.data_points],
        }
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    return exported_while_running | found


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""Checks in a task that its events are of the hub for which the batch was planned.

Every event of a span was in the hub when the batch was planned. So an event that is newer than the
newest one of that time is of another hub, or its clock was set back. The creation time of the hub
decides: it is requested only then.

    record batch -> is_suspicious -> created_ms -> DataLoss, or leave the rest of the span
                    ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pumphouse.spark.generation import is_recreated
from pumphouse.spark.identity import open_hub
from pumphouse.spark.options import HubIdentity

TOLERANCE_MS = 1  # some clients round the enqueued time


@dataclass(frozen=True, slots=True)
class PlannedHub:
    """The hub at the time when a batch was planned."""

    created_ms: int | None = None
    newest_ms: Mapping[str, int] = field(default_factory=dict)  # by partition, if it had an event


def is_suspicious(batch: pa.RecordBatch, partition: str, planned: PlannedHub) -> bool:
    """Whether the last event of a record batch is newer than the hub was at that time."""
    newest_ms = planned.newest_ms.get(partition)
    if newest_ms is None or "enqueuedTime" not in batch.schema.names or not batch.num_rows:
        return False
    micros: int = batch.column("enqueuedTime")[batch.num_rows - 1].value
    return micros // 1000 > newest_ms + TOLERANCE_MS


def was_recreated(identity: HubIdentity, planned: PlannedHub) -> bool:
    """Whether the hub was re-created, by the creation time that it reports."""

    async def created_ms() -> int:
        async with asyncio.timeout(identity.operation_timeout_s), open_hub(identity) as client:
            return (await client.properties()).created_ms

    return planned.created_ms is not None and is_recreated(
        planned.created_ms, asyncio.run(created_ms())
    )

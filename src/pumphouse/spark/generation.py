"""Which hub an offset belongs to. Pure.

A hub that was deleted and created again has the same name, and its sequence numbers begin at 0
again. Once it has grown past an offset, the numbers alone do not show that. So Spark's journal also
holds the creation time of the hub:

    {"sensors": {"0": 120}, "@hub": {"created": 1763200000000}}

    offset -> created_in ->|
    hub -> HubSnapshot   ->| is_recreated -> DataLoss, or read the new hub from its beginning
                             ^^^^^^^^^^^^ this module

The journal of version 0.1 and of the Scala connector has no creation time: it is added by the next
batch. Until then a run compares with the hub of its first contact. Enqueued times are not needed in
the journal: a hub with other events has another creation time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pumphouse.events import to_datetime
from pumphouse.spark.offsets import DataLoss

HUB_KEY = "@hub"
CREATED = "created"


def with_created(offset: Mapping[str, Any], created_ms: int | None) -> dict[str, Any]:
    """The offset with the creation time of its hub, if that is known."""
    if created_ms is None:
        return dict(offset)
    return {**offset, HUB_KEY: {CREATED: created_ms}}


def created_in(offset: str | Mapping[str, Any]) -> int | None:
    """The creation time in an offset; None if it has none."""
    fields = json.loads(offset) if isinstance(offset, str) else offset
    hub = fields.get(HUB_KEY)
    created = hub.get(CREATED) if isinstance(hub, Mapping) else None
    return created if isinstance(created, int) else None


def is_recreated(journalled_ms: int | None, created_ms: int | None) -> bool:
    """Whether the hub is not the one that the journal is of."""
    return None not in (journalled_ms, created_ms) and journalled_ms != created_ms


def recreated_error(hub: str, journalled_ms: int | None, created_ms: int | None) -> DataLoss:
    return DataLoss(
        f"hub {hub} was re-created: the checkpoint is of the hub created at "
        f"{time_text(journalled_ms)}, and the present one was created at {time_text(created_ms)}; "
        "start with a new checkpointLocation, or set failOnDataLoss=false to read the new hub from "
        "its beginning"
    )


def old_checkpoint_error(
    hub: str, partition: str, sequence: int | None, created_ms: int | None
) -> DataLoss:
    return DataLoss(
        f"hub {hub} was re-created at {time_text(created_ms)}: the checkpoint of partition "
        f"{partition} (event {sequence}) is of the hub before. Move the checkpoints of the group "
        "(pumphouse checkpoints reset --to earliest), or set failOnDataLoss=false to read the new "
        "hub from its beginning"
    )


def time_text(ms: int | None) -> str:
    return "an unknown time" if ms is None else to_datetime(ms).isoformat(timespec="milliseconds")

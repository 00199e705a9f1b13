"""The status of the Spark stages, from the file that they write.

    pumphouse homes run -> DIR/status.json -> read_stages -> Fleet page
                                              ^^^^^^^^^^^ this module

If the file is missing, stale or of an unknown version, the page shows the reason. The lag
in the file was measured when the last batch was planned. It is 0 for batches without a limit, which
contain all events. So the page shows how many events of the hubs are in no completed batch, as
`pumphouse demo` prints it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pumphouse.dashboard.views.table import TableColumn
from pumphouse.homes.stage_counts import defined_counts

STALE_S = 120.0  # an older status file is no longer updated
STATUS_BYTES_MAX = 1 << 20
ERROR_MAX = 300
NOT_COUNTED: Mapping[str, int] = {}
NUMBERS = (
    "batch",
    "batch_ms",
    "rows",
    "input_rate",
    "processed_rate",
    "lag_events",
    "lag_s",
    "state_rows",
    "state_bytes",
    "restarts",
)
STAGE_COLUMNS = (
    TableColumn("name", "Stage", "The name of the Spark query.", numeric=False),
    TableColumn(
        "state", "State", "State of the query. A failed query is restarted.", numeric=False
    ),
    TableColumn("batch", "Batch", "Number of micro-batches so far."),
    TableColumn("batch_time", "Batch time", "Duration of the last micro-batch."),
    TableColumn("input_rate", "Input rate", "Events per second that the last batches read."),
    TableColumn("capacity", "Capacity", "Events per second that the query could process."),
    TableColumn(
        "lag",
        "Lag",
        "Events of its hubs that are in no completed batch of the query. A page without --homes "
        "shows the lag when the last batch was planned.",
    ),
    TableColumn("memory", "Memory", "Rows that the query keeps between batches, and their size."),
    TableColumn(
        "counts",
        "Counted",
        "Numbers of the stage: of its last batch for sift, since its start for record.",
        numeric=False,
    ),
    TableColumn("restarts", "Restarts", "Number of restarts."),
)


def read_stages(
    path: Path, now_ms: int, received: Mapping[str, int] = NOT_COUNTED
) -> dict[str, Any]:
    """The stages of a status file, or the reason why there are none.

    `received` has the number of events of each hub, as far as the page knows them.
    """
    try:
        with path.open("rb") as file:
            text = file.read(STATUS_BYTES_MAX)
    except FileNotFoundError:
        return no_stages(f"{path.name} does not exist yet; `pumphouse homes run` writes it")
    except OSError as failed:
        return no_stages(f"{path.name} cannot be read: {failed.strerror}")
    return stages_from(text, now_ms, received)


def no_stages(reason: str) -> dict[str, Any]:
    return {"stages": [], "at": None, "old": False, "why": reason}


def stages_from(
    text: bytes, now_ms: int, received: Mapping[str, int] = NOT_COUNTED
) -> dict[str, Any]:
    try:
        status = json.loads(text)
        stages = [stage_from(name, fields, received) for name, fields in status["stages"].items()]
        at = int(status["at"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return no_stages("the status file has an unknown format; restart `pumphouse homes run`")
    return {"stages": stages, "at": at, "old": now_ms - at > STALE_S * 1000, "why": ""}


def stage_from(name: str, fields: dict[str, Any], received: Mapping[str, int]) -> dict[str, Any]:
    """The known fields of a stage; an invalid number is None."""
    stage: dict[str, Any] = {key: number(fields.get(key)) for key in NUMBERS}
    counts = fields.get("counts")
    lag = events_not_taken(fields.get("taken"), received)
    if lag is not None:
        stage |= {
            "lag_events": lag,
            "lag_s": None,
        }  # seconds are known only for the time of planning
    stage["name"] = name
    stage["state"] = str(fields.get("state") or "unknown")
    stage["error"] = str(fields.get("error") or "")[:ERROR_MAX]
    stage["counts"] = (
        {str(key): number(value) for key, value in counts.items() if number(value) is not None}
        if isinstance(counts, dict)
        else {}
    )
    stage["counted"] = defined_counts(name, stage["counts"])
    return stage


def events_not_taken(taken: Any, received: Mapping[str, int]) -> int | None:
    """Events that are in no completed batch; None if a hub is not counted, or before a batch."""
    if not isinstance(taken, dict) or not taken or not taken.keys() <= received.keys():
        return None
    numbers = [number(value) for value in taken.values()]
    if None in numbers:
        return None
    pairs = zip(taken, numbers, strict=True)
    # A batch may end between the count of the events and the reading of the file.
    return sum(max(0, received[hub] - int(value)) for hub, value in pairs if value is not None)


def number(value: Any) -> int | float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None

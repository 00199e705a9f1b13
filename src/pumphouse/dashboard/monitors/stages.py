"""What the Spark stages say of themselves, out of the file in which they write it.

    pumphouse homes run -> DIR/status.json -> read_stages -> Fleet page
                                              ^^^^^^^^^^^ this module

The file may be missing, old, or of a version that we do not know all of: then less is shown, and
the page says what is missing.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

OLD_S = 120.0  # a status that was written longer ago is of stages that no longer write
STATUS_BYTES_MAX = 1 << 20
ERROR_MAX = 300
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
STAGE_COLUMNS = {
    "Stage": "A Spark query: what it reads and what it makes of it.",
    "State": "Whether the query runs. One that failed is started again, with a pause.",
    "Batch": "How many micro-batches it has run.",
    "Batch time": "How long the last micro-batch took.",
    "Input rate": "Events per second that came in with the last batches.",
    "Capacity": "Events per second that it could have handled in that time.",
    "Lag": "Events that have been sent and not been read by it.",
    "Memory": "Rows that it remembers between batches, and how much memory they take.",
    "Counted": "What else it counts, such as records that were none.",
    "Restarts": "How often it was started again.",
}


def read_stages(path: Path, now_ms: int) -> dict[str, Any]:
    """The stages, or a sentence that says why there are none."""
    try:
        with path.open("rb") as file:
            text = file.read(STATUS_BYTES_MAX)
    except FileNotFoundError:
        return nothing(f"no stage has written {path.name} yet; `pumphouse homes run` does")
    except OSError as failed:
        return nothing(f"{path.name} cannot be read: {failed.strerror}")
    return stages_from(text, now_ms)


def nothing(why: str) -> dict[str, Any]:
    return {"stages": [], "at": None, "old": False, "why": why}


def stages_from(text: bytes, now_ms: int) -> dict[str, Any]:
    try:
        found = json.loads(text)
        stages = [stage_from(name, one) for name, one in found["stages"].items()]
        at = int(found["at"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return nothing("the file of the stages is not one that this version understands")
    return {"stages": stages, "at": at, "old": now_ms - at > OLD_S * 1000, "why": ""}


def stage_from(name: str, one: dict[str, Any]) -> dict[str, Any]:
    """What we know of a stage; a number that is none is not known."""
    known: dict[str, Any] = {key: number(one.get(key)) for key in NUMBERS}
    counts = one.get("counts")
    known["name"] = name
    known["state"] = str(one.get("state") or "unknown")
    known["error"] = str(one.get("error") or "")[:ERROR_MAX]
    known["counts"] = (
        {str(key): number(value) for key, value in counts.items() if number(value) is not None}
        if isinstance(counts, dict)
        else {}
    )
    return known


def number(value: Any) -> int | float | None:
    """A number that JSON knows, or nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None

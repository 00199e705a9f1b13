"""The numbers that a stage counts: one name and one definition each, for status.json and the page.

    Counts, Recorded -> status_counts -> status.json -> defined_counts -> Fleet page
                        ^^^^^^^^^^^^^                   ^^^^^^^^^^^^^^ this module

docs/dashboard.md has the same table; a test compares it with this one. status.json has the names of
earlier versions too, for one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class StageCount:
    """A number of a stage."""

    stage: str
    name: str
    meaning: str
    old_name: str = ""  # of earlier versions

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")


STAGE_COUNTS: Final = (
    StageCount(
        "sift",
        "readings",
        "Events of the hub sensors in the last batch, with duplicates and malformed ones.",
        "seen",
    ),
    StageCount(
        "sift",
        "activities",
        "Readings of the last batch that sift has kept and sent to the hub activity.",
        "kept",
    ),
    StageCount("sift", "dropped", "Valid readings of the last batch that sift has not kept."),
    StageCount(
        "sift",
        "duplicates",
        "Readings of the last batch that sift has kept before, and does not send again.",
        "repeated",
    ),
    StageCount(
        "sift",
        "malformed",
        "Events of the last batch that are not valid readings. They are in the hub deadletter.",
        "bad",
    ),
    StageCount(
        "sift",
        "late",
        "Valid readings of the last batch that reached the hub sensors more than two minutes after "
        "their time. They are processed as usual.",
    ),
    StageCount(
        "record",
        "rows",
        "Activities and alerts after the stored position, with duplicates, since the stage "
        "was started.",
    ),
    StageCount(
        "record",
        "duplicates",
        "Of the rows, those with the home, sensor and number, or the id, of a stored row. They are "
        "not stored.",
        "repeats",
    ),
    StageCount(
        "record",
        "behind_watermark",
        "Of the rows, stored activities whose reading is more than ten minutes older than the "
        "newest reading. All sums include them.",
        "late",
    ),
    StageCount(
        "record",
        "unreadable",
        "Events of the hubs activity and alerts that have no valid columns, since the stage was "
        "started. They are not stored.",
    ),
    StageCount(
        "record",
        "known",
        "Events before the stored position, since the stage was started. If there are many, the "
        "hub was created again.",
    ),
    StageCount(
        "record",
        "delay_p50_ms",
        "Median time in milliseconds from the hub to the stores, of the last batch with rows.",
    ),
    StageCount(
        "record",
        "delay_p99_ms",
        "99th percentile of the same time.",
    ),
)


def status_counts(stage: str, counts: Mapping[str, Any]) -> dict[str, Any]:
    """The counts as status.json has them, also with the names of earlier versions."""
    old = {each.old_name: counts[each.name] for each in counts_of(stage) if each.old_name}
    return {**counts, **old}


def defined_counts(stage: str, counts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Title and value of each defined number, of a file of this version or of the one before."""
    titles_and_names = (
        (each.title, each.name if each.name in counts else each.old_name)
        for each in counts_of(stage)
    )
    return [(title, counts[name]) for title, name in titles_and_names if name in counts]


def counts_of(stage: str) -> list[StageCount]:
    return [each for each in STAGE_COUNTS if each.stage == stage]


def stage_counts_json() -> list[dict[str, Any]]:
    return [asdict(each) | {"title": each.title} for each in STAGE_COUNTS]

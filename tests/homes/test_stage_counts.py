"""The numbers that stages count: their names, in this version and in the one before."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pumphouse.homes.record.stage import Recorded
from pumphouse.homes.sift.stage import Counts
from pumphouse.homes.stage_counts import STAGE_COUNTS, counts_of, defined_counts, status_counts

DOCS = Path(__file__).parents[2] / "docs" / "dashboard.md"
DETAILS = {"reasons", "kinds"}  # tables in status.json, which the page does not show


@pytest.mark.parametrize(("stage", "counts"), [("sift", Counts), ("record", Recorded)])
def test_every_number_of_a_stage_is_defined(stage: str, counts: type) -> None:
    names = [field.name for field in fields(counts) if field.name not in DETAILS]
    assert [each.name for each in counts_of(stage)] == names


def test_the_status_file_has_the_names_of_the_version_before() -> None:
    sift = {"readings": 9, "activities": 4, "duplicates": 1, "malformed": 2}
    old = {"seen": 9, "kept": 4, "repeated": 1, "bad": 2}
    assert status_counts("sift", sift) == sift | old
    record = status_counts("record", {"rows": 9, "duplicates": 1, "behind_watermark": 3})
    assert (record["repeats"], record["late"]) == (1, 3)
    assert status_counts("watch", {}) == {}


def test_one_name_for_each_number_on_the_page() -> None:
    """Late is what sift counts, and not the activities behind the watermark of record."""
    new = status_counts("record", {"rows": 9, "duplicates": 1, "behind_watermark": 3})
    old = {"rows": 9, "repeats": 1, "late": 3}
    shown = [("rows", 9), ("duplicates", 1), ("behind watermark", 3)]
    assert defined_counts("record", new) == defined_counts("record", old) == shown
    assert defined_counts("sift", {"seen": 5, "late": 2}) == [("readings", 5), ("late", 2)]
    assert defined_counts("other", {"x": 1}) == []
    words: dict[str, set[str]] = {}
    for each in STAGE_COUNTS:
        words.setdefault(each.name, set()).add(each.stage)
    # What both count has one meaning: an event with the identity of an earlier one.
    assert {name for name, stages in words.items() if len(stages) > 1} == {"duplicates"}


def test_the_documentation_has_the_definition_of_every_number() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", DOCS.read_text("utf-8"), re.MULTILINE)
    assert rows == [(each.stage, each.title, each.meaning) for each in STAGE_COUNTS]

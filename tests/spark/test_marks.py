"""How far a query is behind: from what progress tells, in both of its spellings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pumphouse.spark.lag.known_positions import (
    KnownPosition,
    Lag,
    PartitionLag,
    PositionHistory,
    partition_lags,
    progress_of_sources,
)

LATEST = {
    "sensors": {"0": 120, "1": 50},
    "@marks": {
        "0": {"newest": [119, "900", 20_000], "read": [39, "300", 4_000]},
        "1": {"newest": [49, "700", 9_000], "read": None},
    },
    "@unavailable": ["2"],
}
END = {"sensors": {"0": 80, "1": 50}}


def progress(as_text: bool) -> dict[str, Any]:
    end: Any = json.dumps(END) if as_text else END
    latest: Any = json.dumps(json.dumps(LATEST)) if as_text else LATEST
    others = [{"endOffset": 7, "latestOffset": None}, {"endOffset": "x", "latestOffset": "{"}]
    return {"sources": [*others, {"endOffset": end, "latestOffset": latest}]}


@pytest.mark.parametrize("as_text", [False, True], ids=["classic", "connect"])
def test_what_progress_tells(as_text: bool) -> None:
    (source,) = progress_of_sources(progress(as_text))
    memory = PositionHistory()
    memory.learn(source.marks)
    assert source.unavailable == ("2",)
    # Event 79 is half of the way from 39 (4 s) to 119 (20 s): 12 s; the newest is 8 s younger.
    assert partition_lags(source, memory) == (PartitionLag("0", 40, 8.0), PartitionLag("1", 0, 0.0))


def test_what_is_not_known_is_not_made_up() -> None:
    (source,) = progress_of_sources(progress(False))
    memory = PositionHistory()
    memory.learn({"0": (KnownPosition(119, "900", 20_000),)})
    assert partition_lags(source, memory)[0] == PartitionLag("0", 40, None)
    assert Lag("q", None, 1, "sensors", partition_lags(source, memory)).seconds is None


def test_the_sum_and_the_furthest() -> None:
    lag = Lag("q", None, 1, "h", (PartitionLag("0", 3, 1.5), PartitionLag("1", 4, 2.5)))
    assert (lag.events, lag.seconds) == (7, 2.5)


def test_of_a_hub_that_was_re_created_nothing_is_remembered() -> None:
    """Its marks would lie beyond the newest event, and crowd out those that are true now."""
    memory = PositionHistory()
    memory.learn({"0": tuple(KnownPosition(number, "old", 1) for number in range(300))})
    memory.learn({"0": (KnownPosition(3, "newest", 9_000), KnownPosition(1, "read", 5_000))})
    assert memory.at("0", 299) is None
    assert memory.enqueued_ms("0", 2) == 7_000


def test_marks_are_remembered_up_to_a_bound() -> None:
    memory = PositionHistory()
    for number in range(1000):
        memory.learn({"0": (KnownPosition(number, str(number), number),)})
    assert memory.at("0", 999) == KnownPosition(999, "999", 999)
    assert memory.at("0", 10) is None
    assert memory.at("1", 10) is None

"""The lag of a query, computed from its progress in both forms of Spark."""

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
    "@hub": {"created": 1000},
    "@positions": {"0/119/20000/900": 0, "0/39/4000/300": 0, "1/49/9000/1:49/x": 0, "1/9//": 0},
    "@unavailable": {"2": 0},
    "@reader": {"host:5671/$default": 0},
}
END = {"sensors": {"0": 80, "1": 50}, "@hub": {"created": 1000}}


def progress(as_text: bool) -> dict[str, Any]:
    end: Any = json.dumps(END) if as_text else END
    latest: Any = json.dumps(json.dumps(LATEST)) if as_text else LATEST
    others = [{"endOffset": 7, "latestOffset": None}, {"endOffset": "x", "latestOffset": "{"}]
    return {"sources": [*others, {"endOffset": end, "latestOffset": latest}]}


@pytest.mark.parametrize("as_text", [False, True], ids=["classic", "connect"])
def test_the_lag_is_computed_from_the_progress(as_text: bool) -> None:
    (source,) = progress_of_sources(progress(as_text))
    history = PositionHistory()
    history.add(source.positions)
    assert (source.unavailable, source.reader) == (("2",), "host:5671/$default")
    assert source.positions["1"] == (KnownPosition(49, "1:49/x", 9_000), KnownPosition(9))
    # Event 79 lies half way between 39 (at 4 s) and 119 (at 20 s): at 12 s, 8 s before the newest.
    assert partition_lags(source, history) == (
        PartitionLag("0", 40, 8.0),
        PartitionLag("1", 0, 0.0),
    )


def test_tools_that_add_up_all_numbers_get_the_lag() -> None:
    """They expect a number for each partition, as with other sources."""
    lags = [
        number - END.get(hub, {}).get(partition, 0)
        for hub, numbers in LATEST.items()
        for partition, number in numbers.items()
    ]
    assert sum(lags) == 40


def test_the_description_names_hub_and_group() -> None:
    lag = Lag("q", None, 1, "sensors", (), reader="host:5671/$default")
    assert lag.description == "eventhubs[hub=sensors, group=$default, namespace=host:5671]"


def test_an_unknown_lag_is_none() -> None:
    (source,) = progress_of_sources(progress(False))
    history = PositionHistory()
    history.add({"0": (KnownPosition(119, "900", 20_000),)})
    assert partition_lags(source, history)[0] == PartitionLag("0", 40, None)
    assert Lag("q", None, 1, "sensors", partition_lags(source, history)).seconds is None


def test_the_lag_of_a_query_is_the_sum_of_events_and_the_longest_time() -> None:
    lag = Lag("q", None, 1, "h", (PartitionLag("0", 3, 1.5), PartitionLag("1", 4, 2.5)))
    assert (lag.events, lag.seconds) == (7, 2.5)


def test_positions_of_a_hub_that_was_re_created_are_dropped() -> None:
    """They lie beyond the newest event."""
    history = PositionHistory()
    history.add({"0": tuple(KnownPosition(number, "old", 1) for number in range(300))})
    history.add({"0": (KnownPosition(3, "newest", 9_000), KnownPosition(1, "read", 5_000))})
    assert history.at("0", 299) is None
    assert history.enqueued_ms("0", 2) == 7_000


def test_a_bounded_number_of_positions_is_kept() -> None:
    history = PositionHistory()
    for number in range(1000):
        history.add({"0": (KnownPosition(number, str(number), number),)})
    assert history.at("0", 999) == KnownPosition(999, "999", 999)
    assert history.at("0", 10) is None
    assert history.at("1", 10) is None

"""When the page counts as ready."""

from __future__ import annotations

import pytest

from pumphouse.dashboard.monitors.readiness import LATE_S, Source, not_ready

HUB = Source("hub sensors", "", 100.0)


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        (HUB, None),
        (Source("database", "disk I/O error", 102.0), "database: disk I/O error"),
        (Source("group counters", "", None), "group counters: not read yet"),
        (Source("hub sensors", "", 103 - LATE_S - 3), None),
        (Source("hub sensors", "", 103 - LATE_S - 4), "hub sensors: no response for 24 s"),
    ],
)
def test_every_source_must_have_responded(source: Source, failure: str | None) -> None:
    assert not_ready([source], 103.0, 1.0) == failure


def test_all_failures_are_named() -> None:
    sources = [Source("a", "", None), HUB, Source("b", "refused", 1.0)]
    assert not_ready(sources, 103.0, 1.0) == "a: not read yet; b: refused"
    assert not_ready([], 103.0, 1.0) is None

"""Alerts as they are read from the hub: invalid ones are counted, long texts are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pumphouse.dashboard.monitors.homes import TEXT_CHARS_MAX, read_alert

NOW = 1_763_000_000_000
VALID: dict[str, Any] = {
    "home": "h000042",
    "kind": "fire",
    "sensor": "smoke",
    "at": NOW,
    "since": NOW - 9000,
    "region": "north",
    "text": "Smoke above 60 ppm",
}


def body(**changes: Any) -> bytes:
    return json.dumps({**VALID, **changes}).encode()


def test_a_long_text_is_cut() -> None:
    alert = read_alert(body(text="x" * 1_000_000), NOW)
    assert alert is not None
    assert len(alert.text) == TEXT_CHARS_MAX


@pytest.mark.parametrize(
    "hostile",
    [
        body(kind="k" * 61),
        body(sensor="s" * 1_000_000),
        body(region="r" * 61),
        body(since=10**300),
        body(since=-(10**18)),
        body(at=NOW + 1),
        body(at=0),
        body(text="\ud800"),
        body(home="h42"),
        b"[NaN]",
        body().replace(b"42", b"NaN"),
        b"\xef\xbb\xbf[]",
        b"\xff\xfe",
        b"",
        b"[" * 100_000,
    ],
)
def test_an_alert_that_the_page_could_not_show_is_ignored(hostile: bytes) -> None:
    assert read_alert(hostile, NOW) is None

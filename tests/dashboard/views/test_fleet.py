"""The Fleet page as plain data."""

from __future__ import annotations

import json
import math

from pumphouse.dashboard.monitors.stages import STAGE_COLUMNS
from pumphouse.dashboard.views.fleet import (
    COLUMNS,
    change_json,
    group_json,
    line_json,
    rounded,
    unreachable,
    vocabulary,
    without_short_lags,
)
from pumphouse.dashboard.views.ownership_history import CLAIM, Change
from pumphouse.dashboard.views.rates import Rate
from pumphouse.leases.model import Checkpoint, Listing, Ownership
from pumphouse.processor.admin.overview import MEANING, overview
from tests.dashboard.views.group_overviews import GROUP, group_overview, properties


def test_a_group_as_plain_data() -> None:
    shown = group_json(
        "g0", "pull", group_overview(), {"0": Rate(10.04, 9.0)}, Rate(20.0, 15.26), 30.0
    )
    assert json.loads(json.dumps(shown, allow_nan=False)) == {
        "key": "g0",
        "title": "pull",
        "hub": "sensors",
        "group": "counters",
        "status": "moving",
        "state": "moving",
        "meaning": "some partitions have no owner, or are being handed over",
        "lease_s": 30.0,
        "hosts": [
            {"name": "a", "partitions": ["0"], "lag": 9},
            {"name": "c", "partitions": [], "lag": 0},
        ],
        "share": [0, 1],
        "lag": 68,
        "lag_s": 1.5,
        "in": 20.0,
        "out": 15.3,
        "attention": 1,
        "trouble": "",
        "lines": [
            {
                "partition": "0",
                "owner": "a",
                "successor": "",
                "epoch": 3,
                "lease_left_s": 26.0,
                "checkpoint": 90,
                "end": 99,
                "lag": 9,
                "lag_s": 1.5,
                "in": 10.0,
                "out": 9.0,
                "status": "ok",
                "verdict": "ok",
                "bad": False,
            },
            {
                "partition": "1",
                "owner": "",
                "successor": "",
                "epoch": 7,
                "lease_left_s": -1.0,
                "checkpoint": 40,
                "end": 99,
                "lag": 59,
                "lag_s": 1.5,
                "in": None,
                "out": None,
                "status": "no owner",
                "verdict": "no owner",
                "bad": True,
            },
        ],
    }


def test_an_unknown_value_is_none_and_not_zero() -> None:
    first, second = group_overview(checkpoints_at=(0, None), ends=(0, -1)).lines
    shown = line_json(first, Rate())
    assert (shown["checkpoint"], shown["end"], shown["lag"]) == (0, 0, 0)
    empty = line_json(second, Rate())
    assert (empty["checkpoint"], empty["end"]) == (None, None)


def test_a_short_lag_is_ok() -> None:
    before = group_overview()
    listing = Listing((Ownership("0", "a", 3, "x", 4.0),))
    for enqueued_ms, status in ((9_000, "ok"), (-1_000, "behind")):
        checkpoint = Checkpoint(GROUP, "0", 95, None, 1, enqueued_ms=enqueued_ms)
        current = overview(
            "counters", "sensors", [properties("0", 199)], listing, [checkpoint], 30.0, before
        )
        assert current.lines[0].status == "behind"
        assert without_short_lags(current).lines[0].status == status


def test_an_infinite_value_is_unknown() -> None:
    assert [rounded(value) for value in (None, -math.inf, math.nan, 1.26)] == [
        None,
        None,
        None,
        1.3,
    ]


def test_an_unreachable_group_has_the_same_form() -> None:
    shown = unreachable("g1", "", "sensors", "counters", "no hub responds")
    assert shown["trouble"] == "no hub responds"
    assert shown["lines"] == shown["hosts"] == []


def test_every_column_and_status_has_a_meaning() -> None:
    words = vocabulary()
    assert [column["name"] for column in words["columns"]] == [column.name for column in COLUMNS]
    assert set(words["statuses"]) == set(MEANING)
    assert words["statuses"]["no owner"]["bad"]
    assert not words["statuses"]["ok"]["bad"]
    assert all(column.meaning.endswith(".") for column in (*COLUMNS, *STAGE_COLUMNS))


def test_a_row_has_a_field_for_every_column() -> None:
    row = line_json(group_overview().lines[0], Rate())
    assert [column.name for column in COLUMNS if column.name not in row] == []


def test_a_change_has_a_text() -> None:
    shown = change_json(4, "g0", Change(1000, "7", CLAIM, "", "a", 2))
    assert shown["text"] == "a claimed partition 7"
    assert (shown["n"], shown["key"], shown["to"], shown["epoch"]) == (4, "g0", "a", 2)
    assert shown["kind"] == CLAIM


def test_old_keys_stay_for_one_version() -> None:
    change = change_json(4, "g0", Change(1000, "7", CLAIM, "", "a", 2))
    assert change["word"] == change["kind"]
    assert vocabulary()["verdicts"] == vocabulary()["statuses"]
    unowned = overview("counters", "sensors", [properties("0", 9)], Listing(()), [], 30.0)
    shown = group_json("g0", "", unowned, {}, Rate(), 30.0)
    assert (shown["status"], shown["state"]) == ("unowned", "nobody")
    lost = unreachable("g1", "", "sensors", "counters", "no hub responds")
    assert lost["status"] == lost["state"] == "unknown"

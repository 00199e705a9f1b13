"""Recordings: errors name their line, and every home replays every reading once."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.client.native.client import NativeClient
from pumphouse.clock import SystemClock
from pumphouse.errors import BadRecord, OptionError
from pumphouse.homes import schema
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.homes.schema import DAY_MS, Reading, decode_reading, encode_reading
from pumphouse.homes.simulator.recorded_files import read_parquet, read_recording
from pumphouse.homes.simulator.recording import Recording, describe_skipped, parse_columns
from pumphouse.homes.simulator.replay import ReplaySource
from pumphouse.homes.simulator.sender import send
from pumphouse.hub.embedded import EmbeddedHub
from tests.homes.simulator.read_back import read_all
from tests.homes.simulator.sensor_network import as_csv, samples, unusual_at

START = 20_605 * DAY_MS
HEADER = "time,sensor,value"


def recording(*lines: str, header: str = HEADER) -> Recording:
    return read_recording([header, *lines])


def replayed(what: Recording, homes: int, slot_s: int = 60) -> list[Reading]:
    """All sent readings, decoded; every body equals that of the schema."""
    readings = []
    partition_of = partitions_of(np.arange(homes, dtype=np.int32), 4)
    for part in ReplaySource(what, homes, START, slot_s).slices(partition_of):
        assert (np.diff(partition_of[part.homes]) >= 0).all()
        for i in range(len(part)):
            body = part.packed.body(i)
            reading = decode_reading(body)
            assert encode_reading(reading) == body
            assert reading.home == schema.home_id(int(part.homes[i]))
            assert part.due_ms - slot_s * 1000 <= reading.at < part.due_ms
            readings.append(reading)
    return readings


# -- reading a file


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("yesterday,door,1", "invalid time 'yesterday': use 2011-06-15T00:06:32 or seconds"),
        ("nan,door,1", "invalid time 'nan'"),
        (",door,1", "invalid time ''"),
        ("12,toaster,1", "invalid sensor 'toaster': use one of motion, door"),
        ("12,door,ajar", "invalid value 'ajar': use a number, or ON, OFF, OPEN or CLOSE"),
        ("12,door,inf", "invalid value 'inf'"),
        ("12,door", "invalid row '12,door': use 3 cells"),
        ("12,door,1,2", "invalid row '12,door,1,2': use 3 cells"),
    ],
)
def test_a_row_that_is_not_understood_is_skipped_and_counted(line: str, says: str) -> None:
    recorded = recording("11,door,1", line, "13,door,0")
    assert [row.value for row in recorded.tracks[0].rows] == [1, 0]
    [skipped] = recorded.skipped
    assert (recorded.rows, skipped.rows, skipped.first) == (3, 1, [3])
    assert str(skipped).startswith(says)


def test_the_report_has_the_first_lines_and_examples_of_each_reason() -> None:
    names = [f"{second},LS{second % 5:03},1" for second in range(20)]
    recorded = recording("1,door,1", "2,door,ONc", *names)
    assert describe_skipped(recorded.rows, recorded.skipped).splitlines() == [
        "21 of 22 rows were not understood",
        "20 rows (lines 4, 5, 6, ...): invalid sensor 'LS000', 'LS001', 'LS002': use one of "
        "motion, door, window, glass, smoke, temperature, humidity, or give its kind: "
        "--sensor NAME=KIND, --sensor 'M*=motion'",
        "1 rows (line 3): invalid value 'ONc': use a number, or ON, OFF, OPEN or CLOSE",
    ]


def test_a_file_without_any_reading_is_refused_with_the_reasons() -> None:
    with pytest.raises(BadRecord, match=r"(?s)2 of 2 rows were not understood.*M1.*line 3.*ajar"):
        recording("12,M1,ON", "13,door,ajar")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "line 1: the file is empty"),
        (["", " , "], "line 1: the file is empty"),
        (["time,value"], "line 1: the header has no column sensor"),
        (["a,b,c"], "line 1: the header has no column time, sensor, value"),
        ([HEADER], "no reading: the file has no rows"),
        ([HEADER, '12,door,"1'], "line 2: not valid CSV"),
        ([HEADER, f'12,door,"{"x" * 200_000}'], "line 2: not valid CSV"),
        ([HEADER + ",mode", "12,door,1,party"], "no reading: 1 of 1 rows were not understood"),
        ([HEADER + ",battery", "12,door,1,101"], "no reading: 1 of 1 rows were not understood"),
    ],
)
def test_an_invalid_file_is_refused(lines: list[str], says: str) -> None:
    with pytest.raises(BadRecord) as wrong:
        read_recording(lines)
    assert str(wrong.value).startswith(says)


def test_common_forms_of_times_and_values_are_read() -> None:
    recorded = recording(
        "2011-06-15T00:00:00,door,OPEN",
        "2011-06-15 02:00:01+02:00,motion,on",
        "1308096002,door,Close",
        "1308096003500,temperature,21.5",
    )
    assert recorded.tracks[0].times.tolist() == [0, 1000, 2000, 3500]
    assert [row.value for row in recorded.tracks[0].rows] == [1, 1, 0, 21.5]


def test_an_unsorted_file_with_a_byte_order_mark_is_read() -> None:
    lines = ["\ufeffTime, Sensor ,value", "", "20,door,0", "10,door,1"]
    assert read_recording(lines).tracks[0].times.tolist() == [0, 10_000]


def test_sensor_names_of_the_file_can_be_mapped_to_kinds() -> None:
    recorded = read_recording(
        [HEADER, "1,M003,ON", "2,D001,OPEN"], {"M003": "motion", "D001": "door"}
    )
    assert [row.sensor for row in recorded.tracks[0].rows] == ["motion", "door"]


# -- other files


# The form of the logs of the CASAS smart homes: no header, and sometimes the name of an activity.
SMART_HOME_LOG = """\
2010-11-04 00:03:50.209589 M003 ON Sleeping begin
2010-11-04 00:03:57.399391 M003 OFF
2010-11-04 00:15:08.984841 T002 21.5
2010-11-04 08:11:10.212318 D001 OPEN Leave_Home begin
2010-11-04 08:11:11 D001 OPENc
2010-11-04 08:11:12 BATV012 9460
2010-11-04 08:11:13 D001
"""


def test_a_log_without_a_header_is_read_by_the_numbers_of_its_columns() -> None:
    kinds = {"M*": "motion", "D*": "door", "T0??": "temperature"}
    columns = parse_columns([("time", "1+2"), ("sensor", "3"), ("value", "4")])
    recorded = read_recording(SMART_HOME_LOG.splitlines(), kinds, columns, " ")
    [track] = recorded.tracks
    assert [(row.sensor, row.value) for row in track.rows] == [
        ("motion", 1),
        ("motion", 0),
        ("temperature", 21.5),
        ("door", 1),
    ]
    assert track.times.tolist() == [0, 7190, 678_775, 29_240_003]
    assert {each.column: each.examples for each in recorded.skipped} == {
        "value": ["OPENc"],
        "sensor": ["BATV012"],
        "row": ["2010-11-04,08:11:13,D001"],
    }


def test_columns_with_other_names_can_be_mapped() -> None:
    columns = parse_columns([("time", "Date+Clock"), ("sensor", "item"), ("home", "house")])
    lines = ["Date;Clock;Item;Value;House", "2011-06-15;00:00:01;door;OPEN;b"]
    [row] = read_recording(lines, None, columns, ";").tracks[0].rows
    assert (row.sensor, row.value, row.home) == ("door", 1, "b")


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([("when", "1")], "invalid column 'when': use time, sensor, value, home, mode, battery"),
        ([("time", "1"), ("sensor", "2")], "no number for value"),
        ([("time", "0"), ("sensor", "2"), ("value", "3")], "a number from 1"),
        ([("time", "+clock")], "use a name of the header"),
    ],
)
def test_an_invalid_column_map_is_refused(pairs: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_columns(pairs)


def test_a_mapped_column_that_the_file_lacks_is_an_error() -> None:
    columns = parse_columns([("battery", "charge")])
    with pytest.raises(BadRecord, match="line 1: the header has no column charge"):
        read_recording([HEADER, "1,door,1"], None, columns)


def test_a_parquet_file_is_read_like_a_csv_file(tmp_path: Path) -> None:
    moment = datetime(2011, 6, 15, tzinfo=UTC)
    table = pa.table(
        {
            "unused": [1, 2, 3],
            "Stamp": pa.array([moment, moment, None], pa.timestamp("ns", "UTC")),
            "sensor": ["M3", "temperature", "door"],
            "value": pa.array(["ON", "21.5", "1"]),
            "battery": pa.array([7.0, None, 50.0]),
        }
    )
    path = str(tmp_path / "log.parquet")
    pq.write_table(table, path)
    recorded = read_parquet(path, {"M3": "motion"}, parse_columns([("time", "stamp")]))
    rows = [(row.sensor, row.value, row.battery) for row in recorded.tracks[0].rows]
    assert rows == [("motion", 1, 7), ("temperature", 21.5, 100)]
    assert [(each.column, each.first) for each in recorded.skipped] == [("time", [3])]
    with pytest.raises(
        BadRecord, match=r"schema: the file has no column time .found 'unused, stamp"
    ):
        read_parquet(path)


def test_numbers_and_booleans_of_parquet_are_values(tmp_path: Path) -> None:
    path = str(tmp_path / "log.parquet")
    table = {"time": [1_308_096_000, 1_308_096_001], "sensor": ["door"] * 2, "value": [True, False]}
    pq.write_table(pa.table(table), path)
    assert [row.value for row in read_parquet(path).tracks[0].rows] == [1, 0]


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    path.write_text("time,sensor,value")
    with pytest.raises(BadRecord, match="not valid Parquet"):
        read_parquet(str(path))
    with pytest.raises(OptionError, match="columns of a Parquet file have names"):
        read_parquet(
            str(path), None, parse_columns([("time", "1"), ("sensor", "2"), ("value", "3")])
        )


# -- playing it


def test_one_home_replays_the_recording_unchanged() -> None:
    readings = replayed(
        recording("100,door,1", "101,temperature,21.5", "160,door,1", "230,door,0"), homes=1
    )
    assert [(r.sensor, r.at - START, r.value, r.since - START) for r in readings] == [
        ("door", 0, 1, 0),
        ("temperature", 1000, 21.5, 1000),
        ("door", 60_000, 1, 0),
        ("door", 130_000, 0, 130_000),
    ]
    assert [r.seq for r in readings if r.sensor == "door"] == [
        readings[0].seq + n for n in range(3)
    ]
    assert {(r.mode, r.battery) for r in readings} == {("home", 100)}


def test_mode_battery_and_home_are_optional_columns() -> None:
    what = recording(
        "1,door,1,b,away,7", "2,door,1,a,asleep,", header=HEADER + ",home,mode,battery"
    )
    by_home = {r.home: (r.mode, r.battery) for r in replayed(what, homes=2)}
    assert by_home == {"h000000": ("asleep", 100), "h000001": ("away", 7)}


def test_homes_replay_different_days_at_the_same_hour() -> None:
    """Three days of a door that opens at eight, and a second time on the second day."""
    lines = [f"{day * 86_400 + 8 * 3600},door,{day % 2}" for day in range(3)]
    what = recording(*lines, f"{86_400 + 9 * 3600},motion,1")
    readings = replayed(what, homes=3)
    days = {r.home: (r.at - START) // DAY_MS for r in readings if r.sensor == "motion"}
    assert sorted(days.values()) == [0, 1, 2]
    assert {(r.at - START) % DAY_MS for r in readings if r.sensor == "door"} == {0}


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.integers(0, 200_000), st.sampled_from(schema.KINDS), st.integers(0, 3)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 70),
    st.sampled_from([30, 60]),
)
def test_every_home_replays_every_reading_of_its_track_once(
    rows: list[tuple[int, str, int]], homes: int, slot_s: int
) -> None:
    what = recording(
        *(f"{time},{kind},1,{home}" for time, kind, home in rows), header=HEADER + ",home"
    )
    readings = replayed(what, homes, slot_s)
    assert len(readings) == what.readings(homes)
    assert len({r.identity for r in readings}) == len(readings)
    assert all(r.since <= r.at for r in readings)
    per_home = Counter(r.home for r in readings)
    for home in range(homes):
        track = what.tracks[home % len(what.tracks)]
        assert per_home[schema.home_id(home)] == len(track.rows)


def test_a_gap_of_years_costs_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong date in a file: nothing is computed for the minutes between."""
    what = recording("1990-01-01T00:00:30,motion,1", "2011-06-15T00:06:32,motion,0")
    looks, due = Counter[str](), ReplaySource.due

    def counted(*args: Any) -> Any:
        looks["due"] += 1
        assert looks["due"] < 100
        return due(*args)

    monkeypatch.setattr(ReplaySource, "due", counted)
    for homes in (1, 5):
        looks.clear()
        assert len(replayed(what, homes, slot_s=1)) == 2 * homes


def test_homes_do_not_act_in_unison() -> None:
    readings = replayed(recording("1,door,1", "2,door,0"), homes=60)
    assert len({r.at for r in readings}) == 60


def test_an_invalid_number_of_homes_is_refused() -> None:
    with pytest.raises(OptionError, match="1 to 1,000,000"):
        ReplaySource(recording("1,door,1"), 0, START)


# -- data of a real sensor network


async def test_a_real_sensor_network_goes_through_a_hub_unchanged(event_hub: EmbeddedHub) -> None:
    event_hub.create_hub("sensors", 4)
    what = ReplaySource(read_recording(as_csv()), homes=4, start_ms=START, slot_s=60)
    async with NativeClient(event_hub.connection_string("sensors")) as client:
        totals = await send(client, what, None, SystemClock(), asyncio.Event())
        received = await read_all(client)
    assert totals.sent == 2 * len(samples()) == 2 * 18_914
    readings = [decode_reading(event.body) for events in received.values() for event in events]
    values = {(r.home, r.sensor, r.at): r.value for r in readings}
    assert len(values) == totals.sent
    for sample in samples():
        home, at = schema.home_id(sample.mote - 1), START + (sample.number - 1) * 5000
        assert values[home, "temperature", at] == sample.temperature
        assert values[home, "humidity", at] == sample.humidity


def test_labelled_readings_can_be_found_in_the_replay() -> None:
    unusual = unusual_at(START)
    assert {home: len(times) for home, times in unusual.items()} == {"h000000": 117, "h000003": 32}
    readings = replayed(read_recording(as_csv()), homes=4)
    hot = [r for r in readings if r.sensor == "humidity" and r.at in unusual.get(r.home, ())]
    assert len(hot) == 149
    usual = [r.value or 0 for r in readings if r.sensor == "humidity" and r.home == "h000000"]
    assert max(r.value or 0 for r in hot) > np.median(usual) + 20

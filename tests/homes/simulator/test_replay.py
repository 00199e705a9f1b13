"""Recordings: errors name their line, and every home replays every reading once."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.client.native.client import NativeClient
from pumphouse.clock import SystemClock
from pumphouse.errors import BadRecord, OptionError
from pumphouse.homes import schema
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.homes.schema import DAY_MS, Reading, decode_reading, encode_reading
from pumphouse.homes.simulator.replay import Recording, ReplaySource, read_recording
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
        (
            "yesterday,door,1",
            "line 3: invalid time 'yesterday': use 2011-06-15T00:06:32 or seconds",
        ),
        ("nan,door,1", "line 3: invalid time 'nan'"),
        (",door,1", "line 3: invalid time ''"),
        ("12,toaster,1", "line 3: invalid sensor 'toaster': use one of motion, door"),
        ("12,door,ajar", "line 3: invalid value 'ajar': use a number, or ON, OFF, OPEN or CLOSE"),
        ("12,door,inf", "line 3: invalid value 'inf'"),
        ("12,door", "line 3: 2 cells, but the header has 3: '12,door'"),
        ("12,door,1,2", "line 3: 4 cells, but the header has 3"),
    ],
)
def test_the_error_names_the_line_and_the_value(line: str, says: str) -> None:
    with pytest.raises(BadRecord) as wrong:
        recording("11,door,1", line)
    assert str(wrong.value).startswith(says)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "line 1: the file is empty"),
        (["", " , "], "line 1: the file is empty"),
        (["time,value"], "line 1: the header has no column sensor"),
        (["a,b,c"], "line 1: the header has no column time, sensor, value"),
        ([HEADER], "line 2: the file has a header but no readings"),
        ([HEADER, '12,door,"1'], "line 2: not valid CSV"),
        ([HEADER, f'12,door,"{"x" * 200_000}'], "line 2: not valid CSV"),
        ([HEADER + ",mode", "12,door,1,party"], "line 2: invalid mode 'party': use home, away"),
        ([HEADER + ",battery", "12,door,1,101"], "line 2: invalid battery '101'"),
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

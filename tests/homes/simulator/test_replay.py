"""Recordings: what is wrong with a line is said, and what is right reaches every home once."""

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


def played(what: Recording, homes: int, slot_s: int = 60) -> list[Reading]:
    """Everything that is sent, decoded; every body is as the schema would write it."""
    found = []
    partition_of = partitions_of(np.arange(homes, dtype=np.int32), 4)
    for part in ReplaySource(what, homes, START, slot_s).slices(partition_of):
        assert (np.diff(partition_of[part.homes]) >= 0).all()
        for i in range(len(part)):
            body = part.packed.body(i)
            reading = decode_reading(body)
            assert encode_reading(reading) == body
            assert reading.home == schema.home_id(int(part.homes[i]))
            assert part.due_ms - slot_s * 1000 <= reading.at < part.due_ms
            found.append(reading)
    return found


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
def test_a_bad_line_is_named_with_what_was_found(line: str, says: str) -> None:
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
def test_a_file_that_is_no_recording_is_refused(lines: list[str], says: str) -> None:
    with pytest.raises(BadRecord) as wrong:
        read_recording(lines)
    assert str(wrong.value).startswith(says)


def test_times_and_values_are_read_as_people_write_them() -> None:
    found = recording(
        "2011-06-15T00:00:00,door,OPEN",
        "2011-06-15 02:00:01+02:00,motion,on",
        "1308096002,door,Close",
        "1308096003500,temperature,21.5",
    )
    assert found.tracks[0].times.tolist() == [0, 1000, 2000, 3500]
    assert [row.value for row in found.tracks[0].rows] == [1, 1, 0, 21.5]


def test_a_file_in_any_order_with_a_mark_in_front_is_read() -> None:
    lines = ["\ufeffTime, Sensor ,value", "", "20,door,0", "10,door,1"]
    assert read_recording(lines).tracks[0].times.tolist() == [0, 10_000]


def test_sensors_of_the_file_can_be_named() -> None:
    found = read_recording([HEADER, "1,M003,ON", "2,D001,OPEN"], {"M003": "motion", "D001": "door"})
    assert [row.sensor for row in found.tracks[0].rows] == ["motion", "door"]


# -- playing it


def test_one_home_plays_the_recording_as_it_is() -> None:
    found = played(
        recording("100,door,1", "101,temperature,21.5", "160,door,1", "230,door,0"), homes=1
    )
    assert [(r.sensor, r.at - START, r.value, r.since - START) for r in found] == [
        ("door", 0, 1, 0),
        ("temperature", 1000, 21.5, 1000),
        ("door", 60_000, 1, 0),
        ("door", 130_000, 0, 130_000),
    ]
    assert [r.seq for r in found if r.sensor == "door"] == [found[0].seq + n for n in range(3)]
    assert {(r.mode, r.battery) for r in found} == {("home", 100)}


def test_mode_battery_and_home_come_from_the_file_if_they_are_there() -> None:
    what = recording(
        "1,door,1,b,away,7", "2,door,1,a,asleep,", header=HEADER + ",home,mode,battery"
    )
    found = {r.home: (r.mode, r.battery) for r in played(what, homes=2)}
    assert found == {"h000000": ("asleep", 100), "h000001": ("away", 7)}


def test_homes_play_other_days_at_the_same_hour() -> None:
    """Three days of a door that opens at eight, and once more on the second day."""
    lines = [f"{day * 86_400 + 8 * 3600},door,{day % 2}" for day in range(3)]
    what = recording(*lines, f"{86_400 + 9 * 3600},motion,1")
    found = played(what, homes=3)
    days = {r.home: (r.at - START) // DAY_MS for r in found if r.sensor == "motion"}
    assert sorted(days.values()) == [0, 1, 2]
    assert {(r.at - START) % DAY_MS for r in found if r.sensor == "door"} == {0}


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
def test_every_home_plays_every_reading_of_its_track_once(
    rows: list[tuple[int, str, int]], homes: int, slot_s: int
) -> None:
    what = recording(
        *(f"{time},{kind},1,{home}" for time, kind, home in rows), header=HEADER + ",home"
    )
    found = played(what, homes, slot_s)
    assert len(found) == what.readings(homes)
    assert len({r.identity for r in found}) == len(found)
    assert all(r.since <= r.at for r in found)
    per_home = Counter(r.home for r in found)
    for home in range(homes):
        track = what.tracks[home % len(what.tracks)]
        assert per_home[schema.home_id(home)] == len(track.rows)


def test_homes_do_not_act_as_one() -> None:
    found = played(recording("1,door,1", "2,door,0"), homes=60)
    assert len({r.at for r in found}) == 60


def test_a_town_has_homes() -> None:
    with pytest.raises(OptionError, match="1 to 1,000,000"):
        ReplaySource(recording("1,door,1"), 0, START)


# -- data that nobody here wrote


async def test_a_real_sensor_network_goes_through_a_hub_unchanged(event_hub: EmbeddedHub) -> None:
    event_hub.create_hub("sensors", 4)
    what = ReplaySource(read_recording(as_csv()), homes=4, start_ms=START, slot_s=60)
    async with NativeClient(event_hub.connection_string("sensors")) as client:
        tally = await send(client, what, None, SystemClock(), asyncio.Event())
        found = await read_all(client)
    assert tally.sent == 2 * len(samples()) == 2 * 18_914
    readings = [decode_reading(event.body) for events in found.values() for event in events]
    values = {(r.home, r.sensor, r.at): r.value for r in readings}
    assert len(values) == tally.sent
    for sample in samples():
        home, at = schema.home_id(sample.mote - 1), START + (sample.number - 1) * 5000
        assert values[home, "temperature", at] == sample.temperature
        assert values[home, "humidity", at] == sample.humidity


def test_what_was_introduced_can_be_told_in_the_replay() -> None:
    unusual = unusual_at(START)
    assert {home: len(times) for home, times in unusual.items()} == {"h000000": 117, "h000003": 32}
    found = played(read_recording(as_csv()), homes=4)
    hot = [r for r in found if r.sensor == "humidity" and r.at in unusual.get(r.home, ())]
    assert len(hot) == 149
    calm = [r.value or 0 for r in found if r.sensor == "humidity" and r.home == "h000000"]
    assert max(r.value or 0 for r in hot) > np.median(calm) + 20

"""Simulated readings: reproducible, plausible, and without incidents by default."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.errors import OptionError
from pumphouse.homes import schema
from pumphouse.homes.simulator.incidents import Incidents
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.record_encoding import ReadingColumns
from pumphouse.homes.simulator.sensors import FIRST_MINUTE, LAST_MINUTE, Batch, HomeSimulator

MONDAY = 20_605 * 1440  # 2026-06-01
MOTION, DOOR, WINDOW, GLASS, SMOKE = range(5)
HOME, AWAY, ASLEEP = range(3)
MINUTES = st.integers(FIRST_MINUTE, LAST_MINUTE)


def table(columns: ReadingColumns, column: str, homes: int) -> npt.NDArray[np.int64]:
    """One column as homes x sensors; only without silent sensors."""
    return np.asarray(getattr(columns, column), np.int64).reshape(homes, 5)


def same(first: Batch, second: Batch) -> bool:
    return first.packed.data == second.packed.data and bool(
        (first.packed.starts == second.packed.starts).all()
    )


def days(simulator: HomeSimulator, start: int, minutes: int) -> Iterator[ReadingColumns]:
    return (simulator.readings(start + minute) for minute in range(minutes))


# -- reproducible


def test_the_bytes_are_the_same_in_every_process_and_release() -> None:
    """Digests of the bytes; a change of them changes every recorded result."""
    simulator = HomeSimulator(
        homes=3, seed=7, incidents=Incidents(break_in=300), reading_faults=ReadingFaults(faults=0.2)
    )
    bodies = [body.decode() for body in simulator.minute(29_700_000).bodies()]
    assert bodies[1] == (
        '{"v":1,"home":"h000000","sensor":"door","seq":29700000,"at":1782000046210,"value":null,'
        '"since":1781975496254,"mode":"asleep","battery":100,"fault":"out of range"}'
    )
    assert bodies[10] == (
        '{"v":1,"home":"h000002","sensor":"motion","seq":29700000,"at":1782000009960,"value":4,'
        '"since":1781999862570,"mode":"home","battery":88}'
    )
    digest = sha256(simulator.minute(29_700_123).packed.data).hexdigest()
    assert digest[:16] == "f428fbf33482dc05"


@settings(max_examples=25)
@given(st.integers(0, 2**63), MINUTES)
def test_any_minute_can_be_computed_without_earlier_ones(seed: int, minute: int) -> None:
    fresh, used = HomeSimulator(7, seed), HomeSimulator(7, seed)
    for before in (minute - 1441, minute - 1, minute + 1):
        if FIRST_MINUTE <= before <= LAST_MINUTE:
            used.minute(before)
    assert same(fresh.minute(minute), used.minute(minute))


@settings(max_examples=25)
@given(MINUTES, st.integers(1, 6))
def test_senders_that_share_the_homes_agree(minute: int, senders: int) -> None:
    simulator = HomeSimulator(
        50, 3, Incidents(200, 200, 200, 200), ReadingFaults(0.2, 0.2, 0.2, 0.2, 0.2)
    )
    whole = sorted(simulator.minute(minute).bodies())
    shares = [simulator.numbers[simulator.numbers % senders == part] for part in range(senders)]
    parts = [body for share in shares for body in simulator.minute(minute, share).bodies()]
    assert sorted(parts) == whole


def test_more_homes_do_not_change_the_first_ones() -> None:
    few, many = HomeSimulator(10, 5), HomeSimulator(1000, 5)
    assert same(few.minute(MONDAY), many.minute(MONDAY, many.numbers[:10]))


def test_seeds_give_different_readings() -> None:
    assert not same(HomeSimulator(10, 1).minute(MONDAY), HomeSimulator(10, 2).minute(MONDAY))


# -- the readings of a minute


@settings(max_examples=20)
@given(MINUTES, st.integers(1, 300))
def test_bodies_equal_those_of_the_schema(minute: int, homes: int) -> None:
    batch = HomeSimulator(homes, 1, reading_faults=ReadingFaults(faults=0.1)).minute(minute)
    assert len(batch) == 5 * homes
    identities = set()
    for i, body in enumerate(batch.bodies()):
        reading = schema.decode_reading(body)
        assert reading == batch.columns.reading(i)
        assert schema.encode_reading(reading) == body
        assert reading.since <= reading.at
        assert reading.at // schema.MINUTE_MS == reading.seq == minute
        identities.add(reading.identity)
    assert len(identities) == 5 * homes


def test_events_have_their_home_for_a_key() -> None:
    batch = HomeSimulator(20).minute(MONDAY)
    for event, body in zip(batch.events(), batch.bodies(), strict=True):
        assert event.body == body
        assert event.partition_key == schema.decode_reading(body).home


def test_the_homes_send_evenly_over_the_minute() -> None:
    simulator = HomeSimulator(6000)
    per_second = [len(simulator.due(second, second + 1)) for second in range(60)]
    assert sum(per_second) == 6000
    assert min(per_second) > 50
    assert max(per_second) < 160
    assert len(set(simulator.offsets.tolist())) > 5000


@pytest.mark.parametrize("minute", [0, FIRST_MINUTE - 1, LAST_MINUTE + 1])
def test_an_invalid_minute_is_refused(minute: int) -> None:
    with pytest.raises(OptionError, match=f"invalid minute {minute}"):
        HomeSimulator(1).minute(minute)


@pytest.mark.parametrize("homes", [0, -1, 1_000_001])
def test_an_invalid_number_of_homes_is_refused(homes: int) -> None:
    with pytest.raises(OptionError, match="use 1 to 1,000,000"):
        HomeSimulator(homes)


# -- plausible


def quiet(columns: ReadingColumns) -> npt.NDArray[np.bool_]:
    return np.where(columns.sensor == SMOKE, columns.value < 60, columns.value == 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_since_is_the_time_of_the_last_change(seed: int) -> None:
    """Checked minute by minute, over a weekend with its longer night."""
    simulator = HomeSimulator(100, seed)
    for before, after in pairwise(days(simulator, MONDAY - 3 * 1440 + 600, 1440)):
        changed = quiet(before) != quiet(after)
        recent = (after.at - after.since > 0) & (after.at - after.since < schema.MINUTE_MS)
        assert recent[changed].all()
        assert (before.since == after.since)[~changed].all()


def test_a_day_without_incidents_meets_no_condition_of_an_alert() -> None:
    simulator = HomeSimulator(200, 11)
    for columns in days(simulator, MONDAY + 4 * 1440, 2 * 1440):
        armed, age = columns.mode != HOME, columns.at - columns.since
        door, window = columns.sensor == DOOR, columns.sensor == WINDOW
        is_open = columns.value == 1
        assert not (door & is_open & armed).any()
        assert not (window & is_open & armed & (age >= schema.FORGOTTEN_ARMED_MS)).any()
        assert not (window & is_open & (age > schema.FORGOTTEN_MS)).any()
        assert not columns.value[columns.sensor == GLASS].any()
        assert (columns.value[columns.sensor == SMOKE] < schema.SMOKE_ALARM_PPM).all()
        assert (columns.battery > schema.LOW_BATTERY).all()
        assert len(columns) == 5 * simulator.homes


def test_there_are_no_movements_while_people_are_away() -> None:
    simulator = HomeSimulator(400, 4)
    for columns in days(simulator, MONDAY, 1440):
        moving = (columns.sensor == MOTION) & (columns.value > 0)
        assert not (moving & (columns.mode == AWAY)).any()


def test_the_door_opens_around_every_outing() -> None:
    """The door is open in the minute before leaving and in the minute after returning."""
    simulator = HomeSimulator(300, 5)
    left = returned = 0
    for before, after in pairwise(days(simulator, MONDAY, 1440)):
        was, now = table(before, "mode", 300)[:, 0], table(after, "mode", 300)[:, 0]
        leaves, returns = (was != AWAY) & (now == AWAY), (was == AWAY) & (now != AWAY)
        assert table(before, "value", 300)[leaves, DOOR].all()
        assert table(after, "value", 300)[returns, DOOR].all()
        assert (was[leaves] == HOME).all()
        assert (now[returns] == HOME).all()
        left, returned = left + int(leaves.sum()), returned + int(returns.sum())
    assert left > 150
    assert returned > 150


def test_modes_and_movements_follow_the_time_of_day() -> None:
    """Asleep at night, out by day, active in the morning and the evening."""
    simulator, homes = HomeSimulator(2000, 6), 2000
    at = {hour: simulator.readings(MONDAY + hour * 60) for hour in range(24)}
    share = {
        hour: np.bincount(table(c, "mode", homes)[:, 0], minlength=3) / homes
        for hour, c in at.items()
    }
    assert share[3][ASLEEP] > 0.9
    assert share[11][AWAY] > 0.5
    assert share[11][ASLEEP] < 0.05
    assert share[19][HOME] > 0.7
    moving = {hour: (table(c, "value", homes)[:, MOTION] > 0).mean() for hour, c in at.items()}
    assert moving[3] < 0.03
    assert moving[7] > 0.12
    assert moving[19] > 0.2
    assert moving[11] < moving[19]


def test_weekends_differ_from_working_days() -> None:
    simulator, homes, noon = HomeSimulator(2000, 6), 2000, 14 * 60
    working = table(simulator.readings(MONDAY + noon), "mode", homes)[:, 0]
    sunday = table(simulator.readings(MONDAY + 6 * 1440 + noon), "mode", homes)[:, 0]
    assert (working == AWAY).mean() > (sunday == AWAY).mean() + 0.2


def test_movement_comes_in_bursts() -> None:
    """Runs of minutes with movement are much longer than those of independent minutes."""
    simulator, homes = HomeSimulator(300, 8), 300
    moves = [
        table(c, "value", homes)[:, MOTION] > 0 for c in days(simulator, MONDAY + 17 * 60, 240)
    ]
    grid = np.stack(moves)
    share, starts = grid.mean(), (grid[1:] & ~grid[:-1]).sum()
    run = grid[1:].sum() / starts
    assert run > 2 / (1 - share)
    counts = np.concatenate(
        [table(c, "value", homes)[:, MOTION] for c in days(simulator, MONDAY + 1140, 5)]
    )
    assert counts.max() > 8
    assert (counts[counts > 0] == 1).any()


def test_some_homes_are_on_holiday() -> None:
    simulator, homes = HomeSimulator(3000, 9), 3000
    midnights = [
        table(simulator.readings(MONDAY + day * 1440 + 180), "mode", homes)[:, 0]
        for day in range(5)
    ]
    gone = np.all(np.stack(midnights) == AWAY, axis=0).mean()
    assert 0.01 < gone < 0.1

"""Reading faults occur at the configured rates and can be recognised."""

from __future__ import annotations

from collections import Counter

import pytest

from pumphouse.errors import BadRecord, OptionError
from pumphouse.homes import schema
from pumphouse.homes.simulator.reading_faults import FAULTS, ReadingFaults
from pumphouse.homes.simulator.record_encoding import DUPLICATE, LATE, MALFORMED
from pumphouse.homes.simulator.sensors import Batch, HomeSimulator

START = 20_605 * 1440 + 700
HOMES, MINUTES = 400, 12
READINGS = 5 * HOMES * MINUTES


def sent(reading_faults: ReadingFaults, minutes: int = MINUTES) -> list[Batch]:
    simulator = HomeSimulator(HOMES, 2, reading_faults=reading_faults)
    return [simulator.minute(START + minute) for minute in range(minutes)]


def about(share: float) -> tuple[float, float]:
    """Within four standard deviations, and a little more, of a share of all readings."""
    wide = 4 * (share * (1 - share) * READINGS) ** 0.5 + 3
    return share * READINGS - wide, share * READINGS + wide


def test_every_late_reading_arrives_later() -> None:
    minutes = 8
    batches = sent(ReadingFaults(late=0.1, late_minutes=3), minutes)
    clean = HomeSimulator(HOMES, 2)
    arrived: dict[bytes, int] = {}
    for minute, batch in enumerate(batches):
        for i, body in enumerate(batch.bodies()):
            delay = START + minute - int(batch.columns.seq[i])
            assert 0 <= delay <= 3
            assert bool(batch.columns.flags[i] & LATE) == (delay > 0)
            assert arrived.setdefault(body, delay) == delay
    for minute in range(minutes - 3):
        assert set(clean.minute(START + minute).bodies()) <= set(arrived)
    late = Counter(delay for delay in arrived.values() if delay)
    assert set(late) == {1, 2, 3}
    assert 0.07 < sum(late.values()) / len(arrived) < 0.13


def test_readings_keep_the_order_of_their_homes() -> None:
    """So readings of homes sorted by partition are sorted by partition too."""
    for batch in sent(ReadingFaults(late=0.2, duplicates=0.2), 2):
        homes = batch.columns.home.tolist()
        assert homes == sorted(homes)


def test_duplicates_have_the_same_bytes() -> None:
    batches = sent(ReadingFaults(duplicates=0.05))
    times = Counter(body for batch in batches for body in batch.bodies())
    assert len(times) == READINGS
    low, high = about(0.05)
    assert low < sum(count == 2 for count in times.values()) < high
    assert max(times.values()) == 2
    marked = sum(int((batch.columns.flags & DUPLICATE > 0).sum()) for batch in batches)
    assert marked == sum(times.values()) - READINGS


def test_only_malformed_readings_are_invalid() -> None:
    reasons: Counter[str] = Counter()
    for batch in sent(ReadingFaults(malformed=0.05)):
        for i, body in enumerate(batch.bodies()):
            if batch.columns.flags[i] & MALFORMED:
                with pytest.raises(BadRecord) as wrong:
                    schema.decode_reading(body)
                reasons[wrong.value.reason] += 1
            else:
                assert schema.decode_reading(body) == batch.columns.reading(i)
    low, high = about(0.05)
    assert low < sum(reasons.values()) < high
    assert set(reasons) == {
        schema.NOT_JSON,
        schema.MISSING_KEY,
        schema.UNKNOWN_SENSOR,
        schema.WRONG_TYPE,
    }


def test_a_sensor_fault_lasts_and_has_a_name() -> None:
    simulator = HomeSimulator(3000, 2, reading_faults=ReadingFaults(faults=0.02))
    faulty: list[set[tuple[str, str, str]]] = [set(), set()]
    for minute in range(2):
        for body in simulator.minute(START // 20 * 20 + minute).bodies():
            reading = schema.decode_reading(body)
            if reading.fault is not None:
                assert reading.fault in FAULTS
                assert reading.value is None
                faulty[minute].add((reading.home, reading.sensor, reading.fault))
    assert faulty[0] == faulty[1]
    assert 0.015 < len(faulty[0]) / 15_000 < 0.025


def test_low_batteries_stay_low() -> None:
    first, second = (
        HomeSimulator(3000, 2, reading_faults=ReadingFaults(low_battery=0.03))
        .readings(START + minute)
        .battery
        for minute in (0, 3000)
    )
    low = first <= schema.LOW_BATTERY
    assert (low == (second <= schema.LOW_BATTERY)).all()
    assert 0.02 < low.mean() < 0.04
    assert first.min() >= 1
    assert first.max() <= 100


@pytest.mark.parametrize(
    "wrong", [{"late": 1.5}, {"malformed": -0.1}, {"faults": float("nan")}, {"late_minutes": 0}]
)
def test_a_share_is_from_0_to_1(wrong: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        ReadingFaults(**wrong)  # type: ignore[arg-type]

"""Readings that differ from the recent ones of their sensor."""

from __future__ import annotations

import numpy as np

from pumphouse.homes.schema import KINDS
from pumphouse.homes.watch.history import EMPTY, RECENT, ActivityColumns, PartitionHistory
from pumphouse.homes.watch.unusual import LEARN, NEW_USUAL, unusual_starts
from tests.homes.simulator.sensor_network import Sample, samples

TEMPERATURE, HUMIDITY = KINDS.index("temperature"), KINDS.index("humidity")


def readings(*values: float, kind: int = TEMPERATURE, home: int = 1) -> ActivityColumns:
    count = len(values)
    return ActivityColumns(
        number=np.full(count, home, np.int32),
        kind=np.full(count, kind, np.int32),
        at=np.arange(count, dtype=np.int64),
        value=np.array(values, np.float64),
        since=np.zeros(count, np.int64),
        mode=np.zeros(count, np.int32),
    )


def odd(*values: float, past: PartitionHistory = EMPTY) -> tuple[list[int], PartitionHistory]:
    places, past = unusual_starts(past, readings(*values))
    return places.tolist(), past


STEADY = [20.0 + 0.1 * (index % 5) for index in range(LEARN)]


def test_a_jump_is_unusual_once() -> None:
    assert odd(*STEADY, 40.0, 41.0, 42.0, 20.0, 20.1)[0] == [LEARN]
    assert odd(*STEADY, 40.0, 20.0, 40.0)[0] == [LEARN, LEARN + 2]


def test_no_reading_is_unusual_at_the_beginning() -> None:
    assert odd(*STEADY[:-1], 40.0)[0] == []


def test_slow_changes_and_faults_are_not_unusual() -> None:
    assert odd(*(20.0 + 0.05 * index for index in range(400)))[0] == []
    assert odd(*STEADY, float("nan"), 20.2)[0] == []


def test_a_lasting_change_becomes_usual() -> None:
    places, past = odd(*STEADY, *[40.0] * (NEW_USUAL + LEARN))
    assert places == [LEARN]
    assert odd(40.0, 20.0, past=past)[0] == [1]


def test_batches_and_other_sensors_do_not_matter() -> None:
    values = [*STEADY, *STEADY, 30.0, 20.0, *STEADY[::-1], 31.0]
    whole, past = odd(*values), EMPTY
    starts = []
    for index, value in enumerate(values):
        some, past = odd(value, past=past)
        starts += [index] * len(some)
    assert starts == whole[0]
    assert past.recent.shape == (1, RECENT)
    places, past = unusual_starts(past, readings(*[90.0] * 3, kind=HUMIDITY))
    assert places.tolist() == []
    assert past.sensors.tolist() == [8 + TEMPERATURE, 8 + HUMIDITY]


def test_labelled_data_of_a_sensor_network() -> None:
    """With every tenth sample, as sift keeps them."""
    right, wrong = set(), 0
    for mote in (1, 2, 3, 4):
        kept = [sample for sample in samples() if sample.mote == mote][::10]
        for name, kind in (("temperature", TEMPERATURE), ("humidity", HUMIDITY)):
            values = [float(getattr(sample, name)) for sample in kept]
            begins: list[Sample] = [
                kept[i] for i in unusual_starts(EMPTY, readings(*values, kind=kind))[0]
            ]
            right |= {(mote, name) for sample in begins if sample.unusual}
            wrong += sum(not sample.unusual for sample in begins)
    assert right == {(mote, name) for mote in (1, 4) for name in ("temperature", "humidity")}
    assert wrong <= 1

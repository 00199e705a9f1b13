"""The bytes of a value of state: compressed, and those of earlier versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.homes.duplicates import NO_WINDOWS, admit_new
from pumphouse.homes.sift.alarms import pack_state
from pumphouse.homes.sift.delivery import KEPT, REPEATED
from pumphouse.homes.sift.sifter import Sifter
from pumphouse.homes.state.compression import MARK, compress_state, expand_state

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import ValueState


@given(st.binary(max_size=100))
def test_a_value_is_restored(value: bytes) -> None:
    assert expand_state(compress_state(value)) == value


@pytest.mark.parametrize("value", [b"", b"a value of an earlier version", b"\0" * 20])
def test_a_value_of_an_earlier_version_is_read(value: bytes) -> None:
    assert expand_state(value) == value


def test_numbers_that_differ_little_take_less_space() -> None:
    times = np.arange(1_700_000_000_000, 1_700_000_600_000, 60, dtype=np.int64).tobytes()
    assert len(compress_state(times)) < len(times) / 3


class StoredState:
    """A value of Spark's state."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def get(self) -> tuple[bytes]:
        return (self.value,)

    def update(self, value: tuple[bytes]) -> None:
        (self.value,) = value


def outcomes(sifter: Sifter, numbers: list[int]) -> list[str]:
    """The outcomes of readings of one sensor with these numbers."""
    table = {
        "outcome": np.full(len(numbers), KEPT, object),
        "sensor": np.zeros(len(numbers), np.int32),
        "seq": np.array(numbers, np.int64),
    }
    sifter.evaluate(table)
    kinds: list[str] = table["outcome"].tolist()
    return kinds


def test_sift_continues_a_checkpoint_of_an_earlier_version() -> None:
    _, windows = admit_new(NO_WINDOWS, np.zeros(2, np.int32), np.array([7, 8]))
    state = StoredState(pack_state(windows, None))
    sifter = Sifter(None, 120_000, None, lambda events: None)
    sifter.state = cast("ValueState", state)
    assert outcomes(sifter, [8, 9]) == [REPEATED, KEPT]
    assert state.value.endswith(MARK)
    assert outcomes(sifter, [7, 9, 10]) == [REPEATED, REPEATED, KEPT]

"""The exact validation of one body."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pumphouse.homes.exact_validation import EARLIEST_MS, ValidationResult, validate_body
from pumphouse.homes.schema import Activity, Reading, encode_activity, encode_reading

NOW = 1_792_031_580_000
READING = Reading("h000042", "door", 7, NOW, 1, NOW - 9_000, "away", 87)


def look(reading: Reading, ahead_max_ms: int | None = 1000) -> ValidationResult:
    return validate_body(encode_reading(reading), NOW, ahead_max_ms, 120_000)


def test_a_valid_reading_becomes_an_activity() -> None:
    fault = replace(READING, value=None, fault="stuck", at=NOW - 120_001)
    body = encode_activity(Activity(fault, "fault", "Kiln Lane"))
    assert look(fault) == ValidationResult(None, "h000042", 42 * 8 + 1, 7, body, late=True)
    assert look(READING).late is False


def test_a_reading_that_does_not_matter_has_no_body() -> None:
    boring = look(replace(READING, value=0, since=NOW - 100_000))
    assert (boring.body, boring.problem) == (None, None)


@pytest.mark.parametrize(
    ("at", "complaint"),
    [
        (NOW + 1000, None),
        (NOW + 1001, "bad-time: at is more than 1 s ahead of its arrival"),
        (EARLIEST_MS, None),
        (EARLIEST_MS - 1, "bad-time: at is before the year 2000"),
        (7_258_118_399_999, None),
        (7_258_118_400_000, "bad-time: at is after the year 2199"),
        (2**63, "wrong-type: seq, at, since or battery is beyond 9007199254740991"),
    ],
)
def test_an_impossible_time_is_refused(at: int, complaint: str | None) -> None:
    ahead_max_ms = None if at > NOW + 2000 else 1000
    assert look(replace(READING, at=at), ahead_max_ms).problem == complaint


@pytest.mark.parametrize("name", ["seq", "since", "battery"])
def test_a_number_out_of_range_is_refused(name: str) -> None:
    for number in (2**53, -(2**53), 10**400):
        absurd = replace(READING, **{name: number})  # type: ignore[arg-type]
        assert (
            look(absurd).problem
            == "wrong-type: seq, at, since or battery is beyond 9007199254740991"
        )
    assert look(replace(READING, value=1e13)).problem == "wrong-type: value is beyond 1e+12"
    body = encode_reading(READING).replace(b'"value":1', b'"value":1e999')
    assert validate_body(body, NOW, None, 0).problem == "wrong-type: value is beyond 1e+12"


def test_half_of_a_surrogate_pair_is_refused() -> None:
    """It can be decoded but not encoded, so one such body would stop the stage."""
    body = encode_reading(replace(READING, value=None, fault="?")).replace(b"?", rb"\ud800")
    complaint = validate_body(body, NOW, None, 0).problem
    assert complaint == "wrong-type: fault has half of a surrogate pair"
    whole = encode_reading(replace(READING, value=None, fault="?")).replace(b"?", rb"\ud83d\ude00")
    assert validate_body(whole, NOW, None, 0).problem is None


def test_without_a_limit_any_future_time_is_valid() -> None:
    assert look(replace(READING, at=NOW * 2), ahead_max_ms=None).problem is None


def test_an_invalid_body_has_a_problem() -> None:
    assert validate_body(b"{}", NOW, None, 0).problem == "missing-key: v"

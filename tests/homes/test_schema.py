"""Encoding and decoding of bodies, and the reasons of invalid ones."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import BadRecord
from pumphouse.homes import schema
from pumphouse.homes.schema import Activity, Alert, Reading
from tests.homes.kinds.kinds_files import CARBON_MONOXIDE, kinds_of

DOOR = Reading("h000042", "door", 29_867_193, 1_792_031_580_000, 1, 1_792_031_571_000, "away", 87)

READINGS = st.builds(
    Reading,
    home=st.integers(0, schema.HOMES_MAX - 1).map(schema.home_id),
    sensor=st.sampled_from(schema.KINDS),
    seq=st.integers(0, 10**15),
    at=st.integers(0, 10**14),
    value=st.integers(0, 1000) | st.floats(allow_nan=False, allow_infinity=False),
    since=st.integers(0, 10**14),
    mode=st.sampled_from(schema.MODES),
    battery=st.integers(0, 100),
    fault=st.none() | st.text(min_size=1),
)


def test_the_doctests_pass() -> None:
    assert doctest.testmod(schema).failed == 0


def test_the_bytes_of_a_reading() -> None:
    assert schema.encode_reading(DOOR) == (
        b'{"v":1,"home":"h000042","sensor":"door","seq":29867193,"at":1792031580000,"value":1,'
        b'"since":1792031571000,"mode":"away","battery":87}'
    )


@given(READINGS)
def test_a_reading_is_decoded_as_it_was_encoded(reading: Reading) -> None:
    assert schema.decode_reading(schema.encode_reading(reading)) == reading


def test_a_fault_has_no_value() -> None:
    fault = replace(DOOR, value=None, fault="stuck")
    assert json.loads(schema.encode_reading(fault))["value"] is None
    assert schema.decode_reading(schema.encode_reading(fault)) == fault
    assert schema.why_kept(fault) == "fault"


def test_an_activity_and_an_alert_are_decoded_as_they_were_encoded() -> None:
    activity = Activity(DOOR, "change", "Kiln Lane")
    assert schema.decode_activity(schema.encode_activity(activity)) == activity
    alert = Alert("h000042", "break-in", "door", DOOR.at, DOOR.since, "Kiln Lane", "Door opened")
    body = schema.encode_alert(alert)
    assert schema.decode_alert(body) == alert
    assert json.loads(body)["id"] == "break-in:h000042:1792031571000"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": 2}, schema.UNKNOWN_VERSION),
        ({"v": True}, schema.WRONG_TYPE),
        ({"home": "42"}, schema.BAD_HOME),
        ({"home": "h00042٣"}, schema.BAD_HOME),  # a digit, but not one of ours
        ({"home": None}, schema.WRONG_TYPE),
        ({"sensor": "toaster"}, schema.UNKNOWN_SENSOR),
        ({"mode": "party"}, schema.UNKNOWN_MODE),
        ({"at": "soon"}, schema.WRONG_TYPE),
        ({"at": 1.5}, schema.WRONG_TYPE),
        ({"value": "1"}, schema.WRONG_TYPE),
        ({"value": True}, schema.WRONG_TYPE),
        ({"value": None}, schema.WRONG_TYPE),  # without a fault
        ({"fault": 7}, schema.WRONG_TYPE),
    ],
)
def test_an_invalid_reading_has_a_reason(change: dict[str, object], reason: str) -> None:
    body = json.dumps(json.loads(schema.encode_reading(DOOR)) | change).encode()
    with pytest.raises(BadRecord) as wrong:
        schema.decode_reading(body)
    assert wrong.value.reason == reason


@pytest.mark.parametrize("name", ["v", *Reading.__slots__[:-1]])
def test_every_key_is_required(name: str) -> None:
    fields = json.loads(schema.encode_reading(DOOR))
    del fields[name]
    with pytest.raises(BadRecord, match=f"^{schema.MISSING_KEY}: {name}$"):
        schema.decode_reading(json.dumps(fields).encode())


@pytest.mark.parametrize("body", [b"", b"{", b"7", b"[]", b"\xff\xfe", b'{"v":NaN}', b"[" * 5000])
def test_a_body_that_is_not_json_has_that_reason(body: bytes) -> None:
    with pytest.raises(BadRecord) as wrong:
        schema.decode_reading(body)
    assert wrong.value.reason == schema.NOT_JSON


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_bad_record(body: bytes) -> None:
    with pytest.raises(BadRecord):
        schema.decode_reading(body)


@pytest.mark.parametrize(
    ("reading", "why"),
    [
        (DOOR, "change"),
        (replace(DOOR, since=DOOR.at - schema.MINUTE_MS), "active"),
        (replace(DOOR, since=DOOR.at + 1, value=0, seq=9), None),  # a clock that went back
        (replace(DOOR, since=0, value=0, seq=9), None),
        (replace(DOOR, since=0, value=0, seq=8), "alive"),  # 8 and the 42 of the home make fifty
        (replace(DOOR, since=0, value=0, seq=9, battery=15), "battery"),
        (replace(DOOR, sensor="smoke", since=0, value=59.9, seq=9), None),
        (replace(DOOR, sensor="smoke", since=0, value=60, seq=9), "active"),
        (replace(DOOR, sensor="temperature", since=0, value=21, seq=9), None),
    ],
)
def test_why_a_reading_is_kept(reading: Reading, why: str | None) -> None:
    assert schema.why_kept(reading) == why
    activity = schema.activity_of(reading)
    assert (activity and activity.why) == why


def test_a_home_s_number_has_six_digits() -> None:
    assert schema.home_number(schema.home_id(999_999)) == 999_999
    with pytest.raises(ValueError, match="invalid home number 1000000"):
        schema.home_id(1_000_000)


def test_regions_have_the_same_number_of_homes() -> None:
    regions = [schema.region_of(number) for number in range(1600)]
    assert {regions.count(region) for region in schema.REGIONS} == {100}


def test_an_unknown_kind_is_reported_with_the_file_of_the_kinds() -> None:
    body = schema.encode_reading(Reading("h000001", "co", 1, 1, 9, 1, "home", 90))
    with pytest.raises(BadRecord, match="unknown-sensor: 'co' is not a kind of the default kinds"):
        schema.decode_reading(body)
    with pytest.raises(BadRecord, match=r"'co' is not a kind of /etc/kinds: .*, carbon-monoxide$"):
        schema.decode_reading(body, kinds_of(CARBON_MONOXIDE, "/etc/kinds"))


def test_a_value_beyond_the_limits_of_its_kind_is_invalid() -> None:
    kinds = kinds_of(CARBON_MONOXIDE)
    reading = Reading("h000001", "carbon-monoxide", 1, 1, 5001.0, 1, "home", 90)
    message = "bad-value: carbon-monoxide 5001 is above 5000, maximum in kinds.toml"
    with pytest.raises(BadRecord, match=message):
        schema.decode_reading(schema.encode_reading(reading), kinds)
    below = replace(reading, value=-1.0)
    with pytest.raises(BadRecord, match="carbon-monoxide -1 is below 0, minimum in kinds"):
        schema.decode_reading(schema.encode_reading(below), kinds)
    valid = replace(reading, value=49.0)
    assert schema.decode_reading(schema.encode_reading(valid), kinds) == valid
    assert schema.why_kept(replace(valid, at=90_000_001), kinds) is None
    assert schema.why_kept(replace(valid, at=90_000_001, value=50.0), kinds) == "active"

"""Positions in the forms of an option, with the JSON of the Scala connector."""

import json

import pytest

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Position
from pumphouse.spark.positions import read_position, read_positions, read_timestamp

NOW_MS = 1_000_000_000
NINE = 1_763_197_200_000  # 2025-11-15T09:00:00Z


def sequence(number: int, inclusive: bool = True) -> Position:
    return Position("sequence", str(number), inclusive)


def scala(**fields: object) -> str:
    whole = {"offset": None, "seqNo": -1, "enqueuedTime": None, "isInclusive": True}
    return json.dumps({**whole, **fields})


@pytest.mark.parametrize(
    ("written", "position"),
    [
        ("earliest", EARLIEST),
        (" Latest ", LATEST),
        ("-1", EARLIEST),
        ("@latest", LATEST),
        ('"earliest"', EARLIEST),
        ("seq:120", sequence(120)),
        ("offset:8192", Position("offset", "8192", True)),
        ("time:-15m", Position("time", str(NOW_MS - 900_000), True)),
        ("2025-11-15T09:00:00Z", Position("time", str(NINE), True)),
        ("2025-11-15T10:00:00+01:00", Position("time", str(NINE), True)),
        ('{"seqNo": 120}', sequence(120)),
        ('{"seqNo": 0}', sequence(0)),
        ('{"seqNo": "7"}', sequence(7)),
        ('{"SeqNo": 120, "isInclusive": false}', sequence(120, inclusive=False)),
        ('{"offset": "8192"}', Position("offset", "8192", True)),
        ('{"offset": "ab-12"}', Position("offset", "ab-12", True)),  # geo-replicated
        ('{"enqueuedTime": "2025-11-15T09:00:00Z"}', Position("time", str(NINE), True)),
        (scala(offset="-1"), EARLIEST),
        (scala(offset="@latest"), LATEST),
        (scala(offset="8192", isInclusive=False), Position("offset", "8192", False)),
        (scala(seqNo=120), sequence(120)),
        (scala(enqueuedTime="2025-11-15T09:00:00.000Z"), Position("time", str(NINE), True)),
        (scala(), EARLIEST),
    ],
)
def test_a_position_has_several_forms(written: str, position: Position) -> None:
    assert read_position("startingPosition", written, NOW_MS) == position


@pytest.mark.parametrize(
    "written",
    [
        "",
        "soon",
        "seq:x",
        "[1]",
        "{",
        "{}",
        '{"seqNo": "x"}',
        '{"seqNo": 1.7}',
        '{"seqNo": true}',
        '{"seqNo": 1, "isInclusive": "false"}',
        '{"offset": ""}',
        "2025-13-01",
        "12",
        '{"enqueuedTime": "9 o\'clock"}',
        "7up",
    ],
)
def test_an_invalid_position_is_refused(written: str) -> None:
    with pytest.raises(OptionError, match=r"invalid startingPosition .*: use earliest"):
        read_position("startingPosition", written, NOW_MS)


def test_a_time_needs_a_zone() -> None:
    with pytest.raises(OptionError, match="has no time zone"):
        read_position("startingPosition", "2025-11-15T09:00:00", NOW_MS)


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(OptionError, match="startingPosition has an unknown field 'sequence'"):
        read_position("startingPosition", '{"sequence": 4}', NOW_MS)


def test_positions_by_partition() -> None:
    written = json.dumps({"0": "earliest", "1": {"seqNo": 7}, "2": 9, "3": -1, "4": "seq:3"})
    assert read_positions("startingPositions", written, "sensors", NOW_MS) == {
        "0": EARLIEST,
        "1": sequence(7),
        "2": sequence(9),
        "3": EARLIEST,
        "4": sequence(3),
    }


def test_positions_with_the_keys_of_the_scala_connector() -> None:
    key = json.dumps({"ehName": "Sensors", "partitionId": 3})
    written = json.dumps({key: {"offset": "-1", "seqNo": -1, "enqueuedTime": None}})
    assert read_positions("startingPositions", written, "sensors", NOW_MS) == {"3": EARLIEST}
    with pytest.raises(OptionError, match="is for hub Sensors, but the query reads hub meters"):
        read_positions("startingPositions", written, "meters", NOW_MS)


@pytest.mark.parametrize(
    "written", ["earliest", "[]", "7", '"earliest"', '{"{\\"ehName\\":\\"sensors\\"}": "earliest"}']
)
def test_an_invalid_map_of_positions_is_refused(written: str) -> None:
    with pytest.raises(OptionError, match="startingPositions"):
        read_positions("startingPositions", written, "sensors", NOW_MS)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1763200000000", 1763200000000),
        (" 0 ", 0),
        ("2025-11-15T09:46:40Z", 1763200000000),
        ("time:-1s", NOW_MS - 1000),
    ],
)
def test_a_timestamp_is_ms_or_iso_text(text: str, ms: int) -> None:
    position = read_timestamp("startingTimestamp", text, NOW_MS)
    assert (position.kind, position.value, position.inclusive) == ("time", str(ms), True)


@pytest.mark.parametrize("text", ["earliest", "seq:5", "soon", "-5", '{"seqNo": 5}'])
def test_another_position_is_not_a_timestamp(text: str) -> None:
    with pytest.raises(OptionError, match="startingTimestamp"):
        read_timestamp("startingTimestamp", text, NOW_MS)


@pytest.mark.parametrize("when", [1763200000000, "1763200000000", "2025-11-15T09:46:40Z"])
def test_an_enqueued_time_is_ms_or_iso_text(when: object) -> None:
    text = json.dumps({"enqueuedTime": when})
    assert read_position("startingPosition", text, NOW_MS).value == "1763200000000"

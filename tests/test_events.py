"""Positions: parsing the text form of the command line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Position, parse_position

NOW_MS = 1_714_564_800_000  # 2024-05-01 12:00 UTC

numbers = st.integers(0, 2**63 - 1).map(str)
positions = st.sampled_from([EARLIEST, LATEST]) | st.builds(
    Position, st.sampled_from(["offset", "sequence", "time"]), numbers, st.just(True)
)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EARLIEST),
        (" Latest ", LATEST),
        ("seq:0", Position("sequence", "0", inclusive=True)),
        ("sequence:17", Position("sequence", "17", inclusive=True)),
        ("offset:4096", Position("offset", "4096", inclusive=True)),
        (f"time:{NOW_MS}", Position("time", str(NOW_MS), inclusive=True)),
        ("time:2024-05-01T12:00:00Z", Position("time", str(NOW_MS), inclusive=True)),
        ("time:2024-05-01T14:00:00+02:00", Position("time", str(NOW_MS), inclusive=True)),
        ("time:2024-05-01T12:00:00.250Z", Position("time", str(NOW_MS + 250), inclusive=True)),
        ("time:-15m", Position("time", str(NOW_MS - 900_000), inclusive=True)),
        ("time:-2H", Position("time", str(NOW_MS - 7_200_000), inclusive=True)),
        ("time:-30s", Position("time", str(NOW_MS - 30_000), inclusive=True)),
        ("time:-1d", Position("time", str(NOW_MS - 86_400_000), inclusive=True)),
    ],
)
def test_a_position_is_parsed(text: str, position: Position) -> None:
    assert parse_position(text, NOW_MS) == position


@given(positions)
def test_the_text_of_a_position_parses_to_the_same_position(position: Position) -> None:
    assert parse_position(str(position), NOW_MS) == position


@pytest.mark.parametrize(
    "text",
    ["", "now", "earliest:", "latest:3", "seq", "seq:", "seq:-1", "seq:1.5", "seq:\u0661",
     "offset:x", "time:", "time:yesterday", "time:15m", "time:-15", "time:-15w", f"seq:{10**19}"],
)  # fmt: skip
def test_an_invalid_position_is_refused_with_the_list_of_forms(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"use one of earliest, latest, seq:N, offset:N"
    ) as refused:
        parse_position(text, NOW_MS)
    assert repr(text) in str(refused.value)


def test_a_time_without_a_zone_is_refused_with_an_example() -> None:
    with pytest.raises(OptionError, match="time 2024-05-01T12:00:00 has no time zone: append Z"):
        parse_position("time:2024-05-01T12:00:00", NOW_MS)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("seq", "1", "invalid kind of position 'seq': use one of earliest, latest, offset, "),
        ("sequence", "", "invalid value '' of a position of kind 'sequence': use the sequence "),
        ("sequence", "1.5", "use the sequence number as a string of digits"),
        ("sequence", 1, "invalid value 1 of a position"),
        ("time", "2024-05-01", "use milliseconds since 1970 as a string of digits"),
        ("offset", "", "use the offset as a string"),
        ("latest", "1", "of kind 'latest': use no value"),
    ],
)
def test_an_invalid_position_is_refused_when_it_is_made(kind: str, value: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        Position(kind, value)

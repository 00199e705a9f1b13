"""Selectors and attach filters of the official clients."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.performatives import SELECTOR_FILTER
from pumphouse.amqp.types import Described, Symbol, ULong
from pumphouse.client.selectors import selector_for
from pumphouse.errors import AmqpError, OptionError
from pumphouse.events import EARLIEST, LATEST, Position
from pumphouse.hub.filters import (
    _SELECTOR,
    SELECTOR_FILTER_CODE,
    parse_selector,
    position_from_filter,
)
from tests.growth import assert_linear

OFFSET, SEQUENCE, TIME = (
    f"amqp.annotation.x-opt-{name}" for name in ("offset", "sequence-number", "enqueued-time")
)
NOW_MS = 1_714_564_800_000  # 2024-05-01 12:00 UTC


@pytest.mark.parametrize(
    ("selector", "position"),
    [
        (f"{OFFSET} > '-1'", EARLIEST),
        (f"{OFFSET} >= '-1'", EARLIEST),
        (f"{OFFSET} > '@latest'", LATEST),
        (f"{OFFSET} >= '@latest'", LATEST),
        (f"{OFFSET} > '0'", Position("offset", "0")),
        (f"{OFFSET} > '4096'", Position("offset", "4096")),
        (f"{OFFSET} >= '4096'", Position("offset", "4096", inclusive=True)),
        (f"{SEQUENCE} > '0'", Position("sequence", "0")),
        (f"{SEQUENCE} > '-1'", Position("sequence", "-1")),
        (f"{SEQUENCE} >= '17'", Position("sequence", "17", inclusive=True)),
        (f"{TIME} > '1714564800000'", Position("time", "1714564800000")),
        (f"{TIME} >= '1714564800000'", Position("time", "1714564800000", inclusive=True)),
        (f"{TIME} > '-62135596800000'", Position("time", "-62135596800000")),
        # Forms of older clients.
        ("amqp.annotation.x-opt-enqueuedtimeutc > '5'", Position("time", "5")),
        (f"{OFFSET} > 4096", Position("offset", "4096")),
        (f'{OFFSET} > "4096"', Position("offset", "4096")),
        (f"  {OFFSET}>='4096' ", Position("offset", "4096", inclusive=True)),
        (f"{OFFSET.upper()}  >  '@LATEST'", LATEST),
        (f"{SEQUENCE} > '007'", Position("sequence", "7")),
    ],
)
def test_a_selector_is_parsed_into_a_position(selector: str, position: Position) -> None:
    assert parse_selector(selector) == position


@pytest.mark.parametrize(
    "selector",
    [
        "",
        "offset > '1'",
        f"{OFFSET} < '1'",
        f"{OFFSET} = '1'",
        f"{OFFSET} > ''",
        f"{OFFSET} > 'one'",
        f"{OFFSET} > '-2'",
        f"{OFFSET} > '1",
        f"{OFFSET} > '1' OR 1 = 1",
        f"{OFFSET} > '{10**19}'",
        f"{OFFSET} > '\u0661'",  # a digit, but not an ASCII one
        f"{SEQUENCE} > '@latest'",
        "amqp.annotation.x-opt-partition-key > '1'",
    ],
)
def test_an_invalid_selector_is_refused(selector: str) -> None:
    with pytest.raises(AmqpError) as refusal:
        parse_selector(selector)
    assert refusal.value.condition == "com.microsoft:argument-error"
    assert f"The supplied filter '{selector}' is invalid." in refusal.value.description


numbers = st.integers(0, 2**63 - 1).map(str)
positions = st.sampled_from([EARLIEST, LATEST]) | st.builds(
    Position, st.sampled_from(["offset", "sequence", "time"]), numbers, st.booleans()
)


@given(positions)
def test_a_selector_written_for_a_position_is_parsed_back(position: Position) -> None:
    assert parse_selector(selector_for(position)) == position


@given(st.text())
def test_any_text_is_a_selector_or_an_amqp_error(text: str) -> None:
    with contextlib.suppress(AmqpError):
        selector_for(parse_selector(text))


@pytest.mark.parametrize("blank", [" ", "\t", "\u3000"])
def test_a_selector_longer_than_a_kibibyte_is_refused_and_not_quoted(blank: str) -> None:
    with pytest.raises(AmqpError) as refusal:
        parse_selector(f"{OFFSET} > {blank * 15_000}x")
    assert refusal.value.condition == "amqp:invalid-field"
    assert "The selector has 150" in refusal.value.description
    assert parse_selector(f"{OFFSET} >{blank * 900}'5'") == Position("offset", "5")


@pytest.mark.parametrize(
    "form", ["{0}x", OFFSET + "{0}x", OFFSET + " >{0}x", OFFSET + " > 1{0}x", OFFSET + " > '1{0}x"]
)
def test_a_selector_is_matched_in_linear_time(form: str) -> None:
    """Also without the limit on the length."""
    assert_linear(_SELECTOR.fullmatch, lambda count: form.format(" " * count), 10_000)


def test_an_unknown_kind_of_position_is_refused() -> None:
    with pytest.raises(OptionError, match="invalid kind of position 'tomorrow'"):
        selector_for(Position("tomorrow"))


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("value", ["-1", "@latest", "4096", 17, datetime(2024, 5, 1, tzinfo=UTC)])
def test_selectors_of_the_python_sdk_are_written_and_parsed(value: Any, inclusive: bool) -> None:
    sdk = pytest.importorskip("azure.eventhub._utils")
    written = sdk.event_position_selector(value, inclusive).decode()
    position = parse_selector(written)
    if position in (EARLIEST, LATEST):
        written = written.replace(">=", ">")
    assert selector_for(position) == written


@pytest.mark.parametrize("descriptor", [SELECTOR_FILTER, ULong(0x468C00000004)])
def test_a_filter_is_known_by_its_descriptor(descriptor: Any) -> None:
    filters = {SELECTOR_FILTER: Described(descriptor, f"{SEQUENCE} >= '9'")}
    start = position_from_filter(filters)
    assert start.position == Position("sequence", "9", inclusive=True)
    assert start.honoured == filters


def test_the_filter_code_in_decimal() -> None:
    assert SELECTOR_FILTER_CODE == 77567109365764


def test_the_name_in_the_map_is_the_clients_own_choice() -> None:
    filters = {Symbol("mine"): Described(ULong(SELECTOR_FILTER_CODE), f"{OFFSET} > '@latest'")}
    assert position_from_filter(filters).position == LATEST


def test_a_plain_string_under_the_well_known_name_is_accepted() -> None:
    assert position_from_filter({SELECTOR_FILTER: f"{OFFSET} > '3'"}).position.value == "3"


@pytest.mark.parametrize("filters", [None, {}, {SELECTOR_FILTER: None}])
def test_without_a_selector_reading_starts_at_the_first_event(filters: Any) -> None:
    start = position_from_filter(filters)
    assert start.position == EARLIEST
    assert start.honoured == {}


def test_unknown_filters_are_not_echoed() -> None:
    no_local = Symbol("apache.org:no-local-filter:list")
    selector = Described(SELECTOR_FILTER, f"{OFFSET} > '3'")
    start = position_from_filter({no_local: Described(no_local, ()), SELECTOR_FILTER: selector})
    assert start.honoured == {SELECTOR_FILTER: selector}


def test_two_selectors_are_refused() -> None:
    selector = Described(SELECTOR_FILTER, f"{OFFSET} > '3'")
    with pytest.raises(AmqpError, match="One selector is allowed, the filter has 2"):
        position_from_filter({Symbol("a"): selector, Symbol("b"): selector})


def test_a_selector_that_is_not_a_string_is_refused() -> None:
    with pytest.raises(AmqpError, match="must be a string, got 7") as refusal:
        position_from_filter({SELECTOR_FILTER: Described(SELECTOR_FILTER, 7)})
    assert refusal.value.condition == "amqp:invalid-field"

"""The trace context of an event, in both directions and with invalid input."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.telemetry.trace_context import (
    TraceContext,
    carries_context,
    child_of,
    new_context,
    parse_context,
    parse_tracestate,
    read_context,
    write_context,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
OTHER = f"00-{TRACE}-{'1' * 16}-01"
CONTEXT = TraceContext(TRACE, SPAN)
ZERO_TRACE, ZERO_SPAN = "0" * 32, "0" * 16


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (PARENT, CONTEXT),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, 0)),
        (f"00-{TRACE}-{SPAN}-03", TraceContext(TRACE, SPAN, 3)),
    ],
)
def test_a_context_as_text(text: str, context: TraceContext) -> None:
    assert parse_context(text) == parse_context(text.encode()) == context
    assert context.traceparent == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-03"),  # unknown flags are not passed on
        (f"01-{TRACE}-{SPAN}-01", PARENT),  # a later version has at least these fields
        (f"fe-{TRACE}-{SPAN}-01-what-follows", PARENT),
    ],
)
def test_a_later_version_is_read(text: str, shown: str) -> None:
    context = parse_context(text)
    assert context is not None
    assert context.traceparent == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"{PARENT}-",
        f"{PARENT}0",
        f"{PARENT}\n",
        f" {PARENT}",
        f"ff-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01.",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{ZERO_TRACE}-{SPAN}-01",
        f"00-{TRACE}-{ZERO_SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"|{TRACE}.{SPAN}.",  # the older form of Diagnostic-Id
        f"fe-{TRACE}-{SPAN}-01-" + "x" * 512,
        f"00-{'٣' * 32}-{SPAN}-01",
        PARENT.encode("utf-16"),
        bytearray(PARENT.encode()),
        b"\xff" * 55,
        7,
        None,
        [PARENT],
    ],
)
def test_what_is_invalid_is_ignored(text: object) -> None:
    assert parse_context(text) is None


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", ""),
        ("a=1", "a=1"),
        (b"a=1,tenant@system=x y", "a=1,tenant@system=x y"),
        (" a=1 ,,\tb=2 ", "a=1,b=2"),
        (f"a={'x' * 256}", f"a={'x' * 256}"),
        (",".join(f"k{n}=v" for n in range(32)), ",".join(f"k{n}=v" for n in range(32))),
        (",".join(f"k{n}=v" for n in range(33)), ""),
        (f"a={'x' * 257}", ""),
        ("a=1,a=2", ""),
        ("A=1", ""),
        ("a", ""),
        ("a=", ""),
        ("=1", ""),
        ("a=1=2", ""),
        ("a=\x00", ""),
        ("a=é", ""),
        (f"a=1{' ' * 512}", ""),
        (None, ""),
        (1.5, ""),
    ],
)
def test_a_tracestate_is_read_whole_or_not_at_all(text: object, state: str) -> None:
    assert parse_tracestate(text) == state
    context = parse_context(PARENT, text)
    assert context is not None
    assert context.state == state


@pytest.mark.parametrize(
    "properties",
    [
        {"traceparent": PARENT},
        {b"traceparent": PARENT.encode()},
        {"Diagnostic-Id": PARENT},
        {b"Diagnostic-Id": PARENT.encode(), b"tracestate": b""},
        {"traceparent": PARENT, "Diagnostic-Id": OTHER},
        {"traceparent": "invalid", "Diagnostic-Id": PARENT},
    ],
)
def test_the_context_of_properties(properties: Mapping[Any, Any]) -> None:
    assert read_context(properties) == CONTEXT
    assert carries_context(properties)


@pytest.mark.parametrize(
    "properties", [{}, {"tracestate": "a=1"}, {"TraceParent": PARENT}, {"traceparent": None}]
)
def test_properties_without_a_context(properties: Mapping[Any, Any]) -> None:
    assert read_context(properties) is None
    assert not carries_context(properties)


def test_a_context_is_added_to_the_properties() -> None:
    properties = {"unit": "C"}
    context = TraceContext(TRACE, SPAN, state="a=1")
    written = write_context(properties, context)
    assert written == properties | {
        "traceparent": PARENT,
        "Diagnostic-Id": PARENT,
        "tracestate": "a=1",
    }
    assert read_context(written) == context
    assert properties == {"unit": "C"}
    assert "tracestate" not in write_context({}, CONTEXT)


@pytest.mark.parametrize("name", ["traceparent", b"traceparent", "Diagnostic-Id", b"Diagnostic-Id"])
def test_an_event_keeps_its_context(name: object) -> None:
    properties = {name: "even an invalid one"}
    assert write_context(properties, CONTEXT) is properties


@given(st.integers(), st.booleans())
def test_new_contexts_are_valid(seed: int, is_sampled: bool) -> None:
    rng = Random(seed)
    first = new_context(rng, is_sampled=is_sampled)
    child = child_of(first, rng)
    for context in (first, child):
        assert parse_context(context.traceparent) == context
        assert context.is_sampled == is_sampled
    assert child.trace_id == first.trace_id
    assert child.span_id != first.span_id


@given(st.text() | st.binary(), st.text() | st.binary())
def test_any_input_is_read_or_ignored(parent: object, state: object) -> None:
    context = parse_context(parent, state)
    assert context is None or parse_context(context.traceparent, context.state) == context
    context = parse_context(PARENT, state)
    assert context is not None
    assert parse_tracestate(context.state) == context.state

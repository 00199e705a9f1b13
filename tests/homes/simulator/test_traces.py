"""Which simulated readings begin a trace, and that senders write the context."""

from __future__ import annotations

import asyncio

import pytest

from pumphouse.client.factory import open_client
from pumphouse.clock import SystemClock
from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.homes.schema import ARMED, MINUTE_MS, Reading, decode_reading
from pumphouse.homes.simulator.incidents import MANY
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.record_encoding import MALFORMED
from pumphouse.homes.simulator.sender import send
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.simulator.time_slices import SimulatorSource
from pumphouse.homes.simulator.traces import TraceOptions, traces_of
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.telemetry.trace_context import DIAGNOSTIC_ID, TRACEPARENT, parse_context
from tests.homes.simulator.read_back import events_of

FIRST = 20_605 * 1440
ALARMS, ALL = TraceOptions(alarms=True), TraceOptions(share=1.0)


def may_raise(reading: Reading) -> bool:
    value = reading.value or 0
    if reading.sensor in ("door", "window"):
        return value > 0 and reading.mode in ARMED
    return value > 0 if reading.sensor == "glass" else reading.sensor == "smoke" and value >= 60


def test_alarms_are_traced_and_nothing_else() -> None:
    faults = ReadingFaults(malformed=0.2, faults=0.1, duplicates=0.1)
    simulator, traced = HomeSimulator(300, 7, MANY, faults), 0
    for minute in range(FIRST, FIRST + 240, 20):
        columns = simulator.arriving(minute)
        traces = traces_of(columns, ALARMS, 7)
        expected = [
            row
            for row in range(len(columns))
            if may_raise(columns.reading(row)) and not columns.flags[row] & MALFORMED
        ]
        assert list(traces) == expected
        traced += len(traces)
    assert 20 < traced < 300 * 5 * 12 * 0.05  # few readings


def test_a_share_of_all_readings_is_traced() -> None:
    columns = HomeSimulator(2000, 7).arriving(FIRST)
    assert len(columns) == 10_000
    assert 60 < len(traces_of(columns, TraceOptions(share=0.01), 7)) < 150
    assert traces_of(columns, TraceOptions(), 7) == {}
    traces = traces_of(columns, ALL, 7)
    contexts = [parse_context(traces[row]) for row in range(10_000)]
    assert len({context.trace_id for context in contexts if context}) == 10_000
    assert traces_of(columns, ALL, 7) == traces
    assert not set(traces_of(columns, ALL, 8).values()) & set(traces.values())


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_an_invalid_share_is_refused(share: float) -> None:
    with pytest.raises(OptionError, match="invalid share of traced readings"):
        TraceOptions(share)


@pytest.mark.parametrize("driver", ["native", "azure"])
def test_senders_write_the_context_and_change_no_body(event_hub: EmbeddedHub, driver: str) -> None:
    event_hub.create_hub("sensors", 2)
    simulator, start_ms = HomeSimulator(40, 7), FIRST * MINUTE_MS
    end_ms = start_ms + MINUTE_MS
    source = SimulatorSource(simulator, start_ms, end_ms, 60, traces=TraceOptions(share=0.2))

    async def run() -> None:
        connection = event_hub.connection_string("sensors")
        async with open_client(connection, driver=driver) as client:
            await send(client, source, None, SystemClock(), asyncio.Event())

    asyncio.run(run())
    events = [event for events in events_of(event_hub).values() for event in events]
    assert sorted(event.body for event in events) == sorted(simulator.minute(FIRST).bodies())
    assert all(event.partition_key == decode_reading(event.body).home for event in events)
    columns = simulator.arriving(FIRST)
    expected = {
        columns.reading(row).identity: trace
        for row, trace in traces_of(columns, source.traces, 7).items()
    }
    assert traces_in(events) == expected
    assert 15 < len(expected) < 80


def traces_in(events: list[Event]) -> dict[tuple[str, str, int], str]:
    traced = [event for event in events if event.properties]
    assert all(event.properties[TRACEPARENT] == event.properties[DIAGNOSTIC_ID] for event in traced)
    return {
        decode_reading(event.body).identity: str(event.properties[TRACEPARENT]) for event in traced
    }

"""A few streams of the cost fuzzer (`make fuzz`), with prices that a slow machine keeps too."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from tests.fuzz import costs
from tests.fuzz.costs import CONNECTIONS, TRANSFER, Cost, Prices, count_frames, excess_of
from tests.fuzz.encoding import text
from tests.fuzz.listener_streams import LISTENER_KINDS, make_listener_stream
from tests.fuzz.probing import ProbedHub
from tests.fuzz.streams import (
    FREE,
    KINDS,
    Stream,
    attach,
    flow,
    frame,
    make_stream,
    performative,
    transfer,
    uint,
)

# Ten times the prices of `make fuzz`: a linear cost stays below, a quadratic one does not.
GENEROUS = Prices(fixed_cpu_s=0.05, byte_cpu_s=1e-5, read_cpu_s=1e-4, turn_s=1.0)
SEEDS = range(12)
# Streams that were too expensive when they were found.
FOUND = [17, 185, 1636]
DETACH = frame(performative(0x16, uint(FREE)))
SMALL_FRAMES = {
    "no address": frame(performative(0x12, text("n"), uint(FREE), b"\x42")) + DETACH,
    "unknown hub": attach(FREE, False, text("z")) + DETACH,
    "no event": frame(performative(0x14, b"\x43", b"\x43")),
    "malformed event": transfer(0, 0, b"?"),
    "malformed request": transfer(2, 0, b"?"),
    "session": frame(performative(0x11, b"\x40", b"\x43", uint(9), uint(9)), 5)
    + frame(performative(0x17), 5),
    "echo": flow(9, echo=True),
}


@pytest.mark.parametrize("seed", [*SEEDS, *FOUND])
def test_a_stream_costs_little(seed: int) -> None:
    stream = make_stream(seed)
    assert excess_of(stream, GENEROUS) == [], f"seed {seed}: {stream.kind}, {stream.size} bytes"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_to_another_listener_costs_little(seed: int) -> None:
    stream = make_listener_stream(seed)
    assert excess_of(stream, GENEROUS) == [], f"seed {seed}: {stream.kind}, {stream.size} bytes"


@pytest.mark.parametrize("listener", CONNECTIONS)
def test_many_connections_cost_little_memory(listener: str) -> None:
    """A connection that has sent nothing; TLS and the buffers of sockets are not counted."""
    make = CONNECTIONS[listener]
    make().end()  # imports
    tracemalloc.start()
    connections = [make() for _ in range(5)]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for connection in connections:
        connection.end()
    assert used < 5 * Prices().connection_bytes


@pytest.mark.parametrize("kind", SMALL_FRAMES)
def test_many_small_frames_cost_little(kind: str) -> None:
    """A frame of 20 bytes can make the hub refuse a link, or store an event."""
    stream = Stream(kind, (SMALL_FRAMES[kind] * 1000,))
    assert excess_of(stream, GENEROUS) == []


def test_transfers_are_counted() -> None:
    frames = [transfer(0, 1, b"x"), flow(9), transfer(0, 2, b"y"), b"\0\0"]
    assert count_frames(b"".join(frames), TRANSFER) == 2


def test_a_stream_follows_from_its_seed() -> None:
    for seed in range(20):
        assert make_stream(seed) == make_stream(seed)


def test_a_stream_to_another_listener_follows_from_its_seed() -> None:
    for seed in range(20):
        assert make_listener_stream(seed) == make_listener_stream(seed)


def test_streams_to_all_listeners_are_made() -> None:
    streams = [make_listener_stream(seed) for seed in range(60)]
    assert {stream.listener for stream in streams} == LISTENER_KINDS.keys()
    assert any(stream.setup for stream in streams)


def test_a_busy_machine_raises_the_prices_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "SOME_WORK_S", 1e-9)
    assert costs.slowness() == costs.SLOWNESS_MAX
    monkeypatch.setattr(costs, "SOME_WORK_S", 1e9)
    assert costs.slowness() == 1.0


def test_all_kinds_of_streams_are_made() -> None:
    kinds = {make_stream(seed).kind for seed in range(200)}
    assert {kind.removesuffix(" after a crowd") for kind in kinds} == KINDS.keys()
    assert any(kind.endswith("crowd") for kind in kinds)


@pytest.mark.parametrize(
    ("cost", "found"),
    [
        (Cost(1000, 1, 0.0019, 0.1), []),
        (Cost(1000, 1, 0.0021, 0.0), ["2.10 ms of CPU, 2.00 are allowed"]),
        (Cost(1000, 1, 0.0119, 0.0, deliveries=1000), []),
        (Cost(1000, 1, 0.0069, 0.0, attaches=1000), []),
        (Cost(1000, 1, 0.0071, 0.0, attaches=1000), ["7.10 ms of CPU, 7.00 are allowed"]),
        (Cost(1000, 1, 0.0219, 0.0, units=100, listener="http"), []),
        (
            Cost(1000, 1, 0.0221, 0.0, units=100, listener="http"),
            ["22.10 ms of CPU, 22.00 are allowed"],
        ),
        (Cost(1000, 1, 0.0, 0.11), ["110 ms in one turn of the event loop"]),
        (Cost(0, 1, 0.0, 0.0, 2 << 20), ["2097152 bytes of memory, 1048576 are allowed"]),
        (Cost(1 << 20, 1, 0.0, 0.0, 9 << 20), []),
        (Cost(0, 1, 0.0, 0.0, 2 << 20, links=256), []),
    ],
)
def test_the_prices(cost: Cost, found: list[str]) -> None:
    assert cost.excess(Prices()) == found


def test_a_probe_waits_for_a_hub_that_is_busy() -> None:
    """The stream makes the hub work for a long time; a probe gets its responses nevertheless."""
    with ProbedHub() as hub:
        stream = replace(make_stream(17), setup=b"")
        assert 0 < hub.least_delay_s(stream, suspicious_s=0.5) < 5.0
        streams = {each.listener: each for each in map(make_listener_stream, range(60))}
        for stream in streams.values():
            assert hub.least_delay_s(stream, suspicious_s=0.5) < 5.0, stream.kind

"""Reports of evicted tasks to the driver, over a real socket."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from pumphouse.errors import StoreUnavailable
from pumphouse.spark.lag.task_reports import DriverAddress
from pumphouse.spark.tenancy.evictions import (
    FAIL,
    RESUME,
    EvictionDecision,
    EvictionReport,
    compare_epochs,
    report_eviction,
    serve_evictions,
)

REPORT = EvictionReport("2", 7, "New receiver with a higher epoch", 9)


@pytest.mark.parametrize(
    ("ours", "evicting", "action"),
    [
        (8, 9, RESUME),  # raised since the task started
        (7, 7, FAIL),  # another task of the query
        (7, 9, None),  # our epoch must be raised
        (7, None, None),
    ],
)
def test_an_owner_compares_the_epochs(ours: int, evicting: int | None, action: str | None) -> None:
    assert compare_epochs(ours, replace(REPORT, evicting_epoch=evicting)) == action


async def test_the_decision_of_the_driver_reaches_the_task() -> None:
    reports: list[EvictionReport] = []

    async def decide(report: EvictionReport) -> EvictionDecision:
        reports.append(report)
        return EvictionDecision(RESUME, epoch=12)

    server, address = await serve_evictions("127.0.0.1", decide)
    decision = await asyncio.to_thread(report_eviction, address, REPORT)
    server.close()
    assert decision == EvictionDecision(RESUME, epoch=12)
    assert reports == [REPORT]


async def test_a_driver_that_cannot_decide_fails_the_task() -> None:
    async def decide(report: EvictionReport) -> EvictionDecision:
        raise StoreUnavailable("the store is away")

    server, address = await serve_evictions("127.0.0.1", decide)
    decision = await asyncio.to_thread(report_eviction, address, REPORT)
    server.close()
    assert decision.action == FAIL
    assert "the store is away" in decision.reason


async def test_a_request_without_the_token_gets_no_response() -> None:
    async def decide(report: EvictionReport) -> EvictionDecision:
        raise AssertionError("not reached")

    server, address = await serve_evictions("127.0.0.1", decide)
    for request in (b"GET / HTTP/1.1\n", b"7\n", json.dumps({"token": "x"}).encode() + b"\n"):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(request)
        assert await reader.read() == b""
        writer.close()
    stranger = DriverAddress(address.host, address.port, "wrong")
    decision = await asyncio.to_thread(report_eviction, stranger, REPORT)
    server.close()
    assert decision.action == FAIL
    assert decision.reason.startswith(f"the driver did not respond at {address.host}:")

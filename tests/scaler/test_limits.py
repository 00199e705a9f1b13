"""Limits of the scaler: the size of a request, the number of calls, and its memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import grpc
import grpc.aio
import pytest

from pumphouse.client.factory import open_client
from pumphouse.clock import MovableClock
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.lag.options import lag_options
from pumphouse.leases.stores.sqlite.store import SqliteStore
from pumphouse.scaler import observed_lag, service
from pumphouse.scaler.decisions import Lags
from pumphouse.scaler.observed_lag import ObservedLag
from pumphouse.scaler.service import REQUEST_BYTES_MAX, ExternalScaler, serving

PATH = "/externalscaler.ExternalScaler"
INTERVAL_S = 60.0


class NoLag:
    """Takes the place of ObservedLag: no group waits."""

    async def of(self, group: str) -> Lags:
        return (0,)


def idle_scaler() -> ExternalScaler:
    return ExternalScaler(cast(ObservedLag, NoLag()), INTERVAL_S)


async def test_a_large_request_is_refused() -> None:
    async with (
        serving(idle_scaler(), 0, "127.0.0.1") as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(f"{PATH}/IsActive")(bytes(REQUEST_BYTES_MAX + 1))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CALLS_MAX", 1)
    async with (
        serving(idle_scaler(), 0, "127.0.0.1") as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stream = channel.unary_stream(f"{PATH}/StreamIsActive")(b"")
        await stream.read()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(f"{PATH}/IsActive")(b"")
        stream.cancel()
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_reading_is_reused_for_the_interval_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed_lag, "GROUPS_MAX", 1)
    async with EmbeddedHub({"orders": 1}) as hub, SqliteStore(tmp_path / "leases.db"):
        hub.create_group("orders", "counters")
        connection, clock = hub.connection_string("orders"), MovableClock()
        options = lag_options(connection, "", str(tmp_path / "leases.db"), (), INTERVAL_S)
        lag = ObservedLag(options, clock=clock)
        assert await lag.of("$Default") == (0,)
        await send_one(connection)
        assert await asyncio.gather(*map(lag.of, ["$Default", "$default"])) == [(0,), (0,)]
        clock.advance(INTERVAL_S)
        assert await lag.of("$Default") == (1,)
        await send_one(connection)
        assert await lag.of("counters") == (2,)  # takes the place of $Default
        assert await lag.of("$Default") == (2,)
        await lag.close()


async def send_one(connection: str) -> None:
    async with open_client(connection) as client:
        await (await client.sender()).send([Event(b"order")])

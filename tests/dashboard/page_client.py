"""Events of homes, and an HTTP client for the page, for the tests of the page."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pumphouse.client.native.client import NativeClient
from pumphouse.events import Event
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    Activity,
    Alert,
    Reading,
    encode_activity,
    encode_alert,
    home_id,
    region_of,
)

PATIENCE_S = 60.0  # the machine may be busy


async def until(condition: Callable[[], object], what: str = "that") -> None:
    """Wait until a condition is true, for a time that suffices on a loaded machine."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not become true in {PATIENCE_S:.0f} s"
        await asyncio.sleep(0.02)


# -- homes ----------------------------------------------------------------------------------------


def now_ms() -> int:
    return int(time.time() * 1000)


def activity(home: int, sensor: str, value: float, at: int | None = None, **more: Any) -> Event:
    at = now_ms() if at is None else at
    given = {"since": at - 30_000, "mode": "home", "battery": 87, **more}
    reading = Reading(home_id(home), sensor, at // 60_000, at, value, **given)
    body = encode_activity(Activity(reading, "change", region_of(home)))
    return Event(body, partition_key=home_id(home))


def alert(home: int, kind: str = "break-in", text: str = "Door opened while away") -> Event:
    at = now_ms()
    new_alert = Alert(home_id(home), kind, "door", at, at - 9000, region_of(home), text)
    return Event(encode_alert(new_alert), partition_key=home_id(home))


async def send(
    connection: str, hub: str, events: Iterable[Event], partition: str | None = None
) -> None:
    async with NativeClient(connection, hub) as client:
        sender = await client.sender(partition)
        await sender.send(list(events))


async def send_to_each(connection: str, hub: str, events: list[Event]) -> None:
    """Send the same events to every partition."""
    async with NativeClient(connection, hub) as client:
        for partition in (await client.properties()).partitions:
            await (await client.sender(partition)).send(events)


async def send_activities(connection: str, *events: Event) -> None:
    await send(connection, ACTIVITY_HUB, events)


async def send_alerts(connection: str, *events: Event) -> None:
    await send(connection, ALERTS_HUB, events)


# -- HTTP -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class PageClient:
    """An HTTP client for the page, with any headers that a test sets."""

    def __init__(self, port: int, token: str = "") -> None:
        self.port, self.own = port, f"127.0.0.1:{port}"
        self.authorization = {"authorization": f"Bearer {token}"} if token else {}

    @asynccontextmanager
    async def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> AsyncIterator[tuple[int, dict[str, str], asyncio.StreamReader]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            own = {"host": self.own, "connection": "close", "content-length": str(len(body))}
            sent = own | self.authorization | headers
            head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
            writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            async with asyncio.timeout(PATIENCE_S):
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                status = int(lines[0].split()[1])
                pairs = (line.split(": ", 1) for line in lines[1:] if line)
                yield status, {name.lower(): value for name, value in pairs}, reader
        finally:
            writer.close()
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed())], timeout=5)

    async def get(self, path: str, **headers: str) -> Response:
        async with self.request("GET", path, headers) as (status, received, reader):
            return Response(status, received, await reader.read())

    async def post(self, path: str, data: Any, **headers: str) -> Response:
        given = {"origin": f"http://{self.own}", "x-pumphouse-token": await self.token()}
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        async with self.request("POST", path, given | headers, body) as (status, received, reader):
            return Response(status, received, await reader.read())

    async def token(self) -> str:
        return str((await self.get("/api/about")).json["token"])

    async def messages(self, path: str) -> AsyncGenerator[tuple[str, Any], None]:
        """The messages of a stream: name and data."""
        async with self.request("GET", path, {}) as (status, headers, reader):
            assert status == 200, await reader.read()
            assert headers["content-type"] == "text/event-stream; charset=utf-8"
            name = ""
            while line := await reader.readline():
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    yield name, json.loads(line[6:])

"""A minimal HTTP client of the admin API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumphouse.hub.embedded import EmbeddedHub

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.json.keys() == {"error"}
        return str(self.json["error"])


class HttpClient:
    """An HTTP client on one connection, which can also send any bytes."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self.hub = hub

    async def __aenter__(self) -> HttpClient:
        self.reader, self.writer = await asyncio.open_connection(self.hub.host, self.hub.http_port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def call(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Reply:
        given = {"Host": f"localhost:{self.hub.http_port}", **(headers or {})}
        if body is not None:
            given["Content-Length"] = str(len(body))
        lines = [f"{name}: {value}\r\n" for name, value in given.items() if value is not None]
        self.writer.write(f"{method} {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode())
        self.writer.write(body or b"")
        return await self.reply(method)

    async def reply(self, method: str = "GET") -> Reply:
        async with asyncio.timeout(DEADLINE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
            size = 0 if method == "HEAD" else int(headers.get("content-length", 0))
            return Reply(int(head[0].split()[1]), headers, await self.reader.readexactly(size))

    async def is_closed(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read() == b""

    def key(
        self, rule: str = "RootManageSharedAccessKey", hub: str | None = None
    ) -> dict[str, Any]:
        return {"Authorization": self.hub.sas_token(hub, rule)}

    async def put(self, target: str, fields: Any = None, **headers: str) -> Reply:
        body = None if fields is None else json.dumps(fields).encode()
        return await self.call("PUT", target, body, headers or self.key())

    async def delete(self, target: str, **headers: str) -> Reply:
        return await self.call("DELETE", target, None, headers or self.key())

    async def get(self, target: str) -> Any:
        reply = await self.call("GET", target)
        assert reply.status == 200, reply
        return reply.json

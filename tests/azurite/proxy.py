"""A proxy between a store and Azurite that counts requests and injects faults.

The faults: the request takes effect and its response is lost ("lost"), the request is not forwarded
("unsent"), the response is 503 ("busy"), or it comes after the caller has stopped waiting ("late").
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import aiohttp
from aiohttp import web
from yarl import URL

Fault = Literal["lost", "unsent", "busy", "late"]


class Proxy:
    """`requests` counts requests by operation, such as "list" or "set metadata"."""

    def __init__(self, upstream_port: int, session: aiohttp.ClientSession) -> None:
        self.port = 0
        self.requests: Counter[str] = Counter()
        self.paths: list[str] = []
        self.arrived = asyncio.Event()
        self.most_at_once = 0
        self._running = 0
        self._upstream = upstream_port
        self._session = session
        self._faults: list[tuple[str, Fault]] = []
        self._always: Fault | None = None

    def reset_counts(self) -> None:
        self.requests.clear()
        self.paths.clear()
        self.most_at_once = 0

    def inject(self, operation: str, fault: Fault) -> None:
        """Inject a fault into the next request of this operation; several calls add up."""
        self._faults.append((operation, fault))

    def inject_always(self, fault: Fault | None) -> None:
        """Inject a fault into every request; None ends it."""
        self._always = fault

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        operation = operation_of(request)
        self.requests[operation] += 1
        self.arrived.set()
        self.paths.append(request.path)
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            return await self._respond(request, self._always or self._take_fault(operation))
        finally:
            self._running -= 1

    async def _respond(self, request: web.BaseRequest, fault: Fault | None) -> web.StreamResponse:
        if fault == "busy":
            return web.Response(status=503, headers={"x-ms-error-code": "ServerBusy"})
        response = None if fault == "unsent" else await self._forward(request)
        if fault == "late":
            await asyncio.Event().wait()  # until the caller disconnects
        if (fault is not None or response is None) and request.transport is not None:
            request.transport.abort()
        return response or web.Response()

    def _take_fault(self, operation: str) -> Fault | None:
        for number, (faulty, fault) in enumerate(self._faults):
            if faulty == operation:
                del self._faults[number]
                return fault
        return None

    async def _forward(self, request: web.BaseRequest) -> web.Response:
        url = URL(f"http://127.0.0.1:{self._upstream}{request.raw_path}", encoded=True)
        body = await request.read()
        async with self._session.request(
            request.method,
            url,
            headers=request.headers,
            data=body or None,
            allow_redirects=False,
            skip_auto_headers=["Content-Type"],
        ) as response:
            body = await response.read()
            headers = response.headers.copy()
            for hop in ("Transfer-Encoding", "Content-Length", "Connection", "Keep-Alive"):
                headers.popall(hop, None)
            return web.Response(status=response.status, headers=headers, body=body)


def operation_of(request: web.BaseRequest) -> str:
    if (action := request.headers.get("x-ms-lease-action")) is not None:
        return f"{action} lease"
    if (comp := request.query.get("comp")) is not None:
        return f"set {comp}" if request.method == "PUT" else comp
    container = "container" if request.query.get("restype") == "container" else "blob"
    return f"{request.method.lower()} {container}"


@asynccontextmanager
async def proxy_to(upstream_port: int) -> AsyncIterator[Proxy]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        proxy = Proxy(upstream_port, session)
        server = web.Server(proxy.handle, handler_cancellation=True)
        runner = web.ServerRunner(server)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.port = runner.addresses[0][1]
        try:
            yield proxy
        finally:
            await runner.cleanup()

"""Somebody who stands between a store and Azurite: counts what is asked, and spoils answers.

A spoilt answer is one that the store never gets although the request was carried out ("lost"), or
one to a request that never arrived ("unsent"), one that says 503 ("busy"), or one that comes when
nobody waits for it any more ("late").
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

Fate = Literal["lost", "unsent", "busy", "late"]


class Proxy:
    """`asked` counts requests by what they ask for, such as "list" or "set metadata"."""

    def __init__(self, upstream_port: int, session: aiohttp.ClientSession) -> None:
        self.port = 0
        self.asked: Counter[str] = Counter()
        self.paths: list[str] = []
        self.arrived = asyncio.Event()
        self.most_at_once = 0
        self._under_way = 0
        self._upstream = upstream_port
        self._session = session
        self._fates: list[tuple[str, Fate]] = []
        self._always: Fate | None = None

    def forget(self) -> None:
        """Count from here."""
        self.asked.clear()
        self.paths.clear()
        self.most_at_once = 0

    def spoil(self, asked: str, fate: Fate) -> None:
        """The answer to the next request of that kind; may be said several times."""
        self._fates.append((asked, fate))

    def spoil_all(self, fate: Fate | None) -> None:
        """The answers to all requests, until it is said again with None."""
        self._always = fate

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = what_is_asked(request)
        self.asked[asked] += 1
        self.arrived.set()
        self.paths.append(request.path)
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            return await self._answer(request, self._always or self._fate_of(asked))
        finally:
            self._under_way -= 1

    async def _answer(self, request: web.BaseRequest, fate: Fate | None) -> web.StreamResponse:
        if fate == "busy":
            return web.Response(status=503, headers={"x-ms-error-code": "ServerBusy"})
        answer = None if fate == "unsent" else await self._forward(request)
        if fate == "late":
            await asyncio.Event().wait()  # until the asker hangs up
        if (fate is not None or answer is None) and request.transport is not None:
            request.transport.abort()
        return answer or web.Response()

    def _fate_of(self, asked: str) -> Fate | None:
        for number, (kind, fate) in enumerate(self._fates):
            if kind == asked:
                del self._fates[number]
                return fate
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
        ) as answer:
            told = await answer.read()
            headers = answer.headers.copy()
            for hop in ("Transfer-Encoding", "Content-Length", "Connection", "Keep-Alive"):
                headers.popall(hop, None)
            return web.Response(status=answer.status, headers=headers, body=told)


def what_is_asked(request: web.BaseRequest) -> str:
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

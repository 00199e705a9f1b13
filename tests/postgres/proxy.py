"""A TCP port in front of a database server, which can stop responding or refuse connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

PASSWORD = "s3cret-of-the-tests"


class Proxy:
    """While `is_silent`, requests take effect and no response comes back."""

    def __init__(self, socket: Path) -> None:
        self.port = 0
        self.is_silent = False
        self.silent_after = b""  # fall silent when a request contains this
        self.is_refusing = False
        self.connections = 0
        self._socket = socket
        self._writers: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[None]] = set()

    def url(self, database: str) -> str:
        return f"postgres://tests:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def recover(self) -> None:
        self.is_silent, self.silent_after = False, b""

    def cut(self) -> None:
        """Break every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        """Break every connection, also one that is not yet connected to the server."""
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        try:
            if not self.is_refusing:
                await self._forward(reader, writer)
        finally:
            writer.transport.abort()
            self._handlers.discard(handler)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket)
        self._writers |= {writer, server_writer}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, server_writer, is_response=False))
                tasks.create_task(self._copy(server_reader, writer, is_response=True))
        finally:
            self._writers -= {writer, server_writer}
            server_writer.transport.abort()

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_response: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if self.silent_after and not is_response and self.silent_after in data:
                    self.is_silent = True
                if not (is_response and self.is_silent):
                    target.write(data)
                    await target.drain()
        target.transport.abort()


@asynccontextmanager
async def proxy_to(folder: Path) -> AsyncIterator[Proxy]:
    """A proxy to the PostgreSQL server whose socket is in this folder."""
    async with proxy_to_socket(folder / ".s.PGSQL.5432") as proxy:
        yield proxy


@asynccontextmanager
async def proxy_to_socket(socket: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(socket)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield proxy
        finally:
            await proxy.close()

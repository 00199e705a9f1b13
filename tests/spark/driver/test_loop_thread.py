"""The event loop of a driver ends with all that runs in it."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading

from pumphouse.spark.driver.loop_thread import LoopThread

CLOSE_S = 10.0


async def nothing() -> None: ...


def test_a_connection_that_was_closed_at_the_end_is_not_left_open() -> None:
    """A transport that is still open when its loop is closed warns, and warnings are errors."""
    thread, accepted = LoopThread("test", CLOSE_S), threading.Event()
    writers: list[asyncio.StreamWriter] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        accepted.set()
        try:
            await asyncio.sleep(CLOSE_S)
        finally:
            writer.close()

    async def serve() -> asyncio.Server:
        return await asyncio.start_server(respond, "127.0.0.1", 0)

    server = thread.run(serve(), CLOSE_S)
    with socket.create_connection(server.sockets[0].getsockname(), CLOSE_S):
        assert accepted.wait(CLOSE_S)

        async def close() -> None:
            server.close()

        thread.close(close())
    assert not thread.is_open
    assert writers.pop().transport.is_closing()
    gc.collect()


def test_a_task_that_still_waits_is_cancelled() -> None:
    thread, cancelled = LoopThread("test", CLOSE_S), threading.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    waiting = asyncio.run_coroutine_threadsafe(wait(), thread.loop)
    thread.run(nothing(), CLOSE_S)
    thread.close(nothing())
    assert cancelled.is_set()
    assert waiting.cancelled()

"""Who knocks as the hub closes is seen out like the others: no socket is left to the collector."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import ExitStack

import pytest

from pumphouse.hub.embedded import EmbeddedHub


@pytest.mark.parametrize("turns", range(5))  # of the loop, between their knocking and its closing
async def test_callers_that_come_too_late_leave_nothing_open(turns: int) -> None:
    hub = EmbeddedHub({"sensors": 1}, http_port=0)
    await hub.start()
    ports = (hub.server.port, hub.http_port)
    with ExitStack() as stack:
        for port in ports:
            for _ in range(3):
                stack.enter_context(socket.create_connection(("127.0.0.1", port or 0), 30))
        for _ in range(turns):
            await asyncio.sleep(0)
        await hub.stop()
    del hub
    gc.collect()  # a transport that was not closed says so now, and that is an error

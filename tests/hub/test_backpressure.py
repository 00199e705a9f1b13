"""A client that does not read is not written to, and not read from either."""

from __future__ import annotations

import asyncio

import pytest

from pumphouse.hub.connection import WRITE_HIGH_WATER
from pumphouse.hub.embedded import EmbeddedHub

DEADLINE_S = 20.0
PIECE = b"x" * 256 * 1024


@pytest.mark.parametrize("pieces", [1, 2])  # two go to the transport in another way than one
async def test_a_conversation_is_paused_whatever_it_hands_over(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EmbeddedHub() as hub, asyncio.timeout(DEADLINE_S):
        _, writer = await asyncio.open_connection("127.0.0.1", hub.port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not hub.server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
        [talk] = hub.server.connections
        monkeypatch.setattr(talk.amqp, "data_to_send", lambda: [PIECE] * pieces)
        while talk.writable:
            talk.flush()
            await asyncio.sleep(0)
        assert talk.transport.get_write_buffer_size() <= WRITE_HIGH_WATER + 2 * len(PIECE)
        assert not talk.transport.is_reading()
        writer.transport.abort()

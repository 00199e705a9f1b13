"""The hub on the network: one conversation per connection, one ticker for all of them.

All protocol lives in `amqp`, all meaning in the nodes. This file listens, keeps the
conversations, and lets time pass for them: heartbeats, idle time-outs, tokens that run out,
retention.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid
from contextlib import suppress

from pumphouse.amqp.performatives import (
    Open,
)
from pumphouse.errors import PortTaken
from pumphouse.hub.connection import TICK_S, Conversation, ServerOptions
from pumphouse.hub.namespace import Namespace

log = logging.getLogger("pumphouse.hub")

RETENTION_EVERY_S = 10.0
ACCEPTING_TURNS = 4  # of the loop, from accepting a connection until we are told of it: 2 or 3
GOODBYE_S = 0.25  # for a peer to answer our close; one that does not listen will not in any time


async def close_port(server: asyncio.Server) -> None:
    """Let nobody in any more. Who was accepted a moment ago is still announced to us.

    Of a server that is closed meanwhile, asyncio up to 3.11 can make no transport, and leaves the
    sockets of such connections open.
    """
    for listening in server.sockets:
        server.get_loop().remove_reader(listening.fileno())
    for _ in range(ACCEPTING_TURNS):
        await asyncio.sleep(0)
    server.close()


class HubServer:
    """The listening side: a namespace behind a TCP port."""

    def __init__(self, namespace: Namespace, options: ServerOptions | None = None) -> None:
        self.namespace = namespace
        self.faults = namespace.faults
        self.options = options or ServerOptions()
        self.conversations: set[Conversation] = set()
        self._hurry = asyncio.Event()  # somebody may want to hear from us sooner than we planned
        self._emptied: asyncio.Event | None = None  # set once we stop and the last one has left
        self.authority = ""
        self.port = 0
        self.opening = Open(
            container_id=uuid.uuid4().hex,
            max_frame_size=self.options.limits.max_frame_size,
            channel_max=self.options.limits.channel_max,
            idle_time_out=int(self.options.idle_timeout_s * 1000),
        )

    async def start(self, host: str, port: int) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            self._server = await self.loop.create_server(lambda: Conversation(self), host, port)
        except OSError as failed:
            raise cannot_listen(host, port, failed) from None
        self.port = self._server.sockets[0].getsockname()[1]
        self.authority = f"{host}:{self.port}"
        self.faults.relieved = self.wake_readers_soon
        self._ticker = self.loop.create_task(self.tick_forever(), name="hub ticker")
        log.info("listen address=%s hubs=%d", self.authority, len(self.namespace.hubs))

    async def stop(self) -> None:
        """Close every connection and the port; bounded by `stop_s`."""
        self.faults.relieved = lambda: None
        await close_port(self._server)
        self._ticker.cancel()
        with suppress(asyncio.CancelledError):
            await self._ticker
        self._emptied = asyncio.Event()
        # Hanging up at once would hide the good-bye: the official asyncio client answers it first,
        # and when it cannot, reports only that.
        for act, patience_s in (
            (Conversation.stop, min(GOODBYE_S, self.options.stop_s)),
            (Conversation.finish, self.options.stop_s),
        ):
            for conversation in list(self.conversations):
                act(conversation)
            await self.emptied(self._emptied, patience_s)
        for conversation in list(self.conversations):
            conversation.drop()
        await asyncio.sleep(0)
        log.info("stop address=%s", self.authority)

    async def emptied(self, event: asyncio.Event, patience_s: float) -> None:
        """Wait for the last conversation to end, but not for longer than that."""
        self.check_emptied()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await event.wait()

    def wake_readers_soon(self) -> None:
        """The same, from whatever thread."""
        self.loop.call_soon_threadsafe(self.wake_readers)

    def wake_readers(self) -> None:
        """Let every reader look again: whatever held it back may be gone."""
        for hub in self.namespace.hubs:
            for reader in hub.readers():
                reader.wake()

    def check_emptied(self) -> None:
        if not self.conversations and self._emptied is not None:
            self._emptied.set()

    async def tick_forever(self) -> None:
        retention_at = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.tick_s()):
                    await self._hurry.wait()
            self._hurry.clear()
            try:
                self.tick()
                if (now := self.loop.time()) >= retention_at:
                    retention_at = now + RETENTION_EVERY_S
                    self.namespace.expire()
            except Exception:
                # A disk that fails, say. Everybody else still needs heartbeats: it goes on.
                log.exception("tick failed; the next one follows")

    def hurry(self) -> None:
        """Tick now, and plan the next anew: somebody cannot wait for the one that was planned."""
        self._hurry.set()

    def tick(self) -> None:
        now = self.loop.time()
        for conversation in list(self.conversations):
            conversation.tick(now)

    def tick_s(self) -> float:
        """A second, or less if a peer wants to hear from us more often."""
        soonest = min((talk.heartbeat_s for talk in self.conversations), default=float("inf"))
        own = self.options.idle_timeout_s / 4 if self.options.enforce_idle else TICK_S
        return max(0.02, min(TICK_S, soonest / 2, own))


def cannot_listen(host: str, port: int, failed: OSError) -> Exception:
    if failed.errno == errno.EADDRINUSE:
        return PortTaken(
            f"port {port} on {host} is taken by another program; "
            "stop that one, or choose another port (0 picks a free one)"
        )
    return PortTaken(f"cannot listen on {host} port {port}: {failed.strerror}")

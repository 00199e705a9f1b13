"""One receiver link of the official SDK, down to where it lets us pull.

The SDK's public way to read calls back, and cannot keep our contract: it does not tell when it has
attached, takes a refusal for its own closing and tries again for ever, hands out what it has
buffered once more after every reconnect, and gives up on the fourth. So the consumer below the
public client is driven from here. All of the SDK's private parts that we touch are in this file,
and in the one call in azure.py that makes the consumer.

    AzureReader -> SdkLink -> EventHubConsumer (azure-eventhub)
                   ^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pumphouse.client.azure.calls import bounded
from pumphouse.errors import ConnectionFailed

ATTACHED = 3  # azure.eventhub._pyamqp.constants.LinkState


class SdkLink:
    """A link that delivers payloads to `arrived` while somebody listens."""

    def __init__(self, consumer: Any, arrived: Callable[[bytes], None]) -> None:
        self._consumer = consumer
        self._arrived = arrived
        self._parts = bytearray()  # of an event that comes in several frames
        # Its pinging task listens beside us and keeps a link from closing for up to a second.
        consumer._keep_alive = None

    async def open(self) -> None:
        """Attach. No credit is granted yet, so nothing arrives before the position is settled."""
        await self._consumer._open()
        handler = self._consumer._handler
        # `_open` comes back early from a frame that it cannot make sense of.
        while handler._link.get_state().value != ATTACHED:
            await handler.client_ready_async()
        # Its own decodes the event, badly (see azure_events.py), and keeps each delivery's tag.
        handler._link._incoming_transfer = self._transferred

    async def _transferred(self, frame: Any) -> None:
        """In place of the SDK's own handling of a transfer; the fields are those of AMQP."""
        link, more, payload = self._consumer._handler._link, frame[5], frame[11]
        if more or self._parts:
            self._parts += payload
            payload = self._parts
        if not more:
            link.delivery_count += 1
            link.current_link_credit -= 1
            self._arrived(bytes(payload))
            self._parts = bytearray()

    @property
    def credit(self) -> int:
        """How many events the hub may still send."""
        return max(0, int(self._consumer._handler._link.current_link_credit))

    async def grant(self, credit: int) -> None:
        """Let the hub send so many events. Said again without change, it is a sign of life."""
        await self._consumer._handler._link.flow(link_credit=credit)

    async def listen(self, frames_max: int) -> None:
        """Take in what arrives, for a fraction of a second or so many frames; renew the token.

        Raises whatever has ended the link.
        """
        handler = self._consumer._handler
        handler._link_credit = 0  # it would grant this much by itself once all is used up
        if not await handler.do_work_async(batch=frames_max):
            raise ConnectionFailed("the SDK has shut the link down")

    async def close(self) -> None:
        handler = self._consumer._handler
        transport = getattr(getattr(handler, "_connection", None), "_transport", None)
        await bounded(self._consumer.close(), "link")
        if transport is not None:
            # The SDK leaves the socket of a broken connection open.
            await bounded(transport.close(), "socket")

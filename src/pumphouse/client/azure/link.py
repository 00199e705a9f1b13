"""One receiver link of the official SDK, below its public API.

The public API of the SDK uses callbacks and cannot keep our contract: it does not report when it is
attached. It treats a refusal by the hub like a close of its own, and retries forever. After every
reconnect it returns buffered events again, and after the fourth broken connection it gives up. So
this module drives the consumer below the public client. It contains all uses of private parts of
the SDK, except for the call in client.py that creates the consumer.

    AzureReader -> SdkLink -> EventHubConsumer (azure-eventhub)
                   ^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pumphouse.client.azure.calls import close_quietly
from pumphouse.errors import ConnectionFailed

ATTACHED = 3  # azure.eventhub._pyamqp.constants.LinkState


class SdkLink:
    """A link that passes payloads to `arrived` during `listen`."""

    def __init__(self, consumer: Any, arrived: Callable[[bytes], None]) -> None:
        self._consumer = consumer
        self._arrived = arrived
        self._parts = bytearray()  # of an event in several frames
        # The SDK's keep-alive task would receive too, and delay a close by up to a second.
        consumer._keep_alive = None

    async def open(self) -> None:
        """Attach. No credit is granted yet, so nothing arrives."""
        await self._consumer._open()
        handler = self._consumer._handler
        # `_open` returns early after an unexpected frame.
        while handler._link.get_state().value != ATTACHED:
            await handler.client_ready_async()
        # The SDK decodes events wrongly here (see azure/events.py), and never frees delivery tags.
        handler._link._incoming_transfer = self._transferred

    async def _transferred(self, frame: Any) -> None:
        """Replaces the transfer handler of the SDK. `frame` holds the fields of a transfer."""
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
        """The number of events that the hub may still send."""
        return max(0, int(self._consumer._handler._link.current_link_credit))

    async def grant(self, credit: int) -> None:
        """Grant credit. Granting the same credit again serves as a heartbeat."""
        await self._consumer._handler._link.flow(link_credit=credit)

    async def listen(self, frames_max: int) -> None:
        """Receive for a fraction of a second or up to `frames_max` frames; renew the token.

        Raises the error that has ended the link.
        """
        handler = self._consumer._handler
        handler._link_credit = 0  # otherwise the SDK grants this credit itself when all is used
        if not await handler.do_work_async(batch=frames_max):
            raise ConnectionFailed("the SDK has closed the link")

    async def close(self) -> None:
        handler = self._consumer._handler
        transport = getattr(getattr(handler, "_connection", None), "_transport", None)
        await close_quietly(self._consumer.close(), "link")
        if transport is not None:
            # The SDK does not close the socket of a broken connection.
            await close_quietly(transport.close(), "socket")

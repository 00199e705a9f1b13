"""The base of all links of the hub, and what they share: accepting an attach, errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Protocol

from pumphouse.amqp.connection import Connection
from pumphouse.amqp.events import FRAMES_HANDLED, Delivered, Event, RunReceived
from pumphouse.amqp.links import Link, SenderLink
from pumphouse.amqp.performatives import Attach, Error
from pumphouse.errors import AmqpError, RemoteProtocolError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.access.guard import Guard
from pumphouse.hub.namespace import EventHub, Namespace
from pumphouse.hub.routing import Address, not_found_text


class LinkConnection(Protocol):
    """The part of a connection that its links use."""

    namespace: Namespace
    guard: Guard
    amqp: Connection
    reply_links: list[HubLink]

    def schedule(self, link: HubLink | None) -> None: ...

    def request_flush(self) -> None: ...

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None: ...

    def warn_overrun(self, link: HubLink) -> None: ...

    def drop(self) -> None: ...


class HubLink:
    """One attached link. The defaults fit a link that neither sends nor receives."""

    claim: Claim | None = None  # a token must give this claim for the link to stay attached
    path = ""
    lingers = False  # whether it may count as present after its connection broke
    queued = False  # whether it waits for its turn to send

    def __init__(self, connection: LinkConnection, link: Link) -> None:
        self.connection = connection
        self.link = link

    @property
    def send_scope(self) -> tuple[str, str] | None:
        """The hub and partition id (or "") that events are sent to; None if not a producer."""
        return None

    @property
    def ready(self) -> bool:
        """Whether the next delivery can be handled now. If not, the connection waits."""
        return True

    @property
    def is_blocked(self) -> bool:
        """Whether the client granted credit or waits for a drain, but closed its session window."""
        link = self.link
        if not isinstance(link, SenderLink) or link.session.remote_window > 0:
            return False
        return link.credit > 0 or link.draining

    def wait_for_window(self) -> None:
        """If the session window is closed, send again after it has opened."""
        if self.is_blocked:
            self.link.session.blocked[self.link] = None

    def on_delivery(self, delivered: Delivered) -> Iterator[None] | None:
        """Handle a delivery that has arrived; returns the steps of longer work, if any."""
        return None

    def on_run(self, run: RunReceived) -> Iterator[None] | None:
        """Handle a run of deliveries in the same way."""
        return None

    def send_slice(self) -> bool:
        """Send at most one slice; True if there is more to send and credit for it."""
        return False

    def on_closed(self) -> None:
        """Clean up after the link is gone."""

    def close(self, condition: str, description: str) -> None:
        """Detach the link with an error."""
        if self.link.attached:
            text = self.connection.guard.tracked(description, self.path)
            self.link.detach(Error(condition=condition, description=text))
            self.connection.request_flush()
        self.on_closed()


class ReadyLinks:
    """The links of a connection that may have something to send, in the order of their turns."""

    __slots__ = ("_links",)

    def __init__(self) -> None:
        self._links: deque[HubLink] = deque()

    def __len__(self) -> int:
        return len(self._links)

    def add(self, link: HubLink) -> None:
        link.queued = True
        self._links.append(link)

    def pop(self) -> HubLink | None:
        """The next link that is still attached; detached links are dropped here."""
        while self._links:
            link = self._links.popleft()
            link.queued = False
            if link.link.attached:
                return link
        return None

    def clear(self) -> None:
        self._links.clear()


def accept_attach(link: Link, attach: Attach, **fields: Any) -> None:
    """Send our attach in response to the peer's, with the same name, modes and handle."""
    settle_modes = {
        "snd_settle_mode": attach.snd_settle_mode,
        "rcv_settle_mode": attach.rcv_settle_mode,
    }
    link.send_attach(
        Attach(name=link.name, handle=link.handle, role=link.role, **{**settle_modes, **fields})
    )


def find_hub(connection: LinkConnection, address: Address) -> EventHub:
    hub = connection.namespace.find_hub(address.hub)
    if hub is None:
        raise not_found(connection, address.hub)
    return hub


def not_found(connection: LinkConnection, path: str) -> AmqpError:
    return AmqpError("amqp:not-found", not_found_text(connection.guard.resource(path)))


def too_large(delivered: Delivered) -> AmqpError:
    return AmqpError(
        "amqp:link:message-size-exceeded",
        f"The received message (delivery-id:{delivered.delivery_id}, size:{delivered.size} bytes) "
        f"exceeds the limit ({delivered.link.size_max} bytes) currently allowed on the link.",
    )


def as_error(failure: AmqpError | RemoteProtocolError, guard: Guard, path: str = "") -> Error:
    """The error to send, with a tracking id."""
    text = failure.description if isinstance(failure, AmqpError) else str(failure)
    return Error(condition=failure.condition, description=guard.tracked(text, path))


def after_work(work: Iterator[None] | None, events: Iterator[Event]) -> Iterator[Event]:
    """Yield an event after each step of the work, and then the given events."""
    return events if work is None else chain((FRAMES_HANDLED for _ in work), events)

"""Fills partitions of the hub under test, and reads their state."""

from __future__ import annotations

from pumphouse.hub.embedded import EmbeddedHub
from tests.hub.events import batch_of
from tests.hub.peer import HUB


def fill(hub: EmbeddedHub, *bodies: bytes, partition: int = 0) -> None:
    """Publish events to a partition without a client."""
    namespace = hub.namespace
    target = namespace.hub(HUB).partitions[partition]
    namespace.publish(target, batch_of(bodies), None, lambda failure: None)


def numbered_bodies(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def last_sequence(hub: EmbeddedHub, partition: int = 0) -> int:
    return hub.namespace.hub(HUB).partitions[partition].log.next_sequence - 1

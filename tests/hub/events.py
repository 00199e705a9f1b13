"""Batches of events for tests of the logs."""

from __future__ import annotations

from collections.abc import Iterable

from pumphouse.amqp.messages import (
    BATCH_FORMAT,
    Message,
    decode_message,
    encode_batch,
    encode_message,
)
from pumphouse.hub.annotations import Batch, parse_payload
from pumphouse.hub.links.delivery import messages
from pumphouse.hub.storage.run import Run


def batch_of(bodies: Iterable[bytes]) -> Batch:
    """A batch of plain events with these bodies."""
    encoded = [encode_message(Message(data=(body,))) for body in bodies]
    return parse_payload(encode_batch(encoded), BATCH_FORMAT)


def bodies_of(run: Run | None) -> list[bytes]:
    """The bodies in a run, in order."""
    return [] if run is None else [decode_message(message).data[0] for message in messages(run)]


def offsets_and_bodies(run: Run) -> list[tuple[int, bytes]]:
    """The offset, from the annotations, and the body of each event in a run."""
    decoded = [decode_message(message) for message in messages(run)]
    return [(int(event.annotations["x-opt-offset"]), event.data[0]) for event in decoded]

"""Positions after an event or after a whole partition, and the partition end in a message."""

from __future__ import annotations

from pumphouse.amqp.messages import decode_message
from pumphouse.amqp.types import Symbol
from pumphouse.client.base import PartitionEnd, PartitionProperties
from pumphouse.events import EARLIEST, Event, Position


def position_after(event: Event) -> Position:
    """The position directly after an event."""
    if event.sequence is not None:
        return Position("sequence", str(event.sequence))
    return Position("offset", str(event.offset))


def position_after_all(partition: PartitionProperties) -> Position:
    """The position directly after the last stored event."""
    if partition.last_sequence < 0:
        return EARLIEST
    return Position("sequence", str(partition.last_sequence))


def partition_end(message: bytes) -> PartitionEnd | None:
    """The partition end in the delivery annotations of a message; None without them."""
    annotations = decode_message(message).delivery_annotations
    try:
        return PartitionEnd(
            sequence=int(annotations[Symbol("last_enqueued_sequence_number")]),
            offset=str(annotations[Symbol("last_enqueued_offset")]),
            enqueued_ms=int(annotations[Symbol("last_enqueued_time_utc")]),
            retrieved_ms=int(annotations[Symbol("runtime_info_retrieval_time_utc")]),
        )
    except KeyError:
        return None

"""A parser of batches that goes section by section, to compare the fast ones with."""

from __future__ import annotations

from pumphouse.amqp.messages import BATCH_FORMAT, DATA, MESSAGE_ANNOTATIONS, scan
from pumphouse.errors import AmqpError, RemoteProtocolError
from pumphouse.hub.annotations import (
    Batch,
    EventGroup,
    Prefix,
    filter_map,
    parse_event,
    parse_payload,
    with_key,
)
from pumphouse.hub.limits.sections import SectionShapes, binary_start


def parse_slow(payload: bytes) -> Batch:
    """The result of `parse_batch` without its fast paths: each event is its own group."""
    key, groups = None, []
    for code, _, value, end in scan(payload, 0, len(payload)):
        if code == MESSAGE_ANNOTATIONS:
            key = filter_map(payload[value:end]).key
        elif code == DATA:
            start = binary_start(payload, value)
            prefix, body, _ = parse_event(payload, start, end, SectionShapes())
            groups.append(EventGroup(prefix, [body]))
    return with_key(groups, key)


def parse_fast(payload: bytes) -> Batch:
    return parse_payload(payload, BATCH_FORMAT)


def events(batch: Batch) -> list[tuple[Prefix, bytes]]:
    return [(group.prefix, body) for group in batch.groups for body in group.bodies]


def outcome(parse: object, payload: bytes) -> object:
    """The events and the key, or the type of the error."""
    assert callable(parse)
    try:
        batch: Batch = parse(payload)
    except (AmqpError, RemoteProtocolError) as failure:
        return type(failure)
    return events(batch), batch.key

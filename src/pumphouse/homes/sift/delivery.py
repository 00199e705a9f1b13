"""What a task of the sift does at its end: activities to one hub, dead letters to another.

One pass over the rows writes both, so a batch is computed once. Activities have the home as their
key, and a message may hold one key only; but the partition of a key is known (see partitions.py),
so they go to partitions, many homes in a message, each event with its key. To a client that is not
our own they go one key at a time. Delivery is at least once, as with any sink: a task that runs
again sends its rows again.

    Sifter -> post -> activity, deadletter
              ^^^^ this module, in an executor
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import pyarrow as pa

from pumphouse.client.base import HubClient, batch_section, encode_event, prepared_batch
from pumphouse.events import Event
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.spark.identity import open_hub
from pumphouse.spark.options import SinkOptions, read_sink
from pumphouse.spark.worker import freeze_imported_modules

MESSAGE_BYTES = 240 * 1024  # below the 256 KB of the smallest tier
# What becomes of a record: one of these, or else what is wrong with it.
KEPT, REPEATED, DROPPED = "kept", "repeated", "dropped"
COLUMNS = ("partition", "sequence", "home", "fate", "body")
POSTED = "fate STRING, late BOOLEAN"
POSTED_ARROW = pa.schema([("fate", pa.string()), ("late", pa.bool_())])

Post = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(slots=True)
class OutgoingEvents:
    """The rows of a task, as events."""

    activities: list[Event] = field(default_factory=list)
    letters: list[Event] = field(default_factory=list)


def post_to(activity: dict[str, str], deadletter: dict[str, str]) -> Post:
    """What Spark calls with the rows of a task; it answers with the fate of each, once posted."""
    hubs = read_sink(activity), read_sink(deadletter)

    def post(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mail, fates = OutgoingEvents(), list[pa.RecordBatch]()
        for batch in batches:
            sort(batch, mail)
            fates.append(fates_of(batch))
        asyncio.run(deliver(mail, *hubs))
        yield from fates
        freeze_imported_modules()

    return post


def fates_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Of each row the word: what was found in its place is for the dead letter."""
    words = [fate.partition(":")[0] for fate in batch.column("fate").to_pylist()]
    return pa.RecordBatch.from_arrays([pa.array(words), batch.column("late")], schema=POSTED_ARROW)


def sort(batch: pa.RecordBatch, mail: OutgoingEvents) -> None:
    """Activities and dead letters, each as its hub wants it."""
    rows = zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)
    for partition, sequence, home, fate, body in rows:
        if fate == KEPT:
            mail.activities.append(Event(body, partition_key=home))
        elif fate not in (REPEATED, DROPPED):
            mail.letters.append(Event(body, about(fate, partition, sequence)))


def about(complaint: str, partition: str, sequence: int) -> dict[str, str]:
    """What is wrong with a dead letter and where it was: the same again if it is sent again."""
    reason, _, detail = complaint.partition(": ")
    place = {"partition": partition, "sequence": str(sequence)}
    return {"reason": reason, "detail": detail} | place


async def deliver(mail: OutgoingEvents, activity: SinkOptions, deadletter: SinkOptions) -> None:
    """All of it, acknowledged; or an exception, and Spark runs the task again."""
    if mail.activities:
        async with open_hub(activity.identity) as client:
            if client.has_batch_sender:
                await by_partition(client, mail.activities, activity)
            else:
                await plainly(client, mail.activities, activity)
    if mail.letters:
        async with open_hub(deadletter.identity) as client:
            await plainly(client, mail.letters, deadletter)


async def plainly(client: HubClient, events: Sequence[Event], options: SinkOptions) -> None:
    async with asyncio.timeout(options.send_timeout_s * (1 + len(events) // 100)):
        await (await client.sender()).send(events)


async def by_partition(client: HubClient, events: Sequence[Event], options: SinkOptions) -> None:
    async with asyncio.timeout(options.identity.operation_timeout_s):
        partitions = (await client.properties()).partitions
    numbers = np.array([int((event.partition_key or "h0")[1:]) for event in events], np.int32)
    places = partitions_of(numbers, len(partitions)).tolist()
    order = sorted(range(len(events)), key=places.__getitem__)  # stable: in order within each
    async with asyncio.TaskGroup() as group:
        for place, rows in groupby(order, key=places.__getitem__):
            share = [events[row] for row in rows]
            group.create_task(to_partition(client, partitions[place], share, options))


async def to_partition(
    client: HubClient, partition: str, events: Sequence[Event], options: SinkOptions
) -> None:
    sender = await client.batch_sender(partition)
    for some in messages(events, min(MESSAGE_BYTES, sender.size_max)):
        async with asyncio.timeout(options.send_timeout_s):
            await sender.deliver(prepared_batch(b"".join(some), len(some)))


def messages(events: Iterable[Event], size_max: int) -> Iterator[list[bytes]]:
    """Events as the sections of messages, each below a size."""
    some: list[bytes] = []
    size = 0
    for event in events:
        section = batch_section(encode_event(event))
        if some and size + len(section) > size_max:
            yield some
            some, size = [], 0
        some.append(section)
        size += len(section)
    if some:
        yield some

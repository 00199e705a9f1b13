"""The events of one partition, in batches with bounds, across whatever happens to the reader.

A feed opens a reader with the epoch of our row and goes on behind the last event it took whenever
the reader breaks, so what it hands out is contiguous. It ends only with our ownership.

    leases (epoch) -> Feed -> client.reader -> Reader.receive -> batches
                        ^^^^ this module

Refused because a higher epoch is still attached, a rightful owner raises its own above it, writes
that to the row, stamps the checkpoint anew and tries again. Only the rightful owner can: the write
is compared and set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from pumphouse.client.base import HubClient, Reader, ReaderOptions
from pumphouse.errors import PumphouseError, ReaderEvicted
from pumphouse.events import Event, Position
from pumphouse.processor.options import ProcessorOptions

RAISES_MAX = 5  # in one attempt to open; whoever keeps us out any longer is reported


class Feed:
    """Reads one partition for its owner."""

    def __init__(
        self,
        client: HubClient,
        reader: ReaderOptions,
        options: ProcessorOptions,
        settled: Callable[[], Awaitable[int]],
        raised: Callable[[int], Awaitable[int]],
    ) -> None:
        self._client, self._wanted, self._options = client, reader, options
        self._settled = settled  # the epoch that is ours, once that is sure
        self._raised = raised  # asks for an epoch above this one; the one we got
        self._reader: Reader | None = None
        self._waiting: list[Event] = []  # received, but beyond the bytes of a batch

    def __repr__(self) -> str:
        return f"<Feed {self._wanted.partition} epoch {self._wanted.epoch} {self._wanted.position}>"

    async def receive(self, deadline_s: float) -> list[Event]:
        """The next batch; empty if the deadline passes. Raises what does not pass by itself."""
        if not self._waiting:
            reader = self._reader or await self._open()
            received = await reader.receive(self._options.batch_events_max, deadline_s)
            self._waiting = received
            if received:
                self._go_on_behind(received[-1])
        batch, self._waiting = cut(self._waiting, self._options.batch_bytes_max)
        return batch

    def _go_on_behind(self, event: Event) -> None:
        if event.sequence is None:
            raise PumphouseError(
                f"the hub sent an event without a sequence number on {self._wanted.partition}"
            )
        self._wanted = replace(self._wanted, position=Position("sequence", str(event.sequence)))

    async def _open(self) -> Reader:
        """Open a reader where we are; if a higher epoch keeps us out, with one above it."""
        self._wanted = replace(self._wanted, epoch=await self._settled())
        for _ in range(RAISES_MAX):
            try:
                self._reader = await self._client.reader(self._wanted)
                return self._reader
            except ReaderEvicted as refused:
                await self.raise_epoch_above(refused)
        self._reader = await self._client.reader(self._wanted)
        return self._reader

    async def raise_epoch_above(self, refused: ReaderEvicted) -> int:
        """Go on with an epoch above the one that keeps us out; OwnershipLost if we may not."""
        epoch = await self._raised(self._above(refused))
        self._wanted = replace(self._wanted, epoch=epoch)
        return epoch

    def _above(self, refused: ReaderEvicted) -> int:
        ours = self._wanted.epoch or 0
        # Where the hub does not say which epoch keeps us out, twice ours soon passes it.
        return 2 * ours if refused.epoch is None else max(refused.epoch, ours)

    async def close(self) -> None:
        """Leave the partition; what was received and not handed out is read again."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()


def cut(events: list[Event], bytes_max: int) -> tuple[list[Event], list[Event]]:
    """The first of these events, at least one, that are together not too large; and the rest."""
    size = 0
    for number, event in enumerate(events):
        size += len(event.body)
        if size > bytes_max and number:
            return events[:number], events[number:]
    return events, []

"""How far queries are behind, told after every batch; and their progress mirrored elsewhere.

    listener = EventHubsLagListener(print)
    spark.streams.addListener(listener)

Works with classic Spark and with Spark Connect. The lag in events is exact. In seconds it says how
much older than the newest event the last one read is; between events whose time is known it is
taken from the line between them, and it is None before the first is known.

    progress of Spark -> EventHubsLagListener -> on_lag, Mirror
                         ^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pumphouse.client.base import (
    DEFAULT_GROUP,
    ConnectionString,
    HubClient,
    ReaderOptions,
    read_connection_string,
)
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError, PumphouseError
from pumphouse.events import Position
from pumphouse.leases.model import Group
from pumphouse.spark.lag.known_positions import (
    KnownPosition,
    Lag,
    PositionHistory,
    SourceProgress,
    partition_lags,
    progress_of_sources,
    reader_name,
)
from pumphouse.spark.lag.mirror import CheckpointMirror

log = logging.getLogger("pumphouse.spark")

LOOK_S = 10.0  # for one event that must be there
LOOK_ALL_S = 60.0  # Spark's other listeners wait for us meanwhile


class EventHubsLagListener(StreamingQueryListener):
    """Tells the lag of every query that reads from a hub.

    `on_lag` is called after each batch with a `Lag`; without it a line is logged. `lags` has the
    last one of each query and hub. With a `store` (as for `pumphouse checkpoints`) progress in the
    hub of `connection` is mirrored into it after every batch, the last one included: that of the
    queries which read there as `group`.
    """

    def __init__(
        self,
        on_lag: Callable[[Lag], object] | None = None,
        *,
        store: str = "",
        connection: str = "",
        group: str = DEFAULT_GROUP,
        credential: Any = None,
    ) -> None:
        if store and not connection:
            raise OptionError("a store needs a connection too: it files checkpoints under the hub")
        self.on_lag = on_lag or tell
        self.lags: dict[tuple[str, str], Lag] = {}
        self._mirrored: MirroredHub | None = None
        if store:
            place = read_connection_string(connection, keyless=credential is not None)
            self._mirrored = MirroredHub(place, group, store, credential)
        self._memories: dict[tuple[str, str], PositionHistory] = {}

    # -- what Spark calls -------------------------------------------------------------------------

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is known yet."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing has changed."""

    def onQueryProgress(self, event: Any) -> None:
        progress = json.loads(event.progress.json)
        for source in progress_of_sources(progress):
            self.learn(progress, source)

    def onQueryTerminated(self, event: Any) -> None:
        query = str(event.id)
        self._memories = {key: kept for key, kept in self._memories.items() if key[0] != query}
        if self._mirrored is not None:
            self._mirrored.finish()

    # -- what we make of it -----------------------------------------------------------------------

    def learn(self, progress: Mapping[str, Any], source: SourceProgress) -> None:
        query = str(progress["id"])
        memory = self._memories.setdefault((query, source.hub), PositionHistory())
        memory.learn(source.marks)
        lag = Lag(
            query,
            progress.get("name"),
            int(progress["batchId"]),
            source.hub,
            partition_lags(source, memory),
            source.unavailable,
        )
        self.lags[query, source.hub] = lag
        if self._mirrored is not None:
            self._mirrored.follow(source, memory)
        try:
            self.on_lag(lag)
        except Exception:
            log.warning("on_lag failed", exc_info=True)


class MirroredHub:
    """One hub whose progress is mirrored, and places that are not known well enough yet."""

    def __init__(
        self, place: ConnectionString, group: str, store: str, credential: Any = None
    ) -> None:
        if not place.hub:
            raise OptionError("the connection of a mirror must name its hub: add EntityPath=HUB")
        self.place, self.group, self.credential = place, group, credential
        self.mirror = CheckpointMirror(store, Group(place.authority, place.hub, group))
        self.reader = reader_name(place.address, group)
        self._unknown: dict[str, int] = {}
        self._epochs: Mapping[str, int] = {}

    def follow(self, source: SourceProgress, memory: PositionHistory) -> None:
        """Write the places that are known exactly; the others wait for the next progress."""
        if source.hub.lower() != self.place.hub.lower() or source.reader != self.reader:
            return  # the checkpoints of a group must not move with what another has read
        ends = {one: following - 1 for one, following in source.end.items() if following > 0}
        self._epochs = source.epochs
        if source.epochs:
            # A tenant writes its checkpoints itself, and nobody else may while it runs: only of
            # the last batch of a run it may not have heard.
            self._unknown = ends
            return
        marks = {one: memory.at(one, last) for one, last in ends.items()}
        # Of a batch before this one the place may have become known, which is better than none.
        early = {one: memory.at(one, last) for one, last in self._unknown.items()}
        known = {one: mark for one, mark in {**early, **marks}.items() if mark is not None}
        self._unknown = {one: last for one, last in ends.items() if marks[one] is None}
        self.mirror.write(known)

    def finish(self) -> None:
        """The last batch: what nobody told is asked of the hub."""
        unknown, self._unknown = self._unknown, {}
        if not unknown:
            return
        try:
            found = asyncio.run(asyncio.wait_for(self.look(unknown), LOOK_ALL_S))
            self.mirror.write(found, self._epochs)
        except (PumphouseError, OSError) as failed:
            log.warning("mirror group=%s last batch not written: %s", self.group, failed)

    async def look(self, wanted: Mapping[str, int]) -> dict[str, KnownPosition]:
        async with open_client(self.place, credential=self.credential) as client:
            found = {one: await self.look_at(client, one, last) for one, last in wanted.items()}
        return {one: mark for one, mark in found.items() if mark is not None}

    async def look_at(
        self, client: HubClient, partition: str, sequence: int
    ) -> KnownPosition | None:
        """One event; None if it cannot be had, which is no reason to leave out the others."""
        at = Position("sequence", str(sequence), inclusive=True)
        try:
            reader = await client.reader(ReaderOptions(partition, self.group, at, prefetch=1))
            try:
                events = await reader.receive(1, LOOK_S)
            finally:
                await reader.close()
        except PumphouseError as failed:
            log.warning("mirror group=%s partition=%s: %s", self.group, partition, failed)
            return None
        if not events or events[0].sequence != sequence:
            return None
        return KnownPosition(sequence, events[0].offset, events[0].enqueued_ms)


def tell(lag: Lag) -> None:
    seconds = "?" if lag.seconds is None else f"{lag.seconds:.1f}"
    log.info(
        "lag query=%s hub=%s batch=%d events=%d seconds=%s",
        lag.name or lag.query,
        lag.hub,
        lag.batch,
        lag.events,
        seconds,
    )

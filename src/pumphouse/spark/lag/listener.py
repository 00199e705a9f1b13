"""A listener that reports the lag of queries after every batch, and mirrors their progress.

    listener = EventHubsLagListener(print)
    spark.streams.addListener(listener)

Works with classic Spark and with Spark Connect. The lag in events is exact. The lag in seconds is
the time between the last event read and the newest one; times between known events are
interpolated. The lag in seconds is None until both times are known.

    progress of Spark -> EventHubsLagListener -> on_lag, CheckpointMirror
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
from pumphouse.leases.model import Group
from pumphouse.logs import RepeatedFailures, line
from pumphouse.spark.lag.known_positions import (
    KnownPosition,
    Lag,
    PositionHistory,
    SourceProgress,
    partition_lags,
    progress_of_sources,
    reader_name,
)
from pumphouse.spark.lag.lookup import find_known_position
from pumphouse.spark.lag.mirror import CheckpointMirror, mirror_failed
from pumphouse.spark.versions.features import LAG, require

log = logging.getLogger("pumphouse.spark")

ON_LAG = "on_lag"
LAGS_MAX = 1000  # including those of queries that have ended
LOOK_UP_ALL_S = 60.0  # Spark's other listeners wait meanwhile


class EventHubsLagListener(StreamingQueryListener):
    """Reports the lag of every query that reads from a hub.

    `on_lag` is called after each batch with a `Lag`; without it a line is logged. `lags` has the
    last `Lag` of each query and hub. `store` is a store URL. The listener writes the progress of
    queries that read the hub of `connection` in the consumer group `group` to this store, after
    every batch.
    """

    only_lag = True  # nothing else is measured

    def __init__(
        self,
        on_lag: Callable[[Lag], object] | None = None,
        *,
        store: str = "",
        connection: str = "",
        group: str = DEFAULT_GROUP,
        credential: Any = None,
    ) -> None:
        if self.only_lag:
            require(LAG, "EventHubsLagListener")
        if store and not connection:
            raise OptionError(
                "store needs a connection: the connection names the hub of the checkpoints"
            )
        self.on_lag = on_lag or log_lag
        self.lags: dict[tuple[str, str], Lag] = {}
        self._mirrored: MirroredHub | None = None
        if store:
            parsed = read_connection_string(connection, keyless=credential is not None)
            self._mirrored = MirroredHub(parsed, group, store, credential)
        self._histories: dict[tuple[str, str], PositionHistory] = {}
        self._failures = RepeatedFailures()  # of on_lag

    # -- what Spark calls -------------------------------------------------------------------------

    def onQueryStarted(self, event: Any) -> None:
        """There is no progress yet."""

    def onQueryIdle(self, event: Any) -> None:
        """The lag is unchanged."""

    def onQueryProgress(self, event: Any) -> None:
        progress = json.loads(event.progress.json)
        for source in progress_of_sources(progress):
            self._record(progress, source)

    def onQueryTerminated(self, event: Any) -> None:
        query = str(event.id)
        self._histories = {
            key: history for key, history in self._histories.items() if key[0] != query
        }
        if self._mirrored is not None:
            self._mirrored.finish()

    # -- lag and mirror ---------------------------------------------------------------------------

    def _record(self, progress: Mapping[str, Any], source: SourceProgress) -> None:
        query = str(progress["id"])
        history = self._histories.setdefault((query, source.hub), PositionHistory())
        history.add(source.positions)
        lag = Lag(
            query,
            progress.get("name"),
            int(progress["batchId"]),
            source.hub,
            partition_lags(source, history),
            source.unavailable,
            source.reader,
        )
        self.lags[query, source.hub] = lag
        if len(self.lags) > LAGS_MAX:
            del self.lags[next(iter(self.lags))]
        if self._mirrored is not None:
            self._mirrored.follow(source, history)
        try:
            self.on_lag(lag)
        except Exception as error:
            self._log_callback_failed(error)

    def _log_callback_failed(self, error: Exception) -> None:
        """Log the exception of on_lag with its traceback, unless it repeats."""
        count = self._failures.failed(ON_LAG, error)
        if count is not None:
            fields = {"callback": ON_LAG, "error": error, "count": count if count > 1 else None}
            log.error("%s", line("callback_failed", **fields, todo="fix on_lag"), exc_info=error)


class MirroredHub:
    """One hub whose progress is mirrored, and the positions whose offset is not known yet."""

    def __init__(
        self, connection: ConnectionString, group: str, store: str, credential: Any = None
    ) -> None:
        if not connection.hub:
            raise OptionError(
                "the connection of a mirror does not name its hub: add EntityPath=HUB"
            )
        self.connection, self.group, self.credential = connection, group, credential
        self.mirror = CheckpointMirror(store, Group(connection.authority, connection.hub, group))
        self.reader = reader_name(connection.address, group)
        self._unknown: dict[str, int] = {}
        self._epochs: Mapping[str, int] = {}

    def follow(self, source: SourceProgress, history: PositionHistory) -> None:
        """Write the positions that are known exactly; the others wait for the next progress."""
        if source.hub.lower() != self.connection.hub.lower() or source.reader != self.reader:
            return  # another group, or another hub
        lasts = {name: following - 1 for name, following in source.end.items() if following > 0}
        self._epochs = source.epochs
        if source.epochs:
            # A tenant writes its own checkpoints while it runs, except for its last batch: it may
            # not know that this batch is committed. `finish` writes that checkpoint.
            self._unknown = lasts
            return
        current = {name: history.at(name, last) for name, last in lasts.items()}
        # The end of an earlier batch may have become known: write it if the current end is unknown.
        earlier = {name: history.at(name, last) for name, last in self._unknown.items()}
        self._unknown = {name: last for name, last in lasts.items() if current[name] is None}
        self.mirror.write(without_unknown(earlier) | without_unknown(current))

    def finish(self) -> None:
        """Write the last batch; positions that no task reported are read from the hub."""
        unknown, self._unknown = self._unknown, {}
        if not unknown:
            return
        try:
            positions = asyncio.run(asyncio.wait_for(self.look_up_all(unknown), LOOK_UP_ALL_S))
            self.mirror.write(positions, self._epochs)
        except (PumphouseError, OSError) as failed:
            log.warning("%s", mirror_failed(self.mirror.group, failed))

    async def look_up_all(self, sequences: Mapping[str, int]) -> dict[str, KnownPosition]:
        async with open_client(self.connection, credential=self.credential) as client:
            return without_unknown(
                {name: await self.look_up(client, name, last) for name, last in sequences.items()}
            )

    async def look_up(
        self, client: HubClient, partition: str, sequence: int
    ) -> KnownPosition | None:
        """One event; None if it cannot be read, so that the others are still written."""
        try:
            options = ReaderOptions(partition, self.group)
            return await find_known_position(client, options, sequence)
        except PumphouseError as failed:
            log.warning("%s", mirror_failed(self.mirror.group, failed, partition=partition))
            return None


def without_unknown(positions: Mapping[str, KnownPosition | None]) -> dict[str, KnownPosition]:
    return {name: position for name, position in positions.items() if position is not None}


def log_lag(lag: Lag) -> None:
    log.info(
        "%s",
        line(
            "lag_measured", query=lag.name or lag.query, hub=lag.hub, group=lag.group,
            batch=lag.batch, events=lag.events, seconds=lag.seconds,
        ),
    )  # fmt: skip

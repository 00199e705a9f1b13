"""ObservedLag: the lag of any consumer group of a hub, read on request.

    ExternalScaler -> ObservedLag -> lag.readings -> HubClient, ObservedStore
                      ^^^^^^^^^^^ this module

KEDA requests the same group several times in a row, so a reading is reused for one interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from pumphouse.client.base import HubClient, PartitionProperties
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import HubNotFound, OptionError, PumphouseError
from pumphouse.escapes import printable
from pumphouse.lag.observed_store import ObservedStore
from pumphouse.lag.opened import Opened
from pumphouse.lag.options import LagOptions
from pumphouse.lag.poller import HUB, RESPONSE_S, STORE
from pumphouse.lag.readings import GroupRows, client_of, read_groups, read_partitions
from pumphouse.processor.admin.overview import overview
from pumphouse.processor.checks.access import check_access
from pumphouse.scaler.decisions import GROUP, Lags, lags_of

T = TypeVar("T")

GROUPS_MAX = 1000  # limit of the kept readings: a client may request any group name


class ReadFailed(PumphouseError):
    """The hub or the store could not be read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The lags of a group at one instant, or why they could not be read."""

    at_s: float
    lags: Lags = ()
    failure: PumphouseError | None = None

    def result(self) -> Lags:
        if self.failure is not None:
            raise self.failure
        return self.lags


class ObservedLag:
    """Reads the lag of groups. `notify` is called with a sentence when a failure begins or ends."""

    def __init__(
        self,
        options: LagOptions,
        notify: Callable[[str], None] = lambda text: None,
        clock: Clock | None = None,
    ) -> None:
        # Invalid options end the command here; later errors are temporary.
        client_of(options), ObservedStore(options.store)
        self._options, self._notify = options, notify
        self._clock: Clock = clock or SystemClock()
        self._hub: Opened[HubClient] = Opened(partial(client_of, options), RESPONSE_S)
        self._store = Opened(partial(ObservedStore, options.store), RESPONSE_S)
        self._one_at_a_time = asyncio.Lock()
        self._readings: dict[str, Reading] = {}  # by group in lower case, the oldest first

    async def of(self, group: str) -> Lags:
        """One lag per partition. OptionError if the hub has no such group; else ReadFailed."""
        async with self._one_at_a_time:
            reading = self._readings.get(group.lower())
            age_s = self._clock.monotonic() - reading.at_s if reading else self._options.interval_s
            if reading is None or age_s >= self._options.interval_s:
                reading = await self._read(group)
                self._keep(group, reading)
        return reading.result()

    async def close(self) -> None:
        await self._hub.close()
        await self._store.close()

    def _keep(self, group: str, reading: Reading) -> None:
        before = self._readings.pop(group.lower(), None)
        self._readings[group.lower()] = reading
        for oldest in list(self._readings)[: len(self._readings) - GROUPS_MAX]:
            del self._readings[oldest]
        old = before.failure if before is not None else None
        if reading.failure is not None and str(reading.failure) != str(old):
            self._notify(f"consumer group {group}: {reading.failure}")
        elif reading.failure is None and old is not None:
            self._notify(f"consumer group {group}: its lag is known again")

    async def _read(self, group: str) -> Reading:
        try:
            lags = await self._lags(group)
        except PumphouseError as error:
            return Reading(self._clock.monotonic(), failure=error)
        return Reading(self._clock.monotonic(), lags)

    async def _lags(self, group: str) -> Lags:
        # The store first: a checkpoint that is read later could lie beyond the newest event.
        rows = await self._attempt(STORE, self._store.use(partial(self._rows, group)))
        partitions = await self._attempt(HUB, self._hub.use(read_partitions))
        if partitions and not (rows.listing.ownerships or rows.checkpoints):
            await self._need_group(group, partitions[0])
        stored = rows.checkpoints.values()
        lease_s, hub = self._options.lease_s, self._options.hub
        return lags_of(overview(group, hub, partitions, rows.listing, stored, lease_s))

    async def _rows(self, group: str, observed: ObservedStore) -> GroupRows:
        stored = await read_groups(observed, replace(self._options, groups=(group,)))
        if stored.failure is not None:
            raise ReadFailed(stored.failure)
        return stored.groups[0]

    async def _need_group(self, group: str, partition: PartitionProperties) -> None:
        """OptionError unless the hub has this group, which has no rows in the store.

        Without this check all events of the hub would be the lag of a group with a misspelled name.
        """

        async def check(client: HubClient) -> bool:
            try:
                await check_access(client, group, partition.partition)
            except HubNotFound:
                return False
            return True

        if not await self._attempt(HUB, self._hub.use(check)):
            raise OptionError(
                f"invalid {GROUP} {group!r}: hub {self._options.hub!r} has no such consumer group; "
                "create it, or correct the name"
            )

    async def _attempt(self, part: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except TimeoutError:
            reason = f"no response within {RESPONSE_S:g} s"
        except (PumphouseError, OSError) as error:
            reason = printable(str(error) or type(error).__name__)
        raise ReadFailed(f"{part}: {reason}")

"""A store in a Redis server, for hosts on many machines.

Every call is one script, so nothing happens between its reads and its writes. Every time is read
from the clock of the server. Changed rows are published to the hosts of the group, so that a
hand-over does not wait for their next listing.

    processor.cycle -> RedisStore -> Connections -> redis
                       ^^^^^^^^^^ this module
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

from pumphouse.errors import CheckpointRefused, OptionError, StoreError, StoreUnavailable
from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Group,
    Listing,
    Ownership,
    Refused,
    Unknown,
)
from pumphouse.leases.rules import checkpoint_fault
from pumphouse.leases.store import Change, CheckpointOutcome, ClaimOutcome
from pumphouse.leases.stores.redis.address import parse_address
from pumphouse.leases.stores.redis.changes import listen
from pumphouse.leases.stores.redis.connections import Connections
from pumphouse.leases.stores.redis.rows import (
    checkpoint_values,
    pairs,
    read_checkpoint,
    read_members,
    read_row,
    row_value,
    text,
)
from pumphouse.leases.stores.redis.scripts import CLOCK, MEMBER_KEPT_S, PREFIX, Keys, Scripts

DEADLINE_S = 10.0
# Calls of one host at the same time: renewals, checkpoints of some partitions, a listing.
CONNECTIONS_MAX = 4
PREFIX_CHARS_MAX = 100


class RedisStore:
    """Keeps rows in a database of a Redis server, under keys that begin with `prefix`.

    The URL is `redis://USER:PASSWORD@HOST:PORT/DB`, or `rediss://` for TLS. Open the store with
    `async with`, once or several times at the same time. `deadline_s` bounds every call. At most
    `connections_max` connections are open for calls, and one for notifications.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = PREFIX,
        deadline_s: float = DEADLINE_S,
        connections_max: int = CONNECTIONS_MAX,
        clock: str = CLOCK,
    ) -> None:
        if not deadline_s > 0:
            raise OptionError(f"deadline_s must be above 0 (got {deadline_s})")
        if connections_max < 1:
            raise OptionError(f"connections_max must be at least 1 (got {connections_max})")
        if not 0 < len(prefix) <= PREFIX_CHARS_MAX or set("{}") & set(prefix):
            raise OptionError(
                f"prefix must have 1 to {PREFIX_CHARS_MAX} characters without braces "
                f"(got {prefix!r})"
            )
        self._prefix, self._scripts = prefix, Scripts(clock)
        self._new_connections = partial(
            Connections, parse_address(url), deadline_s, connections_max
        )
        self._connections = self._new_connections()
        self._connections.is_closed = True
        self._users = 0

    def __repr__(self) -> str:
        state = "closed" if self._connections.is_closed else "open"
        return f"<RedisStore {self._connections.name} | {state}>"

    async def __aenter__(self) -> Self:
        self._users += 1
        if self._connections.is_closed:
            self._connections = self._new_connections()
        try:
            await self._check_policy()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if self._users == 0:
            await self._connections.close()

    async def _check_policy(self) -> None:
        """StoreError if the server may remove keys: a removed row forgets its epoch."""
        policy, most = map(text, await self._connections.run(self._scripts.policy, (), ()))
        if policy.startswith("allkeys") and most != "0":
            raise StoreError(
                f"{self._connections.name} removes keys when its memory is full "
                f"(maxmemory-policy {policy}): use noeviction, or a separate server for leases"
            )

    # -- ownership --------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        keys = self._keys(group)
        names = (keys.rows, keys.beats, keys.limits, keys.checkpoints)
        now, rows, beats, limits, checkpoints = await self._connections.run(
            self._scripts.list, names, ()
        )
        now_us = float(now)
        return Listing(
            tuple(read_row(partition, value, now_us) for partition, value in pairs(rows)),
            read_members(pairs(beats), dict(pairs(limits)), now_us),
            {
                partition: read_checkpoint(group, partition, value).epoch
                for partition, value in pairs(checkpoints)
            },
        )

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        if not (requested := list(claims)):
            return []
        keys, written = (
            self._keys(group),
            [replace(row, etag=new_etag(), age_s=0.0) for row in requested],
        )
        arguments = [group.name.lower(), keys.channel]
        for before, row in zip(requested, written, strict=True):
            arguments += [row.partition, before.etag, row.etag, row.owner, row.successor,
                          row.state, row_value(row)]  # fmt: skip
        try:
            *results, now = await self._connections.run(
                self._scripts.claim, (keys.rows, keys.groups), arguments
            )
        except StoreUnavailable as error:
            return [Unknown(row, str(error)) for row in requested]
        return [
            _outcome(before, row, result, float(now))
            for before, row, result in zip(requested, written, results, strict=True)
        ]

    # -- checkpoints ------------------------------------------------------------------------------

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        keys = (self._keys(group).checkpoints,)
        stored = await self._connections.run(self._scripts.checkpoints, keys, ())
        return [read_checkpoint(group, partition, value) for partition, value in pairs(stored)]

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        keys, written = self._keys(checkpoint.group), replace(checkpoint, etag=new_etag())
        arguments = (
            checkpoint.group.name.lower(), checkpoint.partition, checkpoint.etag, int(rewind),
            *checkpoint_values(written, written.etag),
        )  # fmt: skip
        try:
            result = await self._connections.run(
                self._scripts.checkpoint, (keys.checkpoints, keys.groups), arguments
            )
        except StoreUnavailable as error:
            return Unknown(checkpoint, str(error))
        if result == 1:
            return Granted(written)
        stored = (
            read_checkpoint(checkpoint.group, checkpoint.partition, text(result))
            if result
            else None
        )
        same = stored is not None and stored.etag == checkpoint.etag
        if same and not rewind and (fault := checkpoint_fault(stored, checkpoint)):
            raise CheckpointRefused(fault)
        return Refused(checkpoint, stored)

    async def groups(self, namespace: str, hub: str) -> set[str]:
        """The names of the groups of a hub, in lower case."""
        keys = (self._keys(Group(namespace, hub)).groups,)
        return set(map(text, await self._connections.run(self._scripts.groups, keys, ())))

    # -- members ----------------------------------------------------------------------------------

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        keys, most = self._keys(group), "" if max_partitions is None else max_partitions
        await self._connections.run(
            self._scripts.beat, (keys.beats, keys.limits), (name, most, MEMBER_KEPT_S)
        )

    async def leave(self, group: Group, name: str) -> None:
        keys = self._keys(group)
        await self._connections.run(self._scripts.leave, (keys.beats, keys.limits), (name,))

    # -- changes ----------------------------------------------------------------------------------

    def changes(self, group: Group) -> AsyncGenerator[Change, None]:
        """Changes of the group's rows by any host, as they are written."""
        return listen(self._connections, self._keys(group).channel)

    def _keys(self, group: Group) -> Keys:
        return Keys(self._prefix, group)


def new_etag() -> str:
    return secrets.token_hex(8)


def _outcome(
    requested: Ownership, written: Ownership, result: int | bytes, now_us: float
) -> ClaimOutcome:
    """The outcome of a claim: the script returns 1, or the stored value."""
    if isinstance(result, int):
        return Granted(written)
    stored = read_row(requested.partition, text(result), now_us) if result else None
    return Refused(requested, stored)

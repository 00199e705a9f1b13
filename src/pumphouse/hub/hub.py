"""The things a namespace is made of: hubs, partitions, consumer groups, access rules.

A namespace knows nothing of sockets. Links register with the partition they read or the hub they
send to, so that a new event wakes its readers and a deleted hub detaches its links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.errors import AmqpError, HubExists, HubNotFound, OptionError
from pumphouse.hub import epochs
from pumphouse.hub.annotations import Batch
from pumphouse.hub.auth import AccessRule
from pumphouse.hub.issuer import TokenIssuer
from pumphouse.hub.log import A_DAY, PartitionLog, Retention
from pumphouse.hub.routing import DEFAULT_GROUP, check_group_name, check_hub_name, partition_for

PARTITIONS_MAX = 2000  # the service's largest; a number beyond it is a slip of the finger
MESSAGE_BYTES_MAX = 1024 * 1024


class OpenLink(Protocol):
    """A link that the model may close."""

    def close(self, condition: str, description: str) -> None: ...


class OpenReader(OpenLink, Protocol):
    """A link that reads a partition."""

    reader: epochs.Reader

    def wake(self) -> None:
        """There is something new to read."""


class Partition:
    """One ordered log, and who reads it."""

    __slots__ = ("id", "log", "readers")

    def __init__(self, number: int, retention: Retention) -> None:
        self.id = str(number)
        self.log = PartitionLog(retention)
        self.readers: dict[str, list[OpenReader]] = {}  # by consumer group, lower case

    def admit(self, group: str, link: OpenReader) -> None:
        """Let a reader in, evicting others if the epoch rules say so; AmqpError if they say no."""
        present = self.readers.get(group, [])
        verdict = epochs.arbitrate([there.reader for there in present], link.reader)
        if not verdict.admit:
            raise AmqpError(verdict.condition, verdict.text)
        evicted = {there.reader.id: there for there in present}
        for reader_id, text in zip(verdict.evict, verdict.evict_errors, strict=True):
            evicted[reader_id].close(verdict.condition, text)
        self.readers.setdefault(group, []).append(link)

    def leave(self, group: str, link: OpenReader) -> None:
        there = self.readers.get(group, [])
        if link in there:
            there.remove(link)
        if not there:
            self.readers.pop(group, None)

    def wake(self) -> None:
        for link in chain.from_iterable(self.readers.values()):
            link.wake()


class EventHub:
    """A named set of partitions with its consumer groups."""

    def __init__(self, name: str, partitions: int, created_ms: int, retention: Retention) -> None:
        self.name = name
        self.created_ms = created_ms
        self.partitions = [Partition(number, retention) for number in range(partitions)]
        self.groups: dict[str, str] = {DEFAULT_GROUP.lower(): DEFAULT_GROUP}
        self.senders: set[OpenLink] = set()
        self._turn = 0

    def __repr__(self) -> str:
        return f"<EventHub {self.name} {len(self.partitions)} partitions>"

    def partition(self, text: str) -> Partition:
        """The partition of that id, or the service's refusal."""
        if text.isascii() and text.isdigit() and len(text) < 6 and int(text) < len(self.partitions):
            return self.partitions[int(text)]
        raise AmqpError(
            "com.microsoft:argument-out-of-range",
            "The specified partition is invalid for an EventHub partition sender or receiver. "
            f"It should be between 0 and {len(self.partitions) - 1}.",
        )

    def choose(self, key: str | None) -> Partition:
        """Where a batch goes: by its key, or else to each partition in turn."""
        if key is not None:
            return self.partitions[partition_for(key, len(self.partitions))]
        self._turn = (self._turn + 1) % len(self.partitions)
        return self.partitions[self._turn]

    def readers(self, group: str | None = None) -> Iterator[OpenReader]:
        """The links that read this hub, of one group or of all."""
        for partition in self.partitions:
            for name, links in list(partition.readers.items()):
                if group is None or name == group:
                    yield from list(links)


class Namespace:
    """All hubs behind one address, and the keys that open them."""

    def __init__(
        self,
        rules: Iterable[AccessRule],
        *,
        clock: Clock | None = None,
        retention: Retention = A_DAY,
        issuer: TokenIssuer | None = None,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.rules = list(rules)
        self.clock: Clock = clock or SystemClock()
        self.retention = retention
        self.issuer = issuer
        self.message_bytes_max = message_bytes_max
        self._hubs: dict[str, EventHub] = {}
        self._holding: set[Partition] = set()  # partitions with events, for retention to look at

    # -- hubs and groups --------------------------------------------------------------------------

    @property
    def hubs(self) -> Sequence[EventHub]:
        return sorted(self._hubs.values(), key=lambda hub: hub.name)

    def create_hub(self, name: str, partitions: int, groups: Iterable[str] = ()) -> EventHub:
        check_hub_name(name)
        check_partitions(name, partitions)
        names = [*groups]
        for group in names:
            check_group_name(group)
        if name.lower() in self._hubs:
            raise HubExists(f"hub {name!r} exists already; delete it first or choose another name")
        hub = EventHub(name, partitions, now_ms(self.clock), self.retention)
        hub.groups.update((group.lower(), group) for group in names)
        self._hubs[name.lower()] = hub
        return hub

    def hub(self, name: str) -> EventHub:
        found = self._hubs.get(name.lower())
        if found is None:
            known = ", ".join(hub.name for hub in self.hubs[:10]) or "none"
            raise HubNotFound(f"there is no hub {name!r}; the hubs here are: {known}")
        return found

    def delete_hub(self, name: str) -> None:
        """Remove a hub with its events; links to it are detached."""
        hub = self.hub(name)
        del self._hubs[name.lower()]
        self._holding.difference_update(hub.partitions)
        self.rules = [rule for rule in self.rules if rule.hub.lower() != hub.name.lower()]
        close_all(
            [*hub.readers(), *hub.senders], f"The messaging entity '{hub.name}' has been deleted."
        )

    def create_group(self, hub_name: str, group: str) -> None:
        check_group_name(group)
        hub = self.hub(hub_name)
        if group.lower() in hub.groups:
            raise HubExists(f"consumer group {group!r} exists already in hub {hub.name!r}")
        hub.groups[group.lower()] = group

    def delete_group(self, hub_name: str, group: str) -> None:
        hub = self.hub(hub_name)
        if group.lower() == DEFAULT_GROUP.lower():
            raise OptionError(f"consumer group {DEFAULT_GROUP} is part of every hub; it stays")
        if group.lower() not in hub.groups:
            known = ", ".join(hub.groups.values())
            raise HubNotFound(f"hub {hub.name!r} has no consumer group {group!r}; it has: {known}")
        del hub.groups[group.lower()]
        close_all(
            list(hub.readers(group.lower())), f"The consumer group '{group}' has been deleted."
        )

    # -- events -----------------------------------------------------------------------------------

    def publish(
        self,
        partition: Partition,
        batch: Batch,
        publisher: str | None,
        committed: Callable[[AmqpError | None], None],
    ) -> None:
        """Append a batch and wake the readers; `committed` is called once it is safe (or failed).

        In memory that is at once. A log on disk calls it after the write has reached the disk, and
        wakes the readers only then, so nobody reads what a crash could take back.
        """
        partition.log.append(batch, now_ms(self.clock), publisher)
        self._holding.add(partition)
        committed(None)
        partition.wake()

    def expire(self) -> None:
        """Apply retention to every partition that holds events."""
        now = now_ms(self.clock)
        for partition in list(self._holding):
            partition.log.expire(now)
            if partition.log.empty:
                self._holding.discard(partition)


def close_all(links: Iterable[OpenLink], description: str) -> None:
    for link in list(links):
        link.close("amqp:not-found", description)


def check_partitions(name: str, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise OptionError(f"hub {name!r} needs 1 to {PARTITIONS_MAX} partitions (got {partitions})")


def create_hubs(namespace: Namespace, hubs: Mapping[str, int]) -> None:
    for name, partitions in hubs.items():
        namespace.create_hub(name, partitions)

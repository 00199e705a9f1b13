"""The things a namespace is made of: hubs, partitions, consumer groups, access rules.

A namespace knows nothing of sockets. Links register with the partition they read or the hub they
send to, so that a new event wakes its readers and a deleted hub detaches its links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Protocol

from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.errors import AmqpError, HubExists, HubNotFound, OptionError
from pumphouse.hub import epochs
from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.access.token_issuer import TokenIssuer
from pumphouse.hub.annotations import Batch
from pumphouse.hub.faults.rules import Faults
from pumphouse.hub.quotas import (
    PARTITIONS_MAX,
    Meter,
    Tier,
    check_more_partitions,
    check_new_group,
    check_new_hub,
)
from pumphouse.hub.routing import DEFAULT_GROUP, check_group_name, check_hub_name, partition_for
from pumphouse.hub.storage.base import Log, MemoryStorage, Storage
from pumphouse.hub.storage.data_directory import HubRecord, NamespaceRecord
from pumphouse.hub.storage.memory_log import A_DAY, Retention

MESSAGE_BYTES_MAX = 1024 * 1024


class OpenLink(Protocol):
    """A link that the model may close."""

    def close(self, condition: str, description: str) -> None: ...


class OpenReader(OpenLink, Protocol):
    """A link that reads a partition."""

    reader: epochs.Reader
    next_sequence: int  # of the event that it is sent next

    @property
    def client(self) -> str:
        """The container id of the connection: many clients give their readers no name."""

    def wake(self) -> None:
        """There is something new to read."""


class Partition:
    """One ordered log, and who reads it."""

    __slots__ = ("events_sent", "id", "log", "readers")

    def __init__(self, number: int, log: Log) -> None:
        self.id = str(number)
        self.log = log
        self.readers: dict[str, list[OpenReader]] = {}  # by consumer group, lower case
        self.events_sent = 0  # to all readers together, those that have left included

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

    def evict(self, group: str) -> int:
        """Turn a group's readers out, as a thief with the next epoch would; returns how many."""
        present = list(self.readers.get(group, ()))
        highest = max((there.reader.epoch or 0 for there in present), default=0)
        thief = epochs.Reader(id=0, name="thief", epoch=highest + 1)
        verdict = epochs.arbitrate([there.reader for there in present], thief)
        for there, text in zip(present, verdict.evict_errors, strict=True):
            there.close(verdict.condition, text)
        return len(present)

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

    def __init__(self, record: HubRecord, logs: Sequence[Log]) -> None:
        self.id = record.id
        self.name = record.name
        self.created_ms = record.created_ms
        self.partitions = [Partition(number, log) for number, log in enumerate(logs)]
        self.groups = {group.lower(): group for group in (DEFAULT_GROUP, *record.groups)}
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

    @property
    def record(self) -> HubRecord:
        """The hub as it is written down."""
        count, groups = len(self.partitions), tuple(self.groups.values())
        return HubRecord(self.id, self.name, count, self.created_ms, groups)

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
        tier: Tier | None = None,
        throughput_units: int | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.rules = list(rules)
        self.faults = faults if faults is not None else Faults()
        self.clock: Clock = clock or SystemClock()
        self.retention = retention
        self.issuer = issuer
        self.message_bytes_max = message_bytes_max
        self.tier = tier  # None: no limits but those of this program
        self.meter: Meter | None = None  # None: as fast as it goes
        if throughput_units is not None:
            self.meter = Meter(throughput_units, self.clock.monotonic())
        self.storage: Storage = MemoryStorage()
        self._saving_later = False
        self._hubs: dict[str, EventHub] = {}
        self._holding: set[Partition] = set()  # partitions with events, for retention to look at

    # -- what is kept -----------------------------------------------------------------------------

    def open(self, storage: Storage) -> None:
        """Take up what a storage holds; from here on every change is written down there."""
        self.storage = storage
        record = storage.load()
        if record is not None:
            for kept in record.hubs:
                self.add_hub(kept)
            given = {(rule.name, rule.hub.lower()) for rule in self.rules}
            self.rules += [r for r in record.rules if (r.name, r.hub.lower()) not in given]
        self.save()

    def save(self) -> None:
        if not self._saving_later:
            self.storage.save(self.record)

    def record(self) -> NamespaceRecord:
        """All but the events, as it is written down."""
        return NamespaceRecord(tuple(hub.record for hub in self.hubs), tuple(self.rules))

    @contextmanager
    def saved_once(self) -> Iterator[None]:
        """Make several changes and write them down together."""
        self._saving_later = True
        try:
            yield
        finally:
            self._saving_later = False
            self.save()

    def close(self) -> None:
        """Write down what is not yet, and let go of the storage."""
        self.storage.close()
        for hub in self.hubs:
            for partition in hub.partitions:
                partition.log.close()

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
        if self.tier is not None:
            check_new_hub(self.tier, name, len(self._hubs), partitions, 1 + len(names))
        created_ms = now_ms(self.clock)
        hub_id = self.storage.new_hub_id()
        hub = self.add_hub(HubRecord(hub_id, name, partitions, created_ms, tuple(names)))
        self.save()
        return hub

    def add_hub(self, record: HubRecord) -> EventHub:
        logs = [
            self.storage.open_log(record.id, number, self.retention)
            for number in range(record.partitions)
        ]
        hub = self._hubs[record.name.lower()] = EventHub(record, logs)
        self._holding.update(p for p in hub.partitions if not p.log.empty)
        return hub

    def grow_hub(self, name: str, partitions: int) -> EventHub:
        """Give a hub more partitions. Keys that are sent from now on may land elsewhere."""
        hub = self.hub(name)
        there = len(hub.partitions)
        check_partitions(name, partitions)
        if partitions < there:
            raise OptionError(
                f"hub {hub.name!r} has {there} partitions; there can be more, never fewer (asked "
                f"for {partitions})"
            )
        if self.tier is not None:
            check_more_partitions(self.tier, hub.name, partitions)
        hub.partitions += [
            Partition(number, self.storage.open_log(hub.id, number, self.retention))
            for number in range(there, partitions)
        ]
        self.save()
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
        # First the record, then the files: a crash in between leaves strays, not a broken hub.
        self.save()
        for partition in hub.partitions:
            partition.log.close()
        self.storage.delete_hub(hub.id)

    def create_group(self, hub_name: str, group: str) -> None:
        check_group_name(group)
        hub = self.hub(hub_name)
        if group.lower() in hub.groups:
            raise HubExists(f"consumer group {group!r} exists already in hub {hub.name!r}")
        if self.tier is not None:
            check_new_group(self.tier, hub.name, group, len(hub.groups))
        hub.groups[group.lower()] = group
        self.save()

    def delete_group(self, hub_name: str, group: str) -> None:
        hub = self.hub(hub_name)
        if group.lower() == DEFAULT_GROUP.lower():
            raise OptionError(f"consumer group {DEFAULT_GROUP} is part of every hub; it stays")
        if group.lower() not in hub.groups:
            known = ", ".join(hub.groups.values())
            raise HubNotFound(f"hub {hub.name!r} has no consumer group {group!r}; it has: {known}")
        del hub.groups[group.lower()]
        self.save()
        close_all(
            list(hub.readers(group.lower())), f"The consumer group '{group}' has been deleted."
        )

    def add_rule(self, rule: AccessRule) -> None:
        """Add an access rule, in place of one of the same name."""
        named = (rule.name, rule.hub.lower())
        self.rules = [r for r in self.rules if (r.name, r.hub.lower()) != named]
        self.rules.append(rule)
        self.save()

    # -- events -----------------------------------------------------------------------------------

    def publish(
        self,
        partition: Partition,
        batch: Batch,
        publisher: str | None,
        committed: Callable[[AmqpError | None], None],
    ) -> None:
        """Append a batch; `committed` is called once it is safe, or has failed.

        In memory that is at once. A log on disk calls it after the write has reached the disk, and
        the readers are woken only then, so nobody reads what a crash could take back.
        """

        def done(failed: AmqpError | None) -> None:
            committed(failed)
            if failed is None:
                partition.wake()

        self._holding.add(partition)
        partition.log.publish(batch, now_ms(self.clock), publisher, done)

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


def ensure_hubs(namespace: Namespace, hubs: Mapping[str, int]) -> None:
    """Create the hubs that are not there yet; those that are must have that many partitions."""
    known = {hub.name.lower(): len(hub.partitions) for hub in namespace.hubs}
    with namespace.saved_once():
        for name, partitions in hubs.items():
            there = known.get(name.lower())
            if there is None:
                namespace.create_hub(name, partitions)
            elif there != partitions:
                raise OptionError(
                    f"hub {name!r} has {there} partitions already (asked for {partitions}); "
                    "leave it as it is, or delete it first"
                )


def ensure_groups(namespace: Namespace, groups: Mapping[str, Iterable[str]]) -> None:
    """Create the consumer groups that are not there yet, by the names of their hubs."""
    with namespace.saved_once():
        for hub, names in groups.items():
            for name in names:
                if name.lower() not in namespace.hub(hub).groups:
                    namespace.create_group(hub, name)

"""A namespace and its parts: hubs, partitions, consumer groups, access rules.

Nothing here uses sockets. Links register with the partition that they read or the hub that they
send to, so that a new event wakes its readers and the deletion of a hub detaches its links.
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
from pumphouse.hub.options import LimitOptions, Retention
from pumphouse.hub.quotas import (
    PARTITIONS_MAX,
    Meter,
    check_group_quota,
    check_hub_quota,
    check_partition_quota,
    check_retention,
    check_units,
    find_tier,
)
from pumphouse.hub.routing import DEFAULT_GROUP, check_group_name, check_hub_name, partition_for
from pumphouse.hub.storage.base import Log, MemoryStorage, Storage
from pumphouse.hub.storage.data_directory import HubRecord, NamespaceRecord

MESSAGE_BYTES_MAX = 1024 * 1024


class OpenLink(Protocol):
    """A link that the namespace may close."""

    def close(self, condition: str, description: str) -> None: ...


class OpenReader(OpenLink, Protocol):
    """A link that reads a partition."""

    reader: epochs.Reader
    next_sequence: int  # of the next event to send

    @property
    def client(self) -> str:
        """The container id of the connection: many clients do not name their readers."""

    def wake(self) -> None:
        """Check for new events."""


class Partition:
    """One ordered log, and its readers."""

    __slots__ = ("events_sent", "id", "log", "readers")

    def __init__(self, number: int, log: Log) -> None:
        self.id = str(number)
        self.log = log
        self.readers: dict[str, list[OpenReader]] = {}  # by consumer group, lower case
        self.events_sent = 0  # to all readers, including those that have left

    def admit(self, group: str, link: OpenReader) -> None:
        """Add a reader and evict others, as the epoch rules decide; AmqpError if it is refused."""
        present = self.readers.get(group, [])
        decision = epochs.decide([other.reader for other in present], link.reader)
        if not decision.admit:
            raise AmqpError(decision.condition, decision.text)
        links = {other.reader.id: other for other in present}
        for reader_id, text in zip(decision.evict, decision.evict_errors, strict=True):
            links[reader_id].close(decision.condition, text)
        self.readers.setdefault(group, []).append(link)

    def evict(self, group: str) -> int:
        """Evict a group's readers as a new reader with the next epoch does; returns how many."""
        present = list(self.readers.get(group, ()))
        highest = max((link.reader.epoch or 0 for link in present), default=0)
        evictor = epochs.Reader(id=0, name="thief", epoch=highest + 1)
        decision = epochs.decide([link.reader for link in present], evictor)
        for link, text in zip(present, decision.evict_errors, strict=True):
            link.close(decision.condition, text)
        return len(present)

    def leave(self, group: str, link: OpenReader) -> None:
        present = self.readers.get(group, [])
        if link in present:
            present.remove(link)
        if not present:
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
        self._last_chosen = 0

    def __repr__(self) -> str:
        return f"<EventHub {self.name} {len(self.partitions)} partitions>"

    def partition(self, text: str) -> Partition:
        """The partition with this id; AmqpError with the service's text if there is none."""
        if text.isascii() and text.isdigit() and len(text) < 6 and int(text) < len(self.partitions):
            return self.partitions[int(text)]
        raise AmqpError(
            "com.microsoft:argument-out-of-range",
            "The specified partition is invalid for an EventHub partition sender or receiver. "
            f"It should be between 0 and {len(self.partitions) - 1}.",
        )

    def choose(self, key: str | None) -> Partition:
        """The partition for a batch: by its key or, without one, round-robin."""
        if key is not None:
            return self.partitions[partition_for(key, len(self.partitions))]
        self._last_chosen = (self._last_chosen + 1) % len(self.partitions)
        return self.partitions[self._last_chosen]

    @property
    def record(self) -> HubRecord:
        """The stored description of the hub."""
        count, groups = len(self.partitions), tuple(self.groups.values())
        return HubRecord(self.id, self.name, count, self.created_ms, groups)

    def readers(self, group: str | None = None) -> Iterator[OpenReader]:
        """The links that read this hub, of one group or of all groups."""
        for partition in self.partitions:
            for name, links in list(partition.readers.items()):
                if group is None or name == group:
                    yield from list(links)


class Namespace:
    """All hubs behind one address, and their access rules."""

    def __init__(
        self,
        rules: Iterable[AccessRule],
        *,
        clock: Clock | None = None,
        retention: Retention | None = None,
        issuer: TokenIssuer | None = None,
        limits: LimitOptions | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.rules = list(rules)
        self.faults = faults if faults is not None else Faults()
        self.clock: Clock = clock or SystemClock()
        self.retention = retention or Retention()
        self.issuer = issuer
        self.set_limits(limits or LimitOptions())
        self.storage: Storage = MemoryStorage()
        self._save_postponed = False
        self._hubs: dict[str, EventHub] = {}
        self._nonempty: set[Partition] = set()  # partitions with events, for retention

    def set_limits(self, limits: LimitOptions) -> None:
        self.tier = None if limits.tier is None else find_tier(limits.tier)
        check_units(self.tier, limits.throughput_units)
        if self.tier is not None:
            check_retention(self.tier, self.retention.seconds)
        self.message_bytes_max = MESSAGE_BYTES_MAX
        if limits.message_bytes_max is not None:
            self.message_bytes_max = limits.message_bytes_max
        elif self.tier is not None:
            self.message_bytes_max = self.tier.message_bytes_max
        self.meter: Meter | None = None  # None: no throttling
        if limits.throughput_units is not None:
            self.meter = Meter(limits.throughput_units, self.clock.monotonic())

    # -- storage ----------------------------------------------------------------------------------

    def open(self, storage: Storage) -> None:
        """Load what a storage holds; every later change is stored there."""
        self.storage = storage
        record = storage.load()
        if record is not None:
            for hub in record.hubs:
                self.add_hub(hub)
            configured = {(rule.name, rule.hub.lower()) for rule in self.rules}
            self.rules += [r for r in record.rules if (r.name, r.hub.lower()) not in configured]
        self.save()

    def save(self) -> None:
        if not self._save_postponed:
            self.storage.save(self.record)

    def record(self) -> NamespaceRecord:
        """Everything but the events, for the storage."""
        return NamespaceRecord(tuple(hub.record for hub in self.hubs), tuple(self.rules))

    @contextmanager
    def saved_once(self) -> Iterator[None]:
        """Store several changes together, at the end of the block."""
        self._save_postponed = True
        try:
            yield
        finally:
            self._save_postponed = False
            self.save()

    def close(self) -> None:
        """Store what is not stored yet, and close the storage."""
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
        group_names = [*groups]
        for group in group_names:
            check_group_name(group)
        if name.lower() in self._hubs:
            raise HubExists(f"hub {name!r} already exists; delete it first or choose another name")
        if self.tier is not None:
            check_hub_quota(self.tier, name, len(self._hubs), partitions, 1 + len(group_names))
        created_ms = now_ms(self.clock)
        hub_id = self.storage.new_hub_id()
        hub = self.add_hub(HubRecord(hub_id, name, partitions, created_ms, tuple(group_names)))
        self.save()
        return hub

    def add_hub(self, record: HubRecord) -> EventHub:
        logs = [
            self.storage.open_log(record.id, number, self.retention)
            for number in range(record.partitions)
        ]
        hub = self._hubs[record.name.lower()] = EventHub(record, logs)
        self._nonempty.update(p for p in hub.partitions if not p.log.empty)
        return hub

    def grow_hub(self, name: str, partitions: int) -> EventHub:
        """Add partitions to a hub. Events with a key may go to another partition from then on."""
        hub = self.hub(name)
        current = len(hub.partitions)
        check_partitions(name, partitions)
        if partitions < current:
            raise OptionError(
                f"hub {hub.name!r} has {current} partitions; the number can only grow "
                f"(got {partitions})"
            )
        if self.tier is not None:
            check_partition_quota(self.tier, hub.name, partitions)
        hub.partitions += [
            Partition(number, self.storage.open_log(hub.id, number, self.retention))
            for number in range(current, partitions)
        ]
        self.save()
        return hub

    def hub(self, name: str) -> EventHub:
        hub = self._hubs.get(name.lower())
        if hub is None:
            known = ", ".join(hub.name for hub in self.hubs[:10]) or "none"
            raise HubNotFound(f"hub {name!r} not found; existing hubs: {known}")
        return hub

    def delete_hub(self, name: str) -> None:
        """Delete a hub with its events; its links are detached."""
        hub = self.hub(name)
        del self._hubs[name.lower()]
        self._nonempty.difference_update(hub.partitions)
        self.rules = [rule for rule in self.rules if rule.hub.lower() != hub.name.lower()]
        close_all(
            [*hub.readers(), *hub.senders], f"The messaging entity '{hub.name}' has been deleted."
        )
        # First the record, then the files: after a crash in between, files are left over, but every
        # hub in the record is complete.
        self.save()
        for partition in hub.partitions:
            partition.log.close()
        self.storage.delete_hub(hub.id)

    def create_group(self, hub_name: str, group: str) -> None:
        check_group_name(group)
        hub = self.hub(hub_name)
        if group.lower() in hub.groups:
            raise HubExists(f"consumer group {group!r} already exists in hub {hub.name!r}")
        if self.tier is not None:
            check_group_quota(self.tier, hub.name, group, len(hub.groups))
        hub.groups[group.lower()] = group
        self.save()

    def delete_group(self, hub_name: str, group: str) -> None:
        hub = self.hub(hub_name)
        if group.lower() == DEFAULT_GROUP.lower():
            raise OptionError(
                f"consumer group {DEFAULT_GROUP} is part of every hub and cannot be deleted"
            )
        if group.lower() not in hub.groups:
            known = ", ".join(hub.groups.values())
            raise HubNotFound(
                f"consumer group {group!r} not found in hub {hub.name!r}; it has: {known}"
            )
        del hub.groups[group.lower()]
        self.save()
        close_all(
            list(hub.readers(group.lower())), f"The consumer group '{group}' has been deleted."
        )

    def add_rule(self, rule: AccessRule) -> None:
        """Add an access rule; it replaces one with the same name and hub."""
        key = (rule.name, rule.hub.lower())
        self.rules = [r for r in self.rules if (r.name, r.hub.lower()) != key]
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
        """Append a batch; `committed` is called after it is safe, or has failed.

        In memory that is at once. A log on disk calls it after the write has reached the disk.
        Readers are woken only then, so that no reader gets an event that a crash could still lose.
        """

        def done(failure: AmqpError | None) -> None:
            committed(failure)
            if failure is None:
                partition.wake()

        self._nonempty.add(partition)
        partition.log.publish(batch, now_ms(self.clock), publisher, done)

    def expire(self) -> None:
        """Apply retention to every partition that holds events."""
        now = now_ms(self.clock)
        for partition in list(self._nonempty):
            partition.log.expire(now)
            if partition.log.empty:
                self._nonempty.discard(partition)


def close_all(links: Iterable[OpenLink], description: str) -> None:
    for link in list(links):
        link.close("amqp:not-found", description)


def check_partitions(name: str, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise OptionError(f"hub {name!r} needs 1 to {PARTITIONS_MAX} partitions (got {partitions})")


def ensure_hubs(namespace: Namespace, hubs: Mapping[str, int]) -> None:
    """Create the hubs that do not exist; existing ones must have the same number of partitions."""
    known = {hub.name.lower(): len(hub.partitions) for hub in namespace.hubs}
    with namespace.saved_once():
        for name, partitions in hubs.items():
            current = known.get(name.lower())
            if current is None:
                namespace.create_hub(name, partitions)
            elif current != partitions:
                raise OptionError(
                    f"hub {name!r} already has {current} partitions (got {partitions}); "
                    "use that number, or delete the hub first"
                )


def ensure_groups(namespace: Namespace, groups: Mapping[str, Iterable[str]]) -> None:
    """Create the consumer groups that do not exist, given by hub name."""
    with namespace.saved_once():
        for hub, names in groups.items():
            for name in names:
                if name.lower() not in namespace.hub(hub).groups:
                    namespace.create_group(hub, name)

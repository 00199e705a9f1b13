"""A namespace and its parts: hubs, partitions, consumer groups, access rules.

Nothing here uses sockets. Links register with the partition that they read or the hub that they
send to, so that a new event wakes its readers and the deletion of a hub detaches its links.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Protocol

from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.errors import AmqpError
from pumphouse.events import NEVER_MS
from pumphouse.hub import changes, epochs
from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.access.token_issuer import TokenIssuer
from pumphouse.hub.annotations import Batch
from pumphouse.hub.emulator_config import HubSpec
from pumphouse.hub.faults.rules import Faults
from pumphouse.hub.limits.quotas import Meter, check_retention, check_units, find_tier
from pumphouse.hub.options import LimitOptions, Retention
from pumphouse.hub.routing import partition_for
from pumphouse.hub.storage.base import Log, MemoryStorage, Storage
from pumphouse.hub.storage.enqueued_times import CLOCK_BEHIND_MS_MAX
from pumphouse.hub.storage.records import HubRecord, NamespaceRecord, not_found
from pumphouse.logs import line

log = logging.getLogger("pumphouse.hub")

MESSAGE_BYTES_MAX = 1024 * 1024
NAMES_IN_ERROR = 10
CHECK_CLOCK = "check the time service of the machine; some events have a time that is too late"

Complete = Callable[[NamespaceRecord], NamespaceRecord]


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

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "events_received",
        "events_sent",
        "evicted",
        "id",
        "log",
        "readers",
        "throttled",
    )

    def __init__(self, number: int, log: Log) -> None:
        self.id = str(number)
        self.log = log
        self.readers: dict[str, list[OpenReader]] = {}  # by consumer group, lower case
        self.events_received = self.bytes_received = 0  # since the start
        self.events_sent = self.bytes_sent = 0  # to all readers, including those that have left
        self.evicted: Counter[str] = Counter()  # readers, by consumer group
        self.throttled = 0  # waits of readers for throughput units

    def admit(self, group: str, link: OpenReader) -> None:
        """Add a reader and evict others, as the epoch rules decide; AmqpError if it is refused."""
        present = self.readers.get(group, [])
        decision = epochs.decide([other.reader for other in present], link.reader)
        if not decision.admit:
            raise AmqpError(decision.condition, decision.text)
        links = {other.reader.id: other for other in present}
        for reader_id, text in zip(decision.evict, decision.evict_errors, strict=True):
            links[reader_id].close(decision.condition, text)
        self.evicted[group] += len(decision.evict)
        self.readers.setdefault(group, []).append(link)

    def evict(self, group: str) -> int:
        """Evict a group's readers as a new reader with the next epoch does; returns how many."""
        present = list(self.readers.get(group, ()))
        highest = max((link.reader.epoch or 0 for link in present), default=0)
        evictor = epochs.Reader(id=0, name="thief", epoch=highest + 1)
        decision = epochs.decide([link.reader for link in present], evictor)
        for link, text in zip(present, decision.evict_errors, strict=True):
            link.close(decision.condition, text)
        self.evicted[group] += len(present)
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

    def __init__(self, record: HubRecord) -> None:
        self.id = record.id
        self.name = record.name
        self.created_ms = record.created_ms
        self.partitions: list[Partition] = []
        self.groups = record.group_names
        self.senders: set[OpenLink] = set()
        self.rejected: Counter[str] = Counter()  # sends, by error condition
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

    def add_partitions(self, logs: Iterable[Log]) -> None:
        first = len(self.partitions)
        self.partitions += [Partition(number, log) for number, log in enumerate(logs, first)]

    def set_groups(self, groups: Mapping[str, str]) -> None:
        """Change the consumer groups; the readers of a removed one are detached."""
        removed = self.groups.keys() - groups.keys()
        self.groups, old = dict(groups), self.groups
        for group in removed:
            links = list(self.readers(group))
            close_all(links, f"The consumer group '{old[group]}' has been deleted.")

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
        self.rules = [changes.checked_rule(rule) for rule in rules]
        self.faults = faults if faults is not None else Faults()
        self.clock: Clock = clock or SystemClock()
        self.retention = retention or Retention()
        self.issuer = issuer
        self.set_limits(limits or LimitOptions())
        self.storage: Storage = MemoryStorage()
        self._hubs: dict[str, EventHub] = {}
        self._nonempty: set[Partition] = set()  # partitions with events, for retention
        self._newest_ms = NEVER_MS  # the time of the newest event, by the clock
        self.partition_count = 0  # of all hubs
        self.revision = 0  # changes with every change of hubs, groups or rules
        # Called with the name of a hub and the seconds after which a batch was safe.
        self.on_append: Callable[[str, float], None] | None = None

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

    def open(self, storage: Storage, complete: Complete = lambda record: record) -> None:
        """Load what a storage holds, and what `complete` adds to it; later changes go there too.

        The added part is stored at once, so that a failed start leaves the storage as it was.
        """
        self.storage = storage
        stored = storage.load() or NamespaceRecord()
        created_before = [
            replace(hub.record, id=storage.new_hub_id())
            for hub in self.hubs
            if stored.find(hub.name) is None
        ]
        added_rules = [
            rule
            for rule in stored.rules
            if not any(changes.is_same(rule, configured) for configured in self.rules)
        ]
        record = NamespaceRecord((*stored.hubs, *created_before), (*self.rules, *added_rules))
        hubs, self._hubs = self._hubs, {}  # their logs are of another storage
        self._nonempty.clear()
        try:
            self.commit(complete(record))
        except BaseException:
            self._hubs = hubs
            raise
        self._newest_ms = max((p.log.last_ms for p in self._nonempty), default=NEVER_MS)

    def commit(self, record: NamespaceRecord) -> None:
        """Store a changed record and then follow it: no client sees what a restart would lose.

        ChangeNotStored if the record cannot be stored; nothing has changed then.
        """
        logs = {hub.name: self.open_logs(hub) for hub in record.hubs}
        try:
            self.storage.save(record)
        except BaseException:
            for opened in chain.from_iterable(logs.values()):
                opened.close()
            raise
        self.follow(record, logs)

    def open_logs(self, hub: HubRecord) -> list[Log]:
        """The logs of the partitions that a hub does not have yet. The first write makes files."""
        known = self._hubs.get(hub.name.lower())
        first = 0 if known is None else len(known.partitions)
        return [
            self.storage.open_log(hub.id, number, self.retention)
            for number in range(first, hub.partitions)
        ]

    def follow(self, record: NamespaceRecord, logs: Mapping[str, Sequence[Log]]) -> None:
        """Change hubs, groups and rules to those of a record that is stored."""
        self.rules = list(record.rules)
        names = {hub.name.lower() for hub in record.hubs}
        for hub in [hub for name, hub in self._hubs.items() if name not in names]:
            self.remove_hub(hub)
        for stored in record.hubs:
            hub = self._hubs.setdefault(stored.name.lower(), EventHub(stored))
            hub.add_partitions(logs[stored.name])
            hub.set_groups(stored.group_names)
            self._nonempty.update(p for p in hub.partitions if not p.log.empty)
        self.partition_count = sum(len(hub.partitions) for hub in self._hubs.values())
        self.revision += 1

    def remove_hub(self, hub: EventHub) -> None:
        """Remove a hub that is not stored any more: detach its links, delete its events."""
        del self._hubs[hub.name.lower()]
        self._nonempty.difference_update(hub.partitions)
        links = [*hub.readers(), *hub.senders]
        close_all(links, f"The messaging entity '{hub.name}' has been deleted.")
        for partition in hub.partitions:
            partition.log.close()
        self.storage.delete_hub(hub.id)

    def record(self) -> NamespaceRecord:
        """Everything but the events, for the storage."""
        return NamespaceRecord(tuple(hub.record for hub in self.hubs), tuple(self.rules))

    def close(self) -> None:
        """Store what is not stored yet, and close the storage."""
        for hub in self.hubs:
            for partition in hub.partitions:
                partition.log.close()
        self.storage.close()

    # -- hubs and groups --------------------------------------------------------------------------

    @property
    def hubs(self) -> Sequence[EventHub]:
        return sorted(self._hubs.values(), key=lambda hub: hub.name)

    def hub(self, name: str) -> EventHub:
        """The hub of this name; HubNotFound if there is none."""
        hub = self.find_hub(name)
        if hub is None:
            # Not all names: clients can ask often, and there may be thousands of hubs.
            examples = islice(self._hubs.values(), NAMES_IN_ERROR)
            raise not_found(name, sorted(hub.name for hub in examples))
        return hub

    def find_hub(self, name: str) -> EventHub | None:
        """The hub of this name; None if there is none."""
        return self._hubs.get(name.lower())

    def new_hub(self, name: str, partitions: int, groups: Iterable[str] = ()) -> HubRecord:
        """The record of a hub that is created now."""
        hub_id = self.storage.new_hub_id()
        return HubRecord(hub_id, name, partitions, now_ms(self.clock), tuple(groups))

    def create_hub(self, name: str, partitions: int, groups: Iterable[str] = ()) -> EventHub:
        hub = self.new_hub(name, partitions, groups)
        self.commit(changes.create_hub(self.record(), hub, self.tier))
        return self.hub(name)

    def grow_hub(self, name: str, partitions: int) -> EventHub:
        """Add partitions to a hub. Events with a key may go to another partition from then on."""
        self.commit(changes.grow_hub(self.record(), name, partitions, self.tier))
        return self.hub(name)

    def delete_hub(self, name: str) -> None:
        """Delete a hub with its events; its links are detached."""
        # First the record, then the files: after a crash in between, files are left over, but every
        # hub in the record is complete.
        self.commit(changes.delete_hub(self.record(), name))

    def create_group(self, hub_name: str, group: str) -> None:
        self.commit(changes.create_group(self.record(), hub_name, group, self.tier))

    def ensure_groups(self, hub_name: str, groups: Iterable[str]) -> None:
        """Create the groups that do not exist, all or none."""
        record = changes.ensure_groups(self.record(), hub_name, groups, self.tier)
        if record != self.record():
            self.commit(record)

    def delete_group(self, hub_name: str, group: str) -> None:
        """Delete a consumer group; its readers are detached."""
        self.commit(changes.delete_group(self.record(), hub_name, group))

    def add_rule(self, rule: AccessRule) -> None:
        """Add an access rule; it replaces one with the same name and hub."""
        self.commit(changes.add_rule(self.record(), rule))

    # -- events -----------------------------------------------------------------------------------

    def publish(
        self,
        partition: Partition,
        batch: Batch,
        publisher: str | None,
        committed: Callable[[AmqpError | None], None],
    ) -> None:
        """Append a batch; `committed` is called after it is safe, or has failed.

        A log in memory calls it at once. A log on disk calls it after the write is as safe as the
        sync mode promises. Readers are woken only then, so that they get no event that its
        producer may have to send again.
        """

        def done(failure: AmqpError | None) -> None:
            committed(failure)
            if failure is None:
                partition.wake()

        if self.storage.failure is not None:
            committed(self.storage.failure)
            return
        self._nonempty.add(partition)
        partition.log.publish(batch, self.enqueued_ms(), publisher, done)

    def enqueued_ms(self) -> int:
        """The time for new events. A clock that was set back is logged once, and then followed."""
        now = now_ms(self.clock)
        if self._newest_ms - now > CLOCK_BEHIND_MS_MAX:
            behind_s = (self._newest_ms - now) / 1000
            log.warning("%s", line("clock_set_back", behind_s=behind_s, todo=CHECK_CLOCK))
            self._newest_ms = now
        self._newest_ms = max(self._newest_ms, now)
        return now

    def expire(self) -> None:
        """Apply retention to every partition that holds events, unless the storage has failed."""
        if self.storage.failure is not None:
            return
        now = now_ms(self.clock)
        for partition in list(self._nonempty):
            partition.log.expire(now)
            if partition.log.empty:
                self._nonempty.discard(partition)


def close_all(links: Iterable[OpenLink], description: str) -> None:
    for link in list(links):
        link.close("amqp:not-found", description)


def with_hubs(
    namespace: Namespace, record: NamespaceRecord, hubs: Iterable[HubSpec]
) -> NamespaceRecord:
    """The record with the hubs and consumer groups that it does not have yet.

    OptionError if an existing hub has another number of partitions.
    """
    known, tier = record, namespace.tier
    for spec in hubs:
        if (hub := known.find(spec.name)) is not None:
            changes.check_same_partitions(hub, spec.partitions)
        else:
            new_hub = namespace.new_hub(spec.name, spec.partitions)
            record = changes.create_hub(record, new_hub, tier)
        record = changes.ensure_groups(record, spec.name, spec.groups, tier)
    return record

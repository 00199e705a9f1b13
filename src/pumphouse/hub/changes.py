"""Changes of a namespace's record: each checks a change, and returns the record after it.

Nothing is stored or visible yet. `Namespace.commit` stores a changed record, and only then lets the
hubs follow it.

    create_hub, delete_group ... -> changed record -> storage.save -> Namespace.follow
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pumphouse.errors import HubExists, HubNotFound, OptionError
from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.limits.quotas import (
    PARTITIONS_MAX,
    Tier,
    check_group_quota,
    check_hub_quota,
    check_partition_quota,
)
from pumphouse.hub.routing import DEFAULT_GROUP, check_group_name, check_hub_name
from pumphouse.hub.storage.records import HubRecord, NamespaceRecord


def create_hub(record: NamespaceRecord, hub: HubRecord, tier: Tier | None) -> NamespaceRecord:
    check_hub_name(hub.name)
    check_partitions(hub.name, hub.partitions)
    for group in hub.groups:
        check_group_name(group)
    if record.find(hub.name) is not None:
        raise HubExists(f"hub {hub.name!r} already exists; delete it first or choose another name")
    if tier is not None:
        check_hub_quota(tier, hub.name, len(record.hubs), hub.partitions, 1 + len(hub.groups))
    return record.with_hub(replace(hub, groups=tuple(hub.group_names.values())))


def grow_hub(
    record: NamespaceRecord, name: str, partitions: int, tier: Tier | None
) -> NamespaceRecord:
    hub = record.hub(name)
    check_partitions(name, partitions)
    if partitions < hub.partitions:
        raise OptionError(
            f"hub {hub.name!r} has {hub.partitions} partitions; the number can only grow "
            f"(got {partitions})"
        )
    if tier is not None:
        check_partition_quota(tier, hub.name, partitions)
    return record.with_hub(replace(hub, partitions=partitions))


def delete_hub(record: NamespaceRecord, name: str) -> NamespaceRecord:
    """The record without the hub and its access rules."""
    deleted = record.hub(name).name.lower()
    return NamespaceRecord(
        tuple(hub for hub in record.hubs if hub.name.lower() != deleted),
        tuple(rule for rule in record.rules if rule.hub.lower() != deleted),
    )


def create_group(
    record: NamespaceRecord, hub_name: str, group: str, tier: Tier | None
) -> NamespaceRecord:
    check_group_name(group)
    hub = record.hub(hub_name)
    groups = hub.group_names
    if group.lower() in groups:
        raise HubExists(f"consumer group {group!r} already exists in hub {hub.name!r}")
    if tier is not None:
        check_group_quota(tier, hub.name, group, len(groups))
    return record.with_hub(replace(hub, groups=(*groups.values(), group)))


def ensure_groups(
    record: NamespaceRecord, hub_name: str, groups: Iterable[str], tier: Tier | None
) -> NamespaceRecord:
    """The record with the groups that the hub does not have yet."""
    for group in groups:
        if group.lower() not in record.hub(hub_name).group_names:
            record = create_group(record, hub_name, group, tier)
    return record


def delete_group(record: NamespaceRecord, hub_name: str, group: str) -> NamespaceRecord:
    hub = record.hub(hub_name)
    groups = hub.group_names
    if group.lower() == DEFAULT_GROUP.lower():
        raise OptionError(
            f"consumer group {DEFAULT_GROUP} is part of every hub and cannot be deleted"
        )
    if group.lower() not in groups:
        known = ", ".join(groups.values())
        raise HubNotFound(
            f"consumer group {group!r} not found in hub {hub.name!r}; it has: {known}"
        )
    del groups[group.lower()]
    return record.with_hub(replace(hub, groups=tuple(groups.values())))


def add_rule(record: NamespaceRecord, rule: AccessRule) -> NamespaceRecord:
    """The record with an access rule, which replaces one with the same name and hub."""
    checked_rule(rule)
    others = [other for other in record.rules if not is_same(other, rule)]
    return replace(record, rules=(*others, rule))


def is_same(rule: AccessRule, other: AccessRule) -> bool:
    """Whether two rules cannot exist together: they have the same name and hub."""
    return (rule.name, rule.hub.lower()) == (other.name, other.hub.lower())


def checked_rule(rule: AccessRule) -> AccessRule:
    """The rule; OptionError if its hub has an invalid name. The hub need not exist yet."""
    if rule.hub:
        check_hub_name(rule.hub)
    return rule


def check_partitions(name: str, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise OptionError(f"hub {name!r} needs 1 to {PARTITIONS_MAX} partitions (got {partitions})")


def check_same_partitions(hub: HubRecord, partitions: int) -> None:
    """OptionError if a hub that exists is requested with another number of partitions."""
    if hub.partitions != partitions:
        raise OptionError(
            f"hub {hub.name!r} already has {hub.partitions} partitions (got {partitions}); "
            "use that number, or delete the hub first"
        )

"""The record of a namespace: its hubs, consumer groups and access rules, and its form in JSON."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pumphouse.errors import HubNotFound
from pumphouse.hub.access.auth import AccessRule, Claim
from pumphouse.hub.routing import DEFAULT_GROUP

FORMAT = 1


@dataclass(frozen=True, slots=True)
class HubRecord:
    """The stored description of a hub."""

    id: str  # 32 hexadecimal digits
    name: str
    partitions: int
    created_ms: int
    groups: tuple[str, ...]

    @property
    def group_names(self) -> dict[str, str]:
        """The names of all groups, $Default too, by their names in lower case."""
        return {group.lower(): group for group in (DEFAULT_GROUP, *self.groups)}


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """Everything that is stored besides events."""

    hubs: tuple[HubRecord, ...] = ()
    rules: tuple[AccessRule, ...] = field(default=(), repr=False)

    def find(self, name: str) -> HubRecord | None:
        return next((hub for hub in self.hubs if hub.name.lower() == name.lower()), None)

    def hub(self, name: str) -> HubRecord:
        """The hub of this name, in any case; HubNotFound if there is none."""
        hub = self.find(name)
        if hub is None:
            raise not_found(name, [hub.name for hub in self.hubs])
        return hub

    def with_hub(self, changed: HubRecord) -> NamespaceRecord:
        """A copy with this hub, in place of one with its name."""
        others = [hub for hub in self.hubs if hub.name.lower() != changed.name.lower()]
        return replace(self, hubs=tuple(sorted([*others, changed], key=lambda hub: hub.name)))


def not_found(name: str, known: list[str]) -> HubNotFound:
    return HubNotFound(f"hub {name!r} not found; existing hubs: {', '.join(known[:10]) or 'none'}")


def checksum(data: Mapping[str, Any]) -> int:
    """A checksum of a record, independent of its layout in the file."""
    return zlib.crc32(json.dumps({**data, "crc32": 0}, sort_keys=True).encode())


def verify_checksum(data: Mapping[str, Any]) -> None:
    """ValueError if the checksum does not match. To edit the file by hand, remove `crc32`."""
    if "crc32" in data and data["crc32"] != checksum(data):
        raise ValueError(
            "the checksum does not match: the file is damaged, or was edited without removing crc32"
        )


def encode_namespace(record: NamespaceRecord) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "hubs": [
            {
                "id": hub.id,
                "name": hub.name,
                "partitions": hub.partitions,
                "created_ms": hub.created_ms,
                "groups": list(hub.groups),
            }
            for hub in record.hubs
        ],
        "rules": [
            {
                "name": rule.name,
                "key": rule.key,
                "secondary_key": rule.secondary_key,
                "claims": sorted(rule.claims),
                "hub": rule.hub,
            }
            for rule in record.rules
        ],
    }


def decode_namespace(data: Mapping[str, Any]) -> NamespaceRecord:
    if data["format"] != FORMAT:
        raise ValueError(f"unknown format {data['format']}: this version reads format {FORMAT}")
    return NamespaceRecord(
        hubs=tuple(
            HubRecord(
                bytes.fromhex(hub["id"]).hex(),
                str(hub["name"]),
                int(hub["partitions"]),
                int(hub["created_ms"]),
                tuple(map(str, hub["groups"])),
            )
            for hub in data["hubs"]
        ),
        rules=tuple(
            AccessRule(
                rule["name"],
                rule["key"],
                frozenset(map(Claim, rule["claims"])),
                rule["hub"],
                rule["secondary_key"],
            )
            for rule in data["rules"]
        ),
    )

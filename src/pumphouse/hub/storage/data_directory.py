"""The data directory of a durable hub, locked so that only one process uses it.

    DIR/lock             locked by the process that runs the hub
    DIR/namespace.json   hubs, consumer groups, access rules (with keys: mode 0600)
    DIR/hubs/ID/N/       the segments of partition N of the hub with that id

A hub gets a random id when it is created. A hub that is deleted and created again under the same
name therefore never uses the old files.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumphouse.errors import DataDirectoryError
from pumphouse.hub.access.auth import AccessRule, Claim
from pumphouse.hub.storage.segment_file import write_atomically

FORMAT = 1
DELETED = ".deleted"  # suffix of a hub's directory while it is being deleted


@dataclass(frozen=True, slots=True)
class HubRecord:
    """The stored description of a hub."""

    id: str  # 32 hexadecimal digits
    name: str
    partitions: int
    created_ms: int
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """Everything that is stored besides events."""

    hubs: tuple[HubRecord, ...] = ()
    rules: tuple[AccessRule, ...] = field(default=(), repr=False)


class DataDirectory:
    """A data directory, locked until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as failure:
            raise DataDirectoryError(
                f"data directory {path} cannot be used: {failure.strerror}"
            ) from None
        self.take_lock()

    def take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock)
            raise DataDirectoryError(
                f"data directory {self.path} is in use by process {holder}; "
                "stop that hub, or give this one another directory"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._lock)

    def partition(self, hub: str, number: int) -> Path:
        return self.path / "hubs" / hub / str(number)

    def delete_hub(self, hub: str) -> None:
        """Remove a hub's events. Renamed first, so that a later start completes the deletion."""
        directory, renamed = self.path / "hubs" / hub, self.path / "hubs" / f"{hub}{DELETED}"
        if directory.exists():
            directory.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)

    def unknown_entries(self, known: Sequence[str]) -> list[str]:
        """The names below hubs/ that are not ids of known hubs."""
        hubs = self.path / "hubs"
        return (
            sorted(p.name for p in hubs.iterdir() if p.name not in known) if hubs.is_dir() else []
        )

    # -- hubs, groups and rules -------------------------------------------------------------------

    def load(self) -> NamespaceRecord | None:
        """The last saved record; None in a new directory."""
        path = self.path / "namespace.json"
        if not path.exists():
            if self.unknown_entries([]):
                raise DataDirectoryError(
                    f"{self.path} holds events but no namespace.json, which lists their hubs; "
                    "restore that file, or start with an empty directory"
                )
            return None
        try:
            data = json.loads(path.read_text())
            verify_checksum(data)
            return decode_namespace(data)
        except (OSError, ValueError, KeyError, TypeError) as failure:
            raise DataDirectoryError(
                f"{path} cannot be read ({type(failure).__name__}: {failure}); "
                "restore it, or start with an empty directory"
            ) from None

    def save(self, record: NamespaceRecord) -> None:
        data = encode_namespace(record)
        text = json.dumps({**data, "crc32": checksum(data)}, indent=2)
        write_atomically(self.path / "namespace.json", text.encode())


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

"""Where files of records lie: a folder on this machine, or a container of Azure Blob Storage.

Both do the same five things, among them the one that makes a manifest possible: replace a file only
if it is still the one that was read.

    --storage -> open_folder -> LocalFolder, BlobFolder -> Archive
                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pumphouse.errors import ConnectionFailed, OptionError, RecordsContended
from pumphouse.leases.store_url import StoreUrl, parse_store_url

CALL_S = 60  # for one answer of a storage account
_BLOB = re.compile(
    r"^blob:|(^|[;:])\s*(AccountName|BlobEndpoint|UseDevelopmentStorage)\s*=", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file in a listing."""

    name: str
    written_ms: int


class Folder(Protocol):
    """Files by names with slashes in them. A write is there as a whole or not at all."""

    def read(self, name: str) -> tuple[bytes, str] | None:
        """What it holds and its tag, which changes with it; None if there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Write it, whatever was there."""

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        """Write it if it still has this tag (None: if there is none); its new tag.

        RecordsContended if somebody else was faster.
        """

    def delete(self, name: str) -> None:
        """Remove it, if it is there."""

    def list(self, prefix: str) -> list[FileInfo]:
        """The files whose names begin so."""


def open_folder(place: str | Path, credential: Any = None) -> Folder:
    """The folder that is meant: a path, blob://ACCOUNT/CONTAINER, or a connection string."""
    if isinstance(place, Path) or not _BLOB.search(place):
        return LocalFolder(Path(place))
    return BlobFolder(parse_store_url(place), credential)


def contended(name: str) -> RecordsContended:
    return RecordsContended(
        f"{name} was changed by somebody else: only one pipeline may record into a place. "
        "Stop the other one, or record elsewhere"
    )


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __repr__(self) -> str:
        return f"<LocalFolder {self.root}>"

    def read(self, name: str) -> tuple[bytes, str] | None:
        try:
            data = (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        return data, tag_of(data)

    def write(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        sync_folder(path.parent)

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        with self._alone():
            found = self.read(name)
            if (found and found[1]) != tag:
                raise contended(name)
            self.write(name, data)
        return tag_of(data)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def list(self, prefix: str) -> list[FileInfo]:
        there, found = self.root / prefix.rpartition("/")[0], []
        for path in there.rglob("*"):
            name = path.relative_to(self.root).as_posix()
            if name.startswith(prefix) and path.is_file() and not path.name.startswith("."):
                found.append(FileInfo(name, int(path.stat().st_mtime * 1000)))
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While other processes of this machine wait; the kernel lets go if we die."""
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class BlobFolder:
    """A container of a storage account, which is made if it is not there."""

    def __init__(self, place: StoreUrl, credential: Any = None) -> None:
        if place.kind != "blob":
            raise OptionError(f"records are kept in a folder or in blobs, not in {place.kind}:")
        self._container = open_container(place, credential)
        self._ensure()

    def __repr__(self) -> str:
        return f"<BlobFolder {self._container.container_name}>"

    def _ensure(self) -> None:
        from azure.core.exceptions import AzureError, ResourceExistsError

        try:
            self._container.create_container(timeout=CALL_S, retry_total=1)
        except ResourceExistsError:
            return
        except AzureError as failed:
            where = self._container.primary_hostname
            why = (str(failed).splitlines() or [type(failed).__name__])[0]
            raise ConnectionFailed(f"no storage at {where} for us: {why}") from None

    def read(self, name: str) -> tuple[bytes, str] | None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            answer = self._container.download_blob(name, timeout=CALL_S)
            return answer.readall(), answer.properties.etag
        except ResourceNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        self._container.upload_blob(name, data, overwrite=True, timeout=CALL_S)

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceExistsError, ResourceModifiedError

        if tag is None:
            expected: dict[str, Any] = {"overwrite": False}
        else:
            same = MatchConditions.IfNotModified
            expected = {"overwrite": True, "etag": tag, "match_condition": same}
        try:
            blob = self._container.get_blob_client(name)
            said = blob.upload_blob(data, timeout=CALL_S, **expected)
        except (ResourceExistsError, ResourceModifiedError):
            raise contended(name) from None
        return str(said["etag"])

    def delete(self, name: str) -> None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            self._container.delete_blob(name, timeout=CALL_S)
        except ResourceNotFoundError:
            return

    def list(self, prefix: str) -> list[FileInfo]:
        there = self._container.list_blobs(name_starts_with=prefix, timeout=CALL_S)
        return [FileInfo(one.name, int(one.last_modified.timestamp() * 1000)) for one in there]


def open_container(place: StoreUrl, credential: Any) -> Any:
    try:
        from azure.storage.blob import ContainerClient, ExponentialRetry
    except ImportError:
        raise OptionError(
            "records in Azure Blob Storage need a package: pip install 'pumphouse[azure]'"
        ) from None
    # After some ten seconds; the usual minute and a half is too long to know nothing.
    soon = ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=3)
    waits: dict[str, Any] = {"connection_timeout": CALL_S, "read_timeout": CALL_S}
    waits["retry_policy"] = soon
    if place.connection_string:
        return ContainerClient.from_connection_string(
            place.connection_string, place.container, credential=credential, **waits
        )
    if credential is None:
        from azure.identity import DefaultAzureCredential

        credential = DefaultAzureCredential()
    return ContainerClient(place.account_url, place.container, credential=credential, **waits)


def tag_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sync_folder(path: Path) -> None:
    """A new name is safe on disk only when its folder is."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

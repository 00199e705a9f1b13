"""The folders of the records: on this machine, or a container of Azure Blob Storage.

Both offer the same five operations. `replace` writes a file only if it has not changed since it was
read, so that one writer never overwrites the manifest of another.

    --storage -> open_folder -> LocalFolder, BlobFolder -> Archive
                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pumphouse.errors import ConnectionFailed, OptionError, RecordsContended
from pumphouse.leases.store_url import StoreUrl, parse_store_url
from pumphouse.logs import quieten
from pumphouse.private_files import create_private_folder, private_opener

CALL_S = 60  # for one response of a storage account
_BLOB = re.compile(
    r"^blob:|(^|[;:])\s*(AccountName|BlobEndpoint|UseDevelopmentStorage)\s*=", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file in a listing."""

    name: str
    written_ms: int


class Folder(Protocol):
    """Files by names that may contain slashes. Writes are atomic."""

    def read(self, name: str) -> tuple[bytes, str] | None:
        """The content of a file, and a tag that changes with the content; None if it is missing."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file, overwriting any earlier one."""

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        """Write a file if it has this tag (None: if it is missing), and return its new tag.

        Raises RecordsContended if another writer has changed it.
        """

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""

    def list(self, prefix: str) -> list[FileInfo]:
        """The files whose names start with a prefix."""


def open_folder(location: str | Path, credential: Any = None) -> Folder:
    """Open a path, blob://ACCOUNT/CONTAINER, or a storage connection string."""
    if is_local(location):
        return LocalFolder(Path(location))
    return BlobFolder(parse_store_url(location), credential)


def is_local(location: str | Path) -> bool:
    """Whether this is a folder of this machine."""
    return isinstance(location, Path) or not _BLOB.search(location)


def contended(name: str) -> RecordsContended:
    return RecordsContended(
        f"{name} was changed by another writer: only one pipeline may record into a folder. "
        "Stop the other pipeline, or use another folder"
    )


class LocalFolder:
    """A folder on this machine."""

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
        create_private_folder(path.parent)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with open(draft, "wb", opener=private_opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        sync_folder(path.parent)

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        with self._locked():
            stored = self.read(name)
            if (stored and stored[1]) != tag:
                raise contended(name)
            self.write(name, data)
        return tag_of(data)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def list(self, prefix: str) -> list[FileInfo]:
        folder, files = self.root / prefix.rpartition("/")[0], []
        for path in folder.rglob("*"):
            name = path.relative_to(self.root).as_posix()
            if name.startswith(prefix) and path.is_file() and not path.name.startswith("."):
                files.append(FileInfo(name, int(path.stat().st_mtime * 1000)))
        return files

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other processes of this machine; the kernel unlocks if this process dies."""
        create_private_folder(self.root)
        with open(self.root / ".lock", "w", opener=private_opener) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class BlobFolder:
    """A container of a storage account, which is created if it is missing."""

    def __init__(self, location: StoreUrl, credential: Any = None) -> None:
        if location.kind != "blob":
            raise OptionError(
                f"invalid storage {location.kind}: use a path, blob://ACCOUNT/CONTAINER or a "
                "storage connection string"
            )
        self._container = open_container(location, credential)
        self._create_if_missing()

    def __repr__(self) -> str:
        return f"<BlobFolder {self._container.container_name}>"

    def _create_if_missing(self) -> None:
        from azure.core.exceptions import AzureError, ResourceExistsError

        try:
            self._container.create_container(timeout=CALL_S, retry_total=1)
        except ResourceExistsError:
            return
        except AzureError as failed:
            where = self._container.primary_hostname
            why = (str(failed).splitlines() or [type(failed).__name__])[0]
            raise ConnectionFailed(
                f"cannot use the storage at {where}: {why}. Check the name of the account and "
                "the credentials"
            ) from None

    def read(self, name: str) -> tuple[bytes, str] | None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            response = self._container.download_blob(name, timeout=CALL_S)
            return response.readall(), response.properties.etag
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
            response = blob.upload_blob(data, timeout=CALL_S, **expected)
        except (ResourceExistsError, ResourceModifiedError):
            raise contended(name) from None
        return str(response["etag"])

    def delete(self, name: str) -> None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            self._container.delete_blob(name, timeout=CALL_S)
        except ResourceNotFoundError:
            return

    def list(self, prefix: str) -> list[FileInfo]:
        blobs = self._container.list_blobs(name_starts_with=prefix, timeout=CALL_S)
        return [FileInfo(blob.name, int(blob.last_modified.timestamp() * 1000)) for blob in blobs]


def open_container(location: StoreUrl, credential: Any) -> Any:
    try:
        from azure.storage.blob import ContainerClient, ExponentialRetry
    except ImportError:
        raise OptionError(
            "records in Azure Blob Storage need the Azure SDK: pip install 'pumphouse[azure]'"
        ) from None
    quieten(logging.getLogger("azure"), logging.WARNING)  # it logs each request as INFO
    # Gives up after about ten seconds; the default is a minute and a half.
    retries = ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=3)
    options: dict[str, Any] = {"connection_timeout": CALL_S, "read_timeout": CALL_S}
    options["retry_policy"] = retries
    if location.connection_string:
        return ContainerClient.from_connection_string(
            location.connection_string, location.container, credential=credential, **options
        )
    if credential is None:
        from azure.identity import DefaultAzureCredential

        credential = DefaultAzureCredential()
    return ContainerClient(
        location.account_url, location.container, credential=credential, **options
    )


def tag_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sync_folder(path: Path) -> None:
    """Flush a folder: a new file name is durable only after that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

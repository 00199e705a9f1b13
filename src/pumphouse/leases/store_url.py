"""Which store is meant by a word on the command line or in an option?

    "sqlite:///var/lib/leases.db" -> parse_store_url -> StoreUrl -> open_store -> SqliteStore
                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

    memory:                              in this process only; gone with it
    sqlite:///PATH, sqlite:PATH, PATH    a file, for the processes of one machine
    blob://ACCOUNT/CONTAINER             Azure Storage, in the form that the official SDKs share
    bloblease://ACCOUNT/CONTAINER        Azure Storage, in the form of the Event Processor Host
    a storage connection string          blob, unless it begins with `bloblease:`; its container is
                                         given apart, or in it as `;Container=NAME`

With blob://ACCOUNT and no credential the machine's own identity is used, as azure-identity finds
it. `sqlite:///PATH` is an absolute path; a relative one is written without the slashes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumphouse.errors import OptionError
from pumphouse.leases.store import CheckpointStore

FORMS = (
    "memory:, sqlite:///PATH, blob://ACCOUNT/CONTAINER, bloblease://ACCOUNT/CONTAINER, or a "
    "storage connection string with ;Container=NAME"
)
BLOB_KINDS = ("blob", "bloblease")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)
_SETTING = re.compile(
    r"(^|[;:])\s*(AccountName|AccountKey|BlobEndpoint|SharedAccessSignature|UseDevelopmentStorage)\s*=",
    re.IGNORECASE,
)
_CONTAINER = re.compile(r"(^|;)\s*Container(Name)?\s*=\s*(?P<name>[^;]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Where rows are kept: a kind of store, and what that kind needs to find them."""

    kind: str  # memory, sqlite, blob or bloblease
    path: str = ""
    account_url: str = ""
    container: str = ""
    connection_string: str = field(default="", repr=False)


def parse_store_url(text: str | Path, container: str = "") -> StoreUrl:
    """What a text means; OptionError, without repeating a secret, if it means nothing."""
    if isinstance(text, Path):
        return StoreUrl("sqlite", path=str(text))
    text = text.strip()
    if _SETTING.search(text):
        return _from_connection_string(text, container)
    if text.lower().startswith("endpoint="):
        raise OptionError(f"a connection string of an event hub is no store; use {FORMS}")
    named = _SCHEME.fullmatch(text)
    if named is None:
        return StoreUrl("sqlite", path=_path(text))
    scheme, rest = named["scheme"].lower(), named["rest"]
    if scheme == "memory" and rest in ("", "//"):
        return StoreUrl("memory")
    if scheme == "sqlite":
        return StoreUrl("sqlite", path=_path(_without_authority(rest)))
    if scheme in BLOB_KINDS and rest.startswith("//"):
        return _from_url(scheme, rest)
    raise OptionError(f"{scheme}: names no store; use {FORMS}")


def _path(text: str) -> str:
    if not text:
        raise OptionError(f"no store is named; use {FORMS}")
    return text


def _without_authority(rest: str) -> str:
    """The path of a sqlite: URL."""
    if rest.startswith("//") and not rest.startswith("///"):
        raise OptionError(
            f"sqlite:{rest} names a machine; write sqlite:///PATH for an absolute path, "
            "sqlite:PATH for a relative one"
        )
    # Four slashes are what other libraries write for an absolute path.
    return re.sub("^//+", "/", rest)


def _from_url(kind: str, rest: str) -> StoreUrl:
    account, _, container = rest[2:].partition("/")
    container = container.rstrip("/")
    if not account or not container or set("/?@#") & set(account + container):
        raise OptionError(f"a {kind} store is written {kind}://ACCOUNT/CONTAINER")
    host = account if "." in account else f"{account}.blob.core.windows.net"
    return StoreUrl(kind, account_url=f"https://{host}", container=container)


def _from_connection_string(text: str, container: str) -> StoreUrl:
    kind, _, rest = text.partition(":")
    if kind.lower() in BLOB_KINDS:
        kind, text = kind.lower(), rest
    else:
        kind = "blob"
    found = _CONTAINER.search(text)
    named = found["name"].strip() if found else ""
    if container and named and container != named:
        raise OptionError(f"two containers are named: {container} and {named}")
    if not container and not named:
        raise OptionError(
            "a storage connection string needs a container: add ;Container=NAME to it"
        )
    string = _CONTAINER.sub("", text).strip("; ")
    return StoreUrl(kind, container=container or named, connection_string=string)


def open_store(
    place: str | Path | StoreUrl, *, container: str = "", credential: Any = None, **options: Any
) -> CheckpointStore:
    """The store that is meant, to be used in an `async with` block.

    `container` and `credential` (of azure-identity, a key or a signature) are for blobs; further
    options are handed to the store itself.
    """
    if not isinstance(place, StoreUrl):
        place = parse_store_url(place, container)
    if place.kind == "memory":
        from pumphouse.leases.stores.memory import MemoryStore

        return MemoryStore(**options)
    if place.kind == "sqlite":
        from pumphouse.leases.stores.sqlite.store import SqliteStore

        return SqliteStore(place.path, **options)
    return _open_blob(place, credential, options)


def _open_blob(place: StoreUrl, credential: Any, options: dict[str, Any]) -> CheckpointStore:
    if place.kind == "blob":
        from pumphouse.leases.stores.blob.store import BlobStore as Store
    else:
        from pumphouse.leases.stores.blob_lease.store import (  # type: ignore[assignment]
            BlobLeaseStore as Store,
        )
    if place.connection_string:
        return Store.from_connection_string(
            place.connection_string, place.container, credential=credential, **options
        )
    if credential is None:
        from pumphouse.leases.stores.blob.machine_identity import MachineIdentity

        credential = MachineIdentity()
    return Store(place.account_url, place.container, credential=credential, **options)

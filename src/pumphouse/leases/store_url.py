"""Store URLs: how a store is written on the command line or in an option, and how it is opened.

    "sqlite:///var/lib/leases.db" -> parse_store_url -> StoreUrl -> open_store -> SqliteStore
                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

    memory:                              in this process only; lost when it ends
    sqlite:///PATH, sqlite:PATH, PATH    a file, for the processes of one machine
    postgres://USER@HOST/DATABASE        a PostgreSQL database; postgresql:// too
    redis://HOST:PORT/DB                 a Redis server; rediss:// with TLS
    blob://ACCOUNT/CONTAINER             Azure Storage, in the format of the official SDKs
    bloblease://ACCOUNT/CONTAINER        Azure Storage, in the format of the Event Processor Host;
                                         ?format=java selects the format, and ?prefix=PREFIX is
                                         before the names of its blobs
    a storage connection string          blob, unless it begins with `bloblease:`; its container is
                                         a separate argument, or in it as `;Container=NAME`

With blob://ACCOUNT/CONTAINER and no credential, azure-identity finds the identity of the machine.
`sqlite:///PATH` is an absolute path; a relative one is written without the slashes.

To add a store, write it in leases/stores, add it to STORE_KINDS below, and add a row to the table
in docs/leases.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from warnings import warn

from pumphouse.errors import OptionError
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.stores.blob_lease.formats import FORMATS
from pumphouse.option_names import unknown_name

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)
_SETTING = re.compile(
    r"(^|[;:])\s*(AccountName|AccountKey|BlobEndpoint|SharedAccessSignature|UseDevelopmentStorage)\s*=",
    re.IGNORECASE,
)
_CONTAINER = re.compile(r"(^|;)\s*Container(Name)?\s*=\s*(?P<name>[^;]*)", re.IGNORECASE)
# The settings of a database driver in one text, which may contain a password.
_DRIVER_SETTING = re.compile(
    r"(^|[\s;])(host|hostaddr|user|username|password|dbname|database)\s*=", re.IGNORECASE
)
BLOB_LEASE_SETTINGS = ("format", "prefix")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed store URL: the kind of store, and the location of its rows."""

    kind: str  # a key of STORE_KINDS
    path: str = ""
    account_url: str = ""
    container: str = ""
    connection_string: str = field(default="", repr=False)  # with secrets; a database URL too
    settings: tuple[tuple[str, str], ...] = ()  # options of the store, in the URL


@dataclass(frozen=True, slots=True)
class StoreKind:
    """How one kind of store is written and opened."""

    form: str  # as errors and docs show it
    parse: Callable[[str, str], StoreUrl | None]  # scheme and the text after its colon
    open: Callable[[StoreUrl, Any, dict[str, Any]], CheckpointStore]
    in_azure_storage: bool = False  # also written as a storage connection string


def parse_store_url(text: str | Path, container: str = "") -> StoreUrl:
    """Parse a store URL. An OptionError never repeats a secret."""
    if isinstance(text, Path):
        return StoreUrl("sqlite", path=str(text))
    text = text.strip()
    if _SETTING.search(text):
        return _from_connection_string(text, container)
    if text.lower().startswith("endpoint="):
        raise OptionError(
            f"the connection string of an event hub is not a store: use {store_forms()}"
        )
    match = _SCHEME.fullmatch(text)
    if match is None:
        return StoreUrl("sqlite", path=_path(text))
    scheme, rest = match["scheme"].lower(), match["rest"]
    kind = STORE_KINDS.get(ALIASES.get(scheme, scheme))
    url = None if kind is None else kind.parse(scheme, rest)
    if url is None:
        problem = f"unknown store {scheme}:" if kind is None else f"invalid {scheme}: store"
        raise OptionError(f"{problem}; use {store_forms()}")
    return url


def open_store(
    url: str | Path | StoreUrl = "", *, container: str = "", credential: Any = None, **options: Any
) -> CheckpointStore:
    """The store of this URL, to be used in an `async with` block.

    `container` and `credential` (of azure-identity, a key or a signature) are for blobs. Further
    options are passed to the store's constructor.
    """
    if "place" in options:  # the name of the argument in version 0.1
        warn("place= of open_store is now url=", DeprecationWarning, stacklevel=2)
        url = options.pop("place")
    if not isinstance(url, StoreUrl):
        url = parse_store_url(url, container)
    return STORE_KINDS[url.kind].open(url, credential, options)


def open_store_of_host(url: str, lease_s: float, name: str) -> CheckpointStore:
    """The store of this URL for a host with leases of `lease_s`; errors call that option `name`.

    In the format of the Event Processor Host each lease is also a lease of Azure on a blob. Both
    must have the same duration.
    """
    parsed = parse_store_url(url)
    if parsed.kind != "bloblease":
        return open_store(parsed)
    from pumphouse.leases.stores.blob_lease.store import whole_lease_s

    return open_store(parsed, lease_s=whole_lease_s(lease_s, name))


def store_forms() -> str:
    """How stores are written, as a list for errors."""
    forms = ", ".join(kind.form for kind in STORE_KINDS.values())
    return f"{forms}, or a storage connection string with ;Container=NAME"


def shared_forms() -> str:
    """The forms of the stores that hosts in several processes can share."""
    forms = [kind.form for name, kind in STORE_KINDS.items() if name != "memory"]
    return ", ".join(forms)


# -- parsing --------------------------------------------------------------------------------------


def _parse_memory(scheme: str, rest: str) -> StoreUrl | None:
    return StoreUrl("memory") if rest in ("", "//") else None


def _parse_sqlite(scheme: str, rest: str) -> StoreUrl:
    if rest.startswith("//") and not rest.startswith("///"):
        raise OptionError(
            f"sqlite:{rest} names a machine: write sqlite:///PATH for an absolute path, "
            "sqlite:PATH for a relative one"
        )
    # Other libraries write four slashes for an absolute path.
    return StoreUrl("sqlite", path=_path(re.sub("^//+", "/", rest)))


def _path(text: str) -> str:
    if not text:
        raise OptionError(f"the store URL has no path: use {store_forms()}")
    if _DRIVER_SETTING.search(text):
        raise OptionError(
            "a store is not a list of NAME=VALUE: use postgres://USER:PASSWORD@HOST/DATABASE, or "
            f"one of {store_forms()}"
        )
    return text


def _parse_postgres(scheme: str, rest: str) -> StoreUrl | None:
    # One spelling, so that stores compare equal.
    url = StoreUrl("postgres", connection_string=f"postgres:{rest}")
    return url if rest[:2] == "//" else None


def _parse_redis(scheme: str, rest: str) -> StoreUrl | None:
    return StoreUrl("redis", connection_string=f"{scheme}:{rest}") if rest[:2] == "//" else None


def _parse_blob(scheme: str, rest: str) -> StoreUrl | None:
    if not rest.startswith("//"):
        return None
    account, _, container = rest[2:].partition("/")
    container = container.rstrip("/")
    if not account or not container or set("/?@#") & set(account + container):
        raise OptionError(f"invalid {scheme} store: use {scheme}://ACCOUNT/CONTAINER")
    host = account if "." in account else f"{account}.blob.core.windows.net"
    return StoreUrl(scheme, account_url=f"https://{host}", container=container)


def _parse_blob_lease(scheme: str, rest: str) -> StoreUrl | None:
    location, _, query = rest.partition("?")
    if (url := _parse_blob(scheme, location)) is None:
        return None
    return replace(url, settings=_parse_settings(query))


def _parse_settings(query: str) -> tuple[tuple[str, str], ...]:
    """The settings of a bloblease URL. Errors show no values, which may be secret."""
    settings: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in BLOB_LEASE_SETTINGS:
            raise OptionError(
                f"a bloblease: store has no setting {unknown_name(name, BLOB_LEASE_SETTINGS)}"
            )
        if name in settings:
            raise OptionError(f"the setting {name} of a bloblease: store is given twice: give one")
        settings[name] = value
    if settings.get("format", FORMATS[0]) not in FORMATS:
        raise OptionError(f"the format of a bloblease: store must be one of {', '.join(FORMATS)}")
    return tuple(settings.items())


def _from_connection_string(text: str, container: str) -> StoreUrl:
    scheme, _, rest = text.partition(":")
    kind = "blob"
    if scheme.lower() in STORE_KINDS and STORE_KINDS[scheme.lower()].in_azure_storage:
        kind, text = scheme.lower(), rest
    match = _CONTAINER.search(text)
    named = match["name"].strip() if match else ""
    if container and named and container != named:
        raise OptionError(f"two different containers are given, {container} and {named}: give one")
    if not container and not named:
        raise OptionError(
            "a storage connection string needs a container: add ;Container=NAME to it"
        )
    connection_string = _CONTAINER.sub("", text).strip("; ")
    return StoreUrl(kind, container=container or named, connection_string=connection_string)


# -- opening: a store is imported when it is used -------------------------------------------------


def _open_memory(url: StoreUrl, credential: Any, options: dict[str, Any]) -> CheckpointStore:
    from pumphouse.leases.stores.memory import MemoryStore

    return MemoryStore(**options)


def _open_sqlite(url: StoreUrl, credential: Any, options: dict[str, Any]) -> CheckpointStore:
    from pumphouse.leases.stores.sqlite.store import SqliteStore

    return SqliteStore(url.path, **options)


def _open_postgres(url: StoreUrl, credential: Any, options: dict[str, Any]) -> CheckpointStore:
    try:
        from pumphouse.leases.stores.postgres.store import PostgresStore
    except ImportError:
        raise OptionError(
            "a store in PostgreSQL needs psycopg: pip install 'pumphouse[postgres]'"
        ) from None

    return PostgresStore(url.connection_string, **options)


def _open_redis(url: StoreUrl, credential: Any, options: dict[str, Any]) -> CheckpointStore:
    try:
        from pumphouse.leases.stores.redis.store import RedisStore
    except ImportError:
        raise OptionError("a store in Redis needs redis: pip install 'pumphouse[redis]'") from None

    return RedisStore(url.connection_string, **options)


def _open_blob(url: StoreUrl, credential: Any, options: dict[str, Any]) -> CheckpointStore:
    from pumphouse.leases.stores.blob.store import BlobStore

    return BlobStore(**_account(url, credential), **options)


def _open_blob_lease(url: StoreUrl, credential: Any, options: dict[str, Any]) -> CheckpointStore:
    from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore

    return BlobLeaseStore(**_account(url, credential), **{**dict(url.settings), **options})


def _account(url: StoreUrl, credential: Any) -> dict[str, Any]:
    """The arguments of a blob store: the location of its container, and the credential."""
    if url.connection_string:
        return {
            "account_url": None,
            "container": url.container,
            "credential": credential,
            "connection_string": url.connection_string,
        }
    if credential is None:
        from pumphouse.leases.stores.blob.machine_identity import MachineIdentity

        credential = MachineIdentity()
    return {
        "account_url": url.account_url,
        "container": url.container,
        "credential": credential,
    }


# Other schemes of a kind.
ALIASES = {"postgresql": "postgres", "rediss": "redis"}

STORE_KINDS = {
    "memory": StoreKind("memory:", _parse_memory, _open_memory),
    "sqlite": StoreKind("sqlite:///PATH", _parse_sqlite, _open_sqlite),
    "postgres": StoreKind("postgres://USER@HOST/DATABASE", _parse_postgres, _open_postgres),
    "redis": StoreKind("redis://HOST:PORT/DB", _parse_redis, _open_redis),
    "blob": StoreKind("blob://ACCOUNT/CONTAINER", _parse_blob, _open_blob, in_azure_storage=True),
    "bloblease": StoreKind(
        "bloblease://ACCOUNT/CONTAINER", _parse_blob_lease, _open_blob_lease, in_azure_storage=True
    ),
}

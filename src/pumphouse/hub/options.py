"""The options of a hub, grouped by what they affect.

`EmbeddedHub` takes each group as an object, and each field of `AccessOptions`, `StorageOptions`,
`LimitOptions`, `ListenerOptions` and `ConfigOptions` also as a keyword of its own:

    EmbeddedHub({"orders": 4}, tls_port=0, data="events")
    EmbeddedHub({"orders": 4}, listeners=ListenerOptions(tls_port=0),
                storage=StorageOptions(data="events"))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from pumphouse.amqp.connection import Limits
from pumphouse.errors import OptionError
from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.access.token_issuer import TokenIssuer

ALWAYS, INTERVAL, NEVER = "always", "interval", "never"
SYNC_MODES = (ALWAYS, INTERVAL, NEVER)

CertificateFiles = tuple[str | Path, str | Path]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the events of a partition are kept, and how many bytes of them."""

    seconds: float = 24 * 3600.0
    bytes_max: int = 256 << 20  # per partition


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """The keys of a namespace."""

    root_key: str | None = field(default=None, repr=False)  # None: a random key
    rules: Iterable[AccessRule] = ()  # further keys, of the namespace or of one hub
    issuer: TokenIssuer | None = None  # None: no JWT is accepted


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Where events are kept, and for how long."""

    data: str | Path | None = None  # a directory; None: in memory
    sync: str = ALWAYS  # when a write counts as safe: always, interval or never
    retention: Retention | None = None  # None: one day, 256 MiB per partition

    def __post_init__(self) -> None:
        if self.sync not in SYNC_MODES:
            raise OptionError(f"sync must be one of {', '.join(SYNC_MODES)} (got {self.sync!r})")

    @property
    def directory(self) -> Path | None:
        return None if self.data is None else Path(self.data)


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """The limits of the service to enforce. None: no limit of that kind."""

    tier: str | None = None  # basic, standard or premium
    throughput_units: int | None = None
    message_bytes_max: int | None = None  # None: the tier's, or 1 MiB


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """The listeners besides plain AMQP. Port 0 picks a free port; None: no such listener."""

    tls_port: int | None = None
    ws_port: int | None = None
    http_port: int | None = None
    certificate: CertificateFiles | None = None  # certificate and key; None: one is made
    tls_dir: str | Path | None = None  # keeps the certificate authority; None: see `EmbeddedHub`

    @property
    def has_tls(self) -> bool:
        return self.tls_port is not None or self.certificate is not None


@dataclass(frozen=True, slots=True)
class ConfigOptions:
    """A config.json of Microsoft's emulator that lists hubs and consumer groups."""

    config: str | Path | None = None
    config_strict: bool = False  # enforce the emulator's own limits too


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the hub treats its connections."""

    idle_timeout_s: float = 240.0  # the announced value is the service's
    enforce_idle: bool = False  # off: idle producers of the official client send no heartbeats
    handshake_s: float = 60.0  # a connection that is not open by then is dropped
    # How long an epoch reader counts as present after its connection broke without a close. The
    # service needs about ten minutes to notice; the hub notices at once unless a test sets this.
    vanished_s: float = 0.0
    stop_s: float = 2.0  # how long `stop` waits for the last bytes to leave
    limits: Limits = field(default_factory=Limits)


class HubSettings(TypedDict, total=False):
    """The fields of the options above that `EmbeddedHub` takes as keywords."""

    root_key: str | None
    rules: Iterable[AccessRule]
    issuer: TokenIssuer | None
    data: str | Path | None
    sync: str
    retention: Retention | None
    tier: str | None
    throughput_units: int | None
    message_bytes_max: int | None
    tls_port: int | None
    ws_port: int | None
    http_port: int | None
    certificate: CertificateFiles | None
    tls_dir: str | Path | None
    config: str | Path | None
    config_strict: bool


Options = TypeVar("Options", AccessOptions, StorageOptions, LimitOptions, ListenerOptions,
                  ConfigOptions)  # fmt: skip


def with_settings(options: Options, settings: HubSettings) -> Options:
    """A copy of the options with the settings that are among their fields."""
    values: dict[str, Any] = dict(settings)
    names = {option.name for option in fields(options)}
    return replace(options, **{name: values[name] for name in names & values.keys()})


def check_settings(settings: HubSettings) -> None:
    """TypeError for a keyword that is not a setting, as Python raises it."""
    for name in settings:
        if name not in HubSettings.__annotations__:
            raise TypeError(f"EmbeddedHub() got an unexpected keyword argument {name!r}")

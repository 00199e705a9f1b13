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

from pumphouse.amqp.credit import Limits
from pumphouse.errors import OptionError
from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.access.token_issuer import TokenIssuer
from pumphouse.hub.limits.admission import AdmissionLimits

ALWAYS, INTERVAL, NEVER = "always", "interval", "never"
SYNC_MODES = (ALWAYS, INTERVAL, NEVER)

# What a laptop's disk writes in a few seconds. A batch waits that long only if the queue is full.
QUEUE_BYTES_MAX = 64 * 1024 * 1024

CertificateFiles = tuple[str | Path, str | Path]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the events of a partition are kept, and at most how many bytes of them."""

    seconds: float = 24 * 3600.0
    bytes_max: int = 256 << 20  # per partition


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """The keys of a namespace."""

    root_key: str | None = field(default=None, repr=False)  # None: the stored key, or a random one
    rules: Iterable[AccessRule] = ()  # further keys, of the namespace or of one hub
    issuer: TokenIssuer | None = None  # None: no JWT is accepted


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Where events are kept, and for how long."""

    data: str | Path | None = None  # a directory; None: in memory
    sync: str = ALWAYS  # when writes are synced to the disk: always, interval or never
    retention: Retention | None = None  # None: one day, 256 MiB per partition
    queue_bytes_max: int = QUEUE_BYTES_MAX  # that wait for the disk; beyond it producers wait

    def __post_init__(self) -> None:
        if self.queue_bytes_max <= 0:
            raise OptionError(f"queue_bytes_max must be above 0 (got {self.queue_bytes_max})")
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
    certificate: CertificateFiles | None = None  # certificate, key; None: the hub makes one
    tls_dir: str | Path | None = None  # keeps the certificate authority; None: see `EmbeddedHub`
    # Names under which clients reach the WebSocket and HTTP listeners, besides loopback names, the
    # hub's own address and the name of this machine. A request for another name is refused.
    host_names: Iterable[str] = ()

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

    idle_timeout_s: float = 240.0  # announced to clients; the service's value
    # Whether to close idle connections. Off, because idle producers of the official client send no
    # heartbeats.
    enforce_idle: bool = False
    # From the accept to authentication (SASL PLAIN, or a valid token put): a connection without a
    # valid key or token is closed after that time. The official clients need less than a second;
    # a credential that asks the user, or a command, may need a larger value.
    handshake_s: float = 10.0
    # How long an epoch reader counts as present after its connection broke without a close. The
    # service needs about ten minutes to notice; the hub notices at once unless a test sets this.
    vanished_s: float = 0.0
    stop_s: float = 2.0  # how long `stop` waits for the last bytes to leave
    limits: Limits = field(default_factory=Limits)
    # All connections of the hub, on all listeners but HTTP. Each needs about 10 KiB of memory.
    connections_max: int = 10_000
    # Connections of one remote address; of IPv6, of one network of 64 bits. The official clients
    # open one connection per partition that they read: twice the largest hub (2,000 partitions).
    connections_per_address_max: int = 4_000
    # Bytes held for a connection before it has authenticated, besides one incomplete frame. An
    # official client needs about 6 KiB: its open, a session and two links.
    anonymous_bytes_max: int = 64 * 1024
    # Bytes held for all connections together, with the bytes that clients have not read yet and 288
    # KiB for each TLS connection. After authentication, `limits.held_bytes_max` is the limit of one
    # connection. A thousand producers may each send a batch of 1 MiB, or 3,600 clients use TLS.
    total_bytes_max: int = 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("connections_max", "connections_per_address_max", "handshake_s"):
            if getattr(self, name) <= 0:
                raise OptionError(f"{name} must be above 0 (got {getattr(self, name)})")

    @property
    def admission_limits(self) -> AdmissionLimits:
        return AdmissionLimits(
            self.connections_max,
            self.connections_per_address_max,
            self.anonymous_bytes_max,
            self.limits.held_bytes_max,
            self.total_bytes_max,
        )


class HubSettings(TypedDict, total=False):
    """The fields of the options above that `EmbeddedHub` takes as keywords."""

    root_key: str | None
    rules: Iterable[AccessRule]
    issuer: TokenIssuer | None
    data: str | Path | None
    sync: str
    retention: Retention | None
    queue_bytes_max: int
    tier: str | None
    throughput_units: int | None
    message_bytes_max: int | None
    tls_port: int | None
    ws_port: int | None
    http_port: int | None
    certificate: CertificateFiles | None
    tls_dir: str | Path | None
    host_names: Iterable[str]
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

"""The hub as a thing to hold: started in your own process, stopped when you leave the block.

    async with EmbeddedHub(hubs={"sensors": 16}) as hub:
        hub.connection_string("sensors")

The same object works in a plain `with` block; it then runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self, TypeVar

from pumphouse.clock import Clock
from pumphouse.errors import HubNotFound, OptionError, PumphouseError
from pumphouse.hub.access.auth import ALL_CLAIMS, AccessRule, Claim, sign_sas
from pumphouse.hub.access.token_issuer import TokenIssuer
from pumphouse.hub.connection import ServerOptions
from pumphouse.hub.emulator_config import HubSpec, parse_config
from pumphouse.hub.faults.rules import Faults
from pumphouse.hub.listeners.ports import DoorOptions, Doors
from pumphouse.hub.listeners.tls import EVERYWHERE, CertificateFiles
from pumphouse.hub.namespace import MESSAGE_BYTES_MAX, Namespace, ensure_groups, ensure_hubs
from pumphouse.hub.quotas import Tier, check_retention, check_units, tier_named
from pumphouse.hub.server import HubServer
from pumphouse.hub.storage.base import DiskStorage
from pumphouse.hub.storage.memory_log import Retention
from pumphouse.hub.storage.writer import ALWAYS, SYNC_MODES

ROOT_RULE = "RootManageSharedAccessKey"
START_S = 10.0

T = TypeVar("T")


class EmbeddedHub:
    """An event hub namespace in this process, for the unmodified Azure clients.

    `hubs` maps names to partition counts. `port=0` picks a free port. `root_key` is made up unless
    given; `rules` are further keys with fewer claims, of the namespace or of one hub.

    Further doors are opened by giving them a port, 0 for a free one: `tls_port`, `ws_port` (AMQP
    over WebSocket), `http_port`. TLS uses your `certificate` (files: certificate, key) or makes
    one; its authority is kept in `tls_dir`, or else in the data directory. `config` is a
    config.json of Microsoft's emulator. `tier` and `throughput_units` bring the service's limits.
    """

    def __init__(
        self,
        hubs: Mapping[str, int] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        root_key: str | None = None,
        rules: Iterable[AccessRule] = (),
        retention: Retention | None = None,
        issuer: TokenIssuer | None = None,
        clock: Clock | None = None,
        message_bytes_max: int | None = None,
        data: str | Path | None = None,
        sync: str = ALWAYS,
        options: ServerOptions | None = None,
        tls_port: int | None = None,
        ws_port: int | None = None,
        http_port: int | None = None,
        certificate: CertificateFiles | None = None,
        tls_dir: str | Path | None = None,
        config: str | Path | None = None,
        config_strict: bool = False,
        tier: str | None = None,
        throughput_units: int | None = None,
        fault_seed: int = 0,
    ) -> None:
        limits = None if tier is None else tier_named(tier)
        check_units(limits, throughput_units)
        root = [AccessRule(ROOT_RULE, root_key, ALL_CLAIMS)] if root_key else []
        self.namespace = Namespace(
            [*root, *rules],
            clock=clock,
            retention=choose_retention(limits, retention),
            issuer=issuer,
            message_bytes_max=choose_message_limit(limits, message_bytes_max),
            tier=limits,
            throughput_units=throughput_units,
            faults=Faults(fault_seed),
        )
        self._wanted = [HubSpec(name, count) for name, count in (hubs or {}).items()]
        if config is not None:
            self._wanted += read_config(Path(config), config_strict, self._wanted)
        self.data = None if data is None else Path(data)
        self._sync = check_sync(sync)
        if self.data is None:
            self.ensure_contents()
        kept = Path(tls_dir) if tls_dir is not None else self.data and self.data / "tls"
        self._door_options = DoorOptions(tls_port, ws_port, http_port, certificate, kept)
        self._doors: Doors | None = None
        self.host = host
        self._asked_port = port
        self._options = options
        self._server: HubServer | None = None
        self._thread: HubThread | None = None

    def __repr__(self) -> str:
        where = f"sb://{self.authority}" if self._server else "not started"
        names = " ".join(f"{hub.name}:{len(hub.partitions)}" for hub in self.namespace.hubs[:8])
        return f"<EmbeddedHub {where} | {names or 'no hubs'}>"

    @property
    def server(self) -> HubServer:
        if self._server is None:
            raise PumphouseError("the hub has not been started; use it in a `with` block")
        return self._server

    @property
    def port(self) -> int:
        """The port it listens on; known once it has started."""
        return self.server.port

    @property
    def authority(self) -> str:
        """Host and port as a client on this machine reaches them."""
        return self.address(self.port)

    def address(self, port: int) -> str:
        host = "localhost" if self.host in EVERYWHERE else self.host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def doors(self) -> Doors:
        if self._doors is None:
            raise PumphouseError("the hub has not been started; use it in a `with` block")
        return self._doors

    @property
    def tls_port(self) -> int | None:
        """The port for AMQP over TLS; None if there is none."""
        return self.doors.tls_port

    @property
    def ws_port(self) -> int | None:
        """The port for AMQP over WebSocket; None if there is none."""
        return self.doors.ws_port

    @property
    def http_port(self) -> int | None:
        """The port of the HTTP API; None if there is none."""
        return self.doors.http_port

    @property
    def ca_file(self) -> Path | None:
        """What TLS clients are to trust; None without TLS, or with a certificate of yours."""
        return self.doors.ca_file

    # -- starting and stopping --------------------------------------------------------------------

    async def start(self) -> None:
        async with AsyncExitStack() as undo:
            undo.callback(self.namespace.close)
            if self.data is not None:
                self.namespace.open(DiskStorage(self.data, asyncio.get_running_loop(), self._sync))
                self.ensure_contents()
            server = HubServer(self.namespace, self._options)
            await server.start(self.host, self._asked_port)
            undo.push_async_callback(server.stop)
            doors = Doors(server, self._door_options)
            await doors.open(self.host)
            undo.pop_all()
        self._server, self._doors = server, doors

    async def stop(self) -> None:
        if self._server is not None and self._doors is not None:
            server, self._server = self._server, None
            doors, self._doors = self._doors, None
            await doors.shut()
            await server.stop()
            await doors.close()
            self.namespace.close()

    def ensure_contents(self) -> None:
        """Make what was asked for and is not there yet."""
        self.ensure_root()
        ensure_hubs(self.namespace, {hub.name: hub.partitions for hub in self._wanted})
        ensure_groups(self.namespace, {hub.name: hub.groups for hub in self._wanted})

    def ensure_root(self) -> None:
        """A namespace has a root key: the one given, the one kept, or a new one."""
        if not any(rule.name == ROOT_RULE and not rule.hub for rule in self.namespace.rules):
            self.namespace.add_rule(AccessRule(ROOT_RULE, make_key(), ALL_CLAIMS))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        self._thread = HubThread(self)
        self._thread.start_hub()
        return self

    def __exit__(self, *exc: object) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None
        thread.stop_hub()

    def _call(self, change: Callable[[], T]) -> T:
        """Run a change where the hub runs: on its thread if it has one, otherwise right here."""
        return self._thread.call(change) if self._thread is not None else change()

    # -- connecting -------------------------------------------------------------------------------

    def connection_string(
        self, hub: str | None = None, rule: str = ROOT_RULE, *, tls: bool = False
    ) -> str:
        """A ready-to-paste connection string, of one hub or (without a name) of the namespace.

        With `tls` it leads to the TLS port, without the emulator's mark that turns TLS off.
        """
        found = self.find_rule(rule, hub)
        parts = {
            "Endpoint": f"sb://{self.address(self.need_tls_port() if tls else self.port)}",
            "SharedAccessKeyName": found.name,
            "SharedAccessKey": found.key,
        }
        if not tls:
            parts["UseDevelopmentEmulator"] = "true"
        if hub is not None:
            parts["EntityPath"] = self.namespace.hub(hub).name
        return ";".join(f"{key}={value}" for key, value in parts.items())

    def need_tls_port(self) -> int:
        if self.tls_port is None:
            raise OptionError("the hub has no TLS port; start it with tls_port=0 or 5671")
        return self.tls_port

    def sas_token(
        self, hub: str | None = None, rule: str = ROOT_RULE, lasts_s: float = 3600.0
    ) -> str:
        """A token for the header Authorization of the HTTP API."""
        resource = f"sb://{self.authority}/{hub or ''}"
        expires_at = int(self.namespace.clock.now() + lasts_s)
        return sign_sas(resource, self.find_rule(rule, hub), expires_at)

    def find_rule(self, name: str, hub: str | None) -> AccessRule:
        for rule in self.namespace.rules:
            if rule.name == name and rule.hub.lower() in ("", (hub or "").lower()):
                return rule
        raise HubNotFound(f"there is no access rule {name!r} for {hub or 'the namespace'}")

    # -- changing it while it runs ----------------------------------------------------------------

    @property
    def hubs(self) -> dict[str, int]:
        """The hubs, with their partition counts."""
        return self._call(lambda: {hub.name: len(hub.partitions) for hub in self.namespace.hubs})

    def create_hub(self, name: str, partitions: int = 4, groups: Iterable[str] = ()) -> None:
        """Add a hub, with consumer groups besides $Default if wanted."""
        self._call(lambda: self.namespace.create_hub(name, partitions, groups) and None)

    def grow_hub(self, name: str, partitions: int) -> None:
        """Give a hub more partitions, as Azure's larger tiers can; there are never fewer."""
        self._call(lambda: self.namespace.grow_hub(name, partitions) and None)

    def delete_hub(self, name: str) -> None:
        """Remove a hub and its events; clients attached to it are told."""
        self._call(lambda: self.namespace.delete_hub(name))

    def groups(self, hub: str) -> list[str]:
        """The consumer groups of a hub."""
        return self._call(lambda: sorted(self.namespace.hub(hub).groups.values()))

    def create_group(self, hub: str, group: str) -> None:
        """Add a consumer group to a hub."""
        self._call(lambda: self.namespace.create_group(hub, group))

    def delete_group(self, hub: str, group: str) -> None:
        """Remove a consumer group; its readers are told."""
        self._call(lambda: self.namespace.delete_group(hub, group))

    def create_rule(
        self, name: str, claims: Iterable[Claim], hub: str = "", key: str | None = None
    ) -> None:
        """Add a key with some claims, for one hub or (without a name) for all of them."""
        rule = AccessRule(name, key or make_key(), frozenset(claims), hub)
        self._call(lambda: self.namespace.add_rule(rule))

    # -- breaking it on purpose: more in `faults` -------------------------------------------------

    @property
    def faults(self) -> Faults:
        """What is to go wrong: plan it here, before or while the hub runs."""
        return self.namespace.faults

    def drop_connections(self) -> int:
        """Break every connection without a word, as a failing network would; returns how many."""

        def drop() -> int:
            broken = list(self.server.conversations)
            for conversation in broken:
                conversation.drop()
            return len(broken)

        return self._call(drop)

    def steal_readers(self, hub: str, group: str = "$Default", partition: str = "") -> int:
        """Evict readers as one with a higher epoch would; returns how many."""

        def steal() -> int:
            found = self.namespace.hub(hub)
            chosen = [found.partition(partition)] if partition else found.partitions
            return sum(place.evict(group.lower()) for place in chosen)

        return self._call(steal)

    def tick(self) -> None:
        """Do at once what the passing of time asks for: after a test has moved the clock."""

        def tick() -> None:
            self.server.tick()
            self.namespace.expire()

        self._call(tick)


class HubThread:
    """A thread with an event loop that runs one hub."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self.hub = hub
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run, name="pumphouse hub", daemon=True)

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def start_hub(self) -> None:
        self.thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.hub.start(), self.loop).result(START_S)
        except BaseException:
            self.end()
            raise

    def stop_hub(self) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self.hub.stop(), self.loop).result(START_S)
        finally:
            self.end()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(START_S)

    def call(self, change: Callable[[], T]) -> T:
        async def run() -> T:
            return change()

        if threading.current_thread() is self.thread:
            return change()
        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(START_S)


def read_config(path: Path, strict: bool, others: Iterable[HubSpec]) -> Iterable[HubSpec]:
    """The hubs of a config.json of Microsoft's emulator, none of which may be among the others."""
    try:
        found = parse_config(path.read_text(encoding="utf-8"), strict)
    except OptionError as wrong:
        raise OptionError(f"{path}: {wrong}") from None
    except (OSError, ValueError) as failed:  # what is not UTF-8 is a ValueError
        raise OptionError(f"{path} cannot be read: {failed}") from None
    taken = {hub.name.lower() for hub in others}
    for hub in found:
        if hub.name.lower() in taken:
            raise OptionError(
                f"hub {hub.name!r} is both in {path} and among the hubs; name it once"
            )
    return found


def choose_retention(tier: Tier | None, asked: Retention | None) -> Retention:
    chosen = asked or Retention()
    if tier is not None:
        check_retention(tier, chosen.seconds)
    return chosen


def choose_message_limit(tier: Tier | None, asked: int | None) -> int:
    if asked is not None:
        return asked
    return MESSAGE_BYTES_MAX if tier is None else tier.message_bytes_max


def check_sync(mode: str) -> str:
    if mode not in SYNC_MODES:
        raise OptionError(f"sync must be one of {', '.join(SYNC_MODES)} (got {mode!r})")
    return mode


def make_key() -> str:
    """A random key, of the length and alphabet of the service's."""
    return b64encode(secrets.token_bytes(32)).decode()

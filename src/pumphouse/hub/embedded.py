"""`EmbeddedHub`: a hub in this process, started and stopped by a `with` block.

    async with EmbeddedHub(hubs={"sensors": 16}) as hub:
        hub.connection_string("sensors")

In a plain `with` block the hub runs on its own thread. A forked child cannot use the hub of its
parent, but can connect to it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar, Unpack

from pumphouse.clock import Clock
from pumphouse.errors import HubNotFound, OptionError, PumphouseError
from pumphouse.hub import changes
from pumphouse.hub.access.auth import ALL_CLAIMS, AccessRule, Claim, sign_sas
from pumphouse.hub.emulator_config import HubSpec, parse_config
from pumphouse.hub.faults.rules import Faults
from pumphouse.hub.listeners.listeners import Listeners
from pumphouse.hub.listeners.tls import ANY_ADDRESS
from pumphouse.hub.metrics import HubMetrics
from pumphouse.hub.namespace import Namespace, with_hubs
from pumphouse.hub.options import (
    AccessOptions,
    ConfigOptions,
    HubSettings,
    LimitOptions,
    ListenerOptions,
    ServerOptions,
    StorageOptions,
    check_settings,
    with_settings,
)
from pumphouse.hub.server import HubServer
from pumphouse.hub.storage.base import DiskStorage, MemoryStorage
from pumphouse.hub.storage.records import NamespaceRecord
from pumphouse.telemetry.meter import is_on

ROOT_RULE = "RootManageSharedAccessKey"
THREAD_CALL_S = 10.0  # time-out of each call on the hub's thread

T = TypeVar("T")


class EmbeddedHub:
    """An event hub namespace in this process, for the unmodified Azure clients.

    `hubs` maps hub names to numbers of partitions. Port 0 picks a free port. Each setting
    below is a keyword, and also a field of the object in parentheses (`pumphouse.hub.options`):

    * keys (`access`): `root_key` (random unless given or stored), further `rules`, a JWT `issuer`;
    * storage (`storage`): a `data` directory, `sync`, `retention`, `queue_bytes_max`;
    * limits of the service (`limits`): `tier`, `throughput_units`, `message_bytes_max`;
    * further listeners (`listeners`): `tls_port`, `ws_port` (AMQP over WebSocket), `http_port`,
      your `certificate` (files: certificate, key). Otherwise the hub makes a certificate, and keeps
      its authority in `tls_dir` (default: `tls` in the data directory, or a temporary directory).
      `host_names`: names of the hub for WebSocket and HTTP requests;
    * hubs of Microsoft's emulator (`emulator`): its `config` file, `config_strict`.

    `options` tunes the connections. `fault_seed` makes random faults repeatable.
    """

    def __init__(
        self,
        hubs: Mapping[str, int] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        access: AccessOptions | None = None,
        storage: StorageOptions | None = None,
        limits: LimitOptions | None = None,
        listeners: ListenerOptions | None = None,
        emulator: ConfigOptions | None = None,
        options: ServerOptions | None = None,
        fault_seed: int = 0,
        **settings: Unpack[HubSettings],
    ) -> None:
        check_settings(settings)
        access = with_settings(access or AccessOptions(), settings)
        storage = with_settings(storage or StorageOptions(), settings)
        root = [AccessRule(ROOT_RULE, access.root_key, ALL_CLAIMS)] if access.root_key else []
        self.namespace = Namespace(
            [*root, *access.rules],
            clock=clock,
            retention=storage.retention,
            issuer=access.issuer,
            limits=with_settings(limits or LimitOptions(), settings),
            faults=Faults(fault_seed),
        )
        self._requested_hubs = [HubSpec(name, count) for name, count in (hubs or {}).items()]
        emulator = with_settings(emulator or ConfigOptions(), settings)
        if emulator.config is not None:
            path = Path(emulator.config)
            self._requested_hubs += read_config(path, emulator.config_strict, self._requested_hubs)
        self.data = storage.directory
        self._storage_options = storage
        if self.data is None:
            self.namespace.open(MemoryStorage(), self.complete)
        listeners = with_settings(listeners or ListenerOptions(), settings)
        if listeners.tls_dir is None and self.data is not None:
            listeners = replace(listeners, tls_dir=self.data / "tls")
        self._listener_options = listeners
        self._listeners: Listeners | None = None
        self.host = host
        self._requested_port = port
        self._options = options
        self._server: HubServer | None = None
        self._metrics: HubMetrics | None = None
        self._thread: HubThread | None = None
        self._process: int | None = None  # the process that runs the hub

    def __repr__(self) -> str:
        address = f"sb://{self.authority}" if self._server else "not started"
        names = " ".join(f"{hub.name}:{len(hub.partitions)}" for hub in self.namespace.hubs[:8])
        return f"<EmbeddedHub {address} | {names or 'no hubs'}>"

    @property
    def server(self) -> HubServer:
        if self._server is None:
            raise PumphouseError("the hub has not been started; use it in a `with` block")
        return self._server

    @property
    def port(self) -> int:
        """The AMQP port; known after the start."""
        return self.server.port

    @property
    def authority(self) -> str:
        """Host and port for a client on this machine."""
        return self.address(self.port)

    def address(self, port: int) -> str:
        host = "localhost" if self.host in ANY_ADDRESS else self.host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def listeners(self) -> Listeners:
        if self._listeners is None:
            raise PumphouseError("the hub has not been started; use it in a `with` block")
        return self._listeners

    @property
    def tls_port(self) -> int | None:
        """The port for AMQP over TLS; None without that listener."""
        return self.listeners.tls_port

    @property
    def ws_port(self) -> int | None:
        """The port for AMQP over WebSocket; None without that listener."""
        return self.listeners.ws_port

    @property
    def http_port(self) -> int | None:
        """The port of the HTTP API; None without that listener."""
        return self.listeners.http_port

    @property
    def ca_file(self) -> Path | None:
        """The authority for TLS clients to trust; None without TLS or with your own certificate."""
        return self.listeners.ca_file

    # -- starting and stopping --------------------------------------------------------------------

    async def start(self) -> None:
        self._check_process()
        async with AsyncExitStack() as undo:
            undo.callback(self.namespace.close)
            if self.data is not None:
                options, loop = self._storage_options, asyncio.get_running_loop()
                storage = DiskStorage(self.data, loop, options.sync, options.queue_bytes_max)
                self.namespace.open(storage, self.complete)
            server = HubServer(self.namespace, self._options)
            await server.start(self.host, self._requested_port)
            undo.push_async_callback(server.stop)
            listeners = Listeners(server, self._listener_options)
            await listeners.start(self.host)
            undo.pop_all()
        self._server, self._listeners, self._process = server, listeners, os.getpid()
        self._metrics = HubMetrics(self.namespace, server) if is_on() else None

    async def stop(self) -> None:
        if self._is_inherited:
            return
        if self._server is not None and self._listeners is not None:
            self._process = None
            server, self._server = self._server, None
            listeners, self._listeners = self._listeners, None
            if self._metrics is not None:
                self._metrics.close()
            await listeners.stop()
            await server.stop()
            await listeners.close()
            self.namespace.close()

    def complete(self, record: NamespaceRecord) -> NamespaceRecord:
        """A record with a root key and the requested hubs and groups."""
        if not any(rule.name == ROOT_RULE and not rule.hub for rule in record.rules):
            record = changes.add_rule(record, AccessRule(ROOT_RULE, make_key(), ALL_CLAIMS))
        return with_hubs(self.namespace, record, self._requested_hubs)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        self._check_process()
        self._thread = HubThread(self)
        self._thread.start_hub()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._is_inherited:
            return
        thread, self._thread = self._thread, None
        assert thread is not None
        thread.stop_hub()

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function on the hub's thread, if it has one."""
        self._check_process()
        return self._thread.call(function) if self._thread is not None else function()

    @property
    def _is_inherited(self) -> bool:
        """Whether this process was forked from the one that runs the hub."""
        return self._process not in (None, os.getpid())

    def _check_process(self) -> None:
        if self._is_inherited:
            raise PumphouseError(
                f"this hub runs in process {self._process}: a forked child cannot use it; start a "
                "hub in the child, or connect to this one with its connection string"
            )

    # -- connecting -------------------------------------------------------------------------------

    def connection_string(
        self, hub: str | None = None, rule: str = ROOT_RULE, *, tls: bool = False
    ) -> str:
        """The connection string of one hub or, without `hub`, of the namespace.

        With `tls` it has the TLS port. UseDevelopmentEmulator is then left out, because clients
        that find it connect without TLS.
        """
        access = self.find_rule(rule, hub)
        parts = {
            "Endpoint": f"sb://{self.address(self.require_tls_port() if tls else self.port)}",
            "SharedAccessKeyName": access.name,
            "SharedAccessKey": access.key,
        }
        if not tls:
            parts["UseDevelopmentEmulator"] = "true"
        if hub is not None:
            parts["EntityPath"] = self.namespace.hub(hub).name
        return ";".join(f"{key}={value}" for key, value in parts.items())

    def require_tls_port(self) -> int:
        if self.tls_port is None:
            raise OptionError("the hub has no TLS port; start it with tls_port=0 or 5671")
        return self.tls_port

    def sas_token(
        self, hub: str | None = None, rule: str = ROOT_RULE, lasts_s: float = 3600.0
    ) -> str:
        """A token for the Authorization header of the HTTP API."""
        resource = f"sb://{self.authority}/{hub or ''}"
        expires_at = int(self.namespace.clock.now() + lasts_s)
        return sign_sas(resource, self.find_rule(rule, hub), expires_at)

    def find_rule(self, name: str, hub: str | None) -> AccessRule:
        for rule in self.namespace.rules:
            if rule.name == name and rule.hub.lower() in ("", (hub or "").lower()):
                return rule
        known = ", ".join(rule.name for rule in self.namespace.rules[:10]) or "none"
        raise HubNotFound(
            f"access rule {name!r} not found for {hub or 'the namespace'}; existing rules: {known}"
        )

    # -- changes, before the start or while the hub runs -------------------------------------------

    @property
    def hubs(self) -> dict[str, int]:
        """The hubs, with their partition counts."""
        return self._call(lambda: {hub.name: len(hub.partitions) for hub in self.namespace.hubs})

    def create_hub(self, name: str, partitions: int = 4, groups: Iterable[str] = ()) -> None:
        """Create a hub, with consumer groups besides $Default."""
        self._call(lambda: self.namespace.create_hub(name, partitions, groups))

    def grow_hub(self, name: str, partitions: int) -> None:
        """Add partitions to a hub, as Azure's larger tiers can. The number can only grow."""
        self._call(lambda: self.namespace.grow_hub(name, partitions))

    def delete_hub(self, name: str) -> None:
        """Delete a hub and its events; its links are detached."""
        self._call(lambda: self.namespace.delete_hub(name))

    def groups(self, hub: str) -> list[str]:
        """The consumer groups of a hub."""
        return self._call(lambda: sorted(self.namespace.hub(hub).groups.values()))

    def create_group(self, hub: str, group: str) -> None:
        """Create a consumer group."""
        self._call(lambda: self.namespace.create_group(hub, group))

    def delete_group(self, hub: str, group: str) -> None:
        """Delete a consumer group; its readers are detached."""
        self._call(lambda: self.namespace.delete_group(hub, group))

    def create_rule(
        self, name: str, claims: Iterable[Claim], hub: str = "", key: str | None = None
    ) -> None:
        """Add an access rule for one hub or, without `hub`, for all. The default key is random."""
        rule = AccessRule(name, key or make_key(), frozenset(claims), hub)
        self._call(lambda: self.namespace.add_rule(rule))

    # -- injected faults; `faults` has more kinds -------------------------------------------------

    @property
    def faults(self) -> Faults:
        """The planned faults; add some before or while the hub runs."""
        self._check_process()
        return self.namespace.faults

    def drop_connections(self) -> int:
        """Break every connection without a close, as a failing network does; returns how many."""

        def drop() -> int:
            connections = list(self.server.connections)
            for connection in connections:
                connection.drop()
            return len(connections)

        return self._call(drop)

    def steal_readers(self, hub: str, group: str = "$Default", partition: str = "") -> int:
        """Evict readers as a new reader with a higher epoch does; returns how many.

        Without `partition`, the readers of all partitions are evicted.
        """

        def steal() -> int:
            event_hub = self.namespace.hub(hub)
            partitions = [event_hub.partition(partition)] if partition else event_hub.partitions
            return sum(target.evict(group.lower()) for target in partitions)

        return self._call(steal)

    def tick(self) -> None:
        """Do the periodic work at once, after a test has moved the clock."""

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
            asyncio.run_coroutine_threadsafe(self.hub.start(), self.loop).result(THREAD_CALL_S)
        except BaseException:
            self.stop_loop()
            raise

    def stop_hub(self) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self.hub.stop(), self.loop).result(THREAD_CALL_S)
        finally:
            self.stop_loop()

    def stop_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(THREAD_CALL_S)

    def call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        if threading.current_thread() is self.thread:
            return function()
        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(THREAD_CALL_S)


def read_config(path: Path, strict: bool, other_hubs: Iterable[HubSpec]) -> Iterable[HubSpec]:
    """The hubs of an emulator's config.json; OptionError if `other_hubs` has one of them."""
    try:
        hubs = parse_config(path.read_text(encoding="utf-8"), strict)
    except OptionError as failure:
        raise OptionError(f"{path}: {failure}") from None
    except (OSError, ValueError) as failure:  # a ValueError: not UTF-8
        raise OptionError(f"{path} cannot be read: {failure}") from None
    other_names = {hub.name.lower() for hub in other_hubs}
    for hub in hubs:
        if hub.name.lower() in other_names:
            raise OptionError(f"hub {hub.name!r} is given both in {path} and in hubs; give it once")
    return hubs


def make_key() -> str:
    """A random key with the length and alphabet of the service's keys."""
    return b64encode(secrets.token_bytes(32)).decode()

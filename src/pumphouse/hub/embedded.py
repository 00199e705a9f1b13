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
from pathlib import Path
from typing import Self, TypeVar

from pumphouse.clock import Clock
from pumphouse.errors import HubNotFound, OptionError, PumphouseError
from pumphouse.hub.auth import ALL_CLAIMS, AccessRule, Claim
from pumphouse.hub.hub import MESSAGE_BYTES_MAX, Namespace, ensure_hubs
from pumphouse.hub.issuer import TokenIssuer
from pumphouse.hub.log import Retention
from pumphouse.hub.server import HubServer, ServerOptions
from pumphouse.hub.storage import DiskStorage
from pumphouse.hub.writer import ALWAYS, SYNC_MODES

ROOT_RULE = "RootManageSharedAccessKey"
START_S = 10.0
EVERYWHERE = ("", "0.0.0.0", "::")  # addresses to listen on; nobody can connect to them

T = TypeVar("T")


class EmbeddedHub:
    """An event hub namespace in this process, for the unmodified Azure clients.

    `hubs` maps names to partition counts. `port=0` picks a free port. `root_key` is made up unless
    given; `rules` are further keys with fewer claims, of the namespace or of one hub.
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
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        data: str | Path | None = None,
        sync: str = ALWAYS,
        options: ServerOptions | None = None,
    ) -> None:
        root = [AccessRule(ROOT_RULE, root_key, ALL_CLAIMS)] if root_key else []
        self.namespace = Namespace(
            [*root, *rules],
            clock=clock,
            retention=retention or Retention(),
            issuer=issuer,
            message_bytes_max=message_bytes_max,
        )
        self._wanted = dict(hubs or {})
        self._data = None if data is None else Path(data)
        self._sync = check_sync(sync)
        if self._data is None:
            self.ensure_root()
            ensure_hubs(self.namespace, self._wanted)
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
        host = "localhost" if self.host in EVERYWHERE else self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    # -- starting and stopping --------------------------------------------------------------------

    async def start(self) -> None:
        if self._data is not None:
            self.namespace.open(DiskStorage(self._data, asyncio.get_running_loop(), self._sync))
            self.ensure_root()
            ensure_hubs(self.namespace, self._wanted)
        server = HubServer(self.namespace, self._options)
        await server.start(self.host, self._asked_port)
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()
            self.namespace.close()

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

    def connection_string(self, hub: str | None = None, rule: str = ROOT_RULE) -> str:
        """A ready-to-paste connection string, of one hub or (without a name) of the namespace."""
        found = self.find_rule(rule, hub)
        parts = {
            "Endpoint": f"sb://{self.authority}",
            "SharedAccessKeyName": found.name,
            "SharedAccessKey": found.key,
            "UseDevelopmentEmulator": "true",
        }
        if hub is not None:
            parts["EntityPath"] = self.namespace.hub(hub).name
        return ";".join(f"{key}={value}" for key, value in parts.items())

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

    def drop_connections(self) -> int:
        """Break every connection without a word, as a failing network would; returns how many."""

        def drop() -> int:
            broken = list(self.server.conversations)
            for conversation in broken:
                conversation.drop()
            return len(broken)

        return self._call(drop)


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


def check_sync(mode: str) -> str:
    if mode not in SYNC_MODES:
        raise OptionError(f"sync must be one of {', '.join(SYNC_MODES)} (got {mode!r})")
    return mode


def make_key() -> str:
    """A random key, of the length and alphabet of the service's."""
    return b64encode(secrets.token_bytes(32)).decode()

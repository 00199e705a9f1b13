"""A private Redis server from Debian's package, with a socket in its own folder.

It listens on 127.0.0.1 too, as stores connect by TCP, on a port that was free a moment before.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import redis

from tests.postgres.proxy import PASSWORD

LIMIT_S = 120.0
PROGRAM = Path("/usr/bin/redis-server")
USER = "tests"


class RedisServer:
    """A server that can be stopped and started; every granted write is on its disk."""

    def __init__(self, *options: str) -> None:
        # Not below the folder of the tests: the path of a socket has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="pumphouse-redis-"))
        self.socket = self.folder / "socket"
        self.port = 0
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        if not PROGRAM.exists():
            raise RuntimeError("the tests of leases need redis-server: run scripts/redis")
        deadline = time.monotonic() + LIMIT_S
        while not self._start(self.port or free_port()):
            assert time.monotonic() < deadline, "redis-server does not start"
        self.administer("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~*", "&*", "+@all")

    def _start(self, port: int) -> bool:
        """Whether it has started: another program may have taken the port."""
        settings = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "save": "",
            "appendonly": "yes",
            # With `everysec` a write may wait for a sync that is under way, and a kill loses it.
            "appendfsync": "always",
            "unixsocket": self.socket,
            "unixsocketperm": 700,
        }
        words = [word for name in settings for word in (f"--{name}", str(settings[name]))]
        self._process = subprocess.Popen(
            [PROGRAM, *words, *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while self._process.poll() is None:
            try:
                self.administer("PING")
            except redis.RedisError:
                time.sleep(0.02)
            else:
                self.port = port
                return True
        return False

    def stop(self) -> None:
        """Kill it, as a power failure would; the log of writes is on the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)
            self.socket.unlink(missing_ok=True)

    def url(self, port: int | None = None, database: int = 0) -> str:
        return f"redis://{USER}:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    def administer(self, *command: Any) -> Any:
        with redis.Redis(unix_socket_path=str(self.socket)) as administrator:
            return administrator.execute_command(*command)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

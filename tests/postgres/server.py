"""A private PostgreSQL server from Debian's packages, with a socket in its own folder.

The server refuses to run as root; as root we start it as another user, who owns the folder.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Self

import psycopg

LIMIT_S = 120.0
UNPRIVILEGED = ("postgres", "nobody")


class PostgresServer:
    """A server that can be stopped and started. `database()` is the URL of a new database."""

    def __init__(self, fsync: str = "off") -> None:
        self._fsync = fsync  # a crash of the machine loses nothing only if it is "on"
        # Not below the folder of the tests: that belongs to one user only.
        self.folder = Path(tempfile.mkdtemp(prefix="pumphouse-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._shared = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        tools, user = programs(), other_user()
        data = self.folder / "data"
        if user is not None:
            os.chown(self.folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        initdb = [f"{tools}/initdb", "-D", str(data), "-U", "tests", "--auth=trust", "--no-sync"]
        subprocess.run(
            [*as_user(user), *initdb], check=True, capture_output=True, timeout=LIMIT_S, cwd="/"
        )
        self.restart()

    def restart(self) -> None:
        """Start again with the existing databases."""
        tools, user, data = programs(), other_user(), self.folder / "data"
        options = {
            "listen_addresses": "",
            "unix_socket_directories": self.folder,
            "fsync": self._fsync,
        }
        settings = [word for name in options for word in ("-c", f"{name}={options[name]}")]
        self._process = subprocess.Popen(
            [*as_user(user), f"{tools}/postgres", "-D", str(data), *settings],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._await()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # fast: closes all connections
            self._process.wait(LIMIT_S)

    def database(self) -> str:
        name = f"homes_{uuid.uuid4().hex}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as link:
            link.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def shared(self) -> str:
        """The URL of one database for tests that use schemas of their own."""
        self._shared = self._shared or self.database()
        return self._shared

    def url(self, name: str) -> str:
        return f"postgresql://tests@/{name}?host={self.folder}"

    def _await(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, "PostgreSQL has ended"
                assert time.monotonic() < deadline, "PostgreSQL does not respond"
                time.sleep(0.1)
            else:
                return


def programs() -> Path:
    """The programs of the newest installed version; PATH may contain an older one."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not installed:
        raise RuntimeError("the tests of records need PostgreSQL: run scripts/postgres")
    return installed[-1].parent


def other_user() -> str | None:
    """The user who runs the server, because it refuses to run as root."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in UNPRIVILEGED if name in known)


def as_user(user: str | None) -> list[str]:
    if user is None:
        return []
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups"]

"""A network between a query and its hub that can fail."""

from __future__ import annotations

import re
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Network:
    """Forwards TCP connections to a hub. While it is cut, it closes all of them."""

    def __init__(self, connection: str) -> None:
        match = re.search(r"//(?P<host>[^:/]+):(?P<port>\d+)", connection)
        assert match is not None
        self._hub = match["host"], int(match["port"])
        self._server = socket.create_server(("127.0.0.1", 0))
        self._cut = threading.Event()
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        port = self._server.getsockname()[1]
        self.connection = connection.replace(match[0], f"//{match['host']}:{port}")
        self.refused = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.cut()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def cut(self) -> None:
        self._cut.set()
        with self._lock:
            for end in self._open:
                reset(end)
            self._open.clear()

    def restore(self) -> None:
        self._cut.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self._cut.is_set():
                self.refused += 1
                near.close()
                continue
            far = socket.create_connection(self._hub)
            with self._lock:
                self._open += [near, far]
            if self._cut.is_set():
                self.cut()
            for ends in ((near, far), (far, near)):
                threading.Thread(target=forward, args=ends, daemon=True).start()


def reset(end: socket.socket) -> None:
    """Close at once: a hub that still writes to a connection that is only shut down may wait."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
        end.close()


def forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

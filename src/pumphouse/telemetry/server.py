"""A small HTTP server for /metrics, /livez and /readyz.

It runs in a thread of its own, so it responds even if the event loop of the application is blocked:
that is what /livez reports.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, SHUT_RDWR, create_connection, socket
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self

from pumphouse.errors import OptionError, PortTaken
from pumphouse.telemetry.health import CHECKS, LIVE, READY, HealthChecks

# Between two checks of the deadlines. A check wakes this thread, so other threads wait for it.
TURN_S = 1.0
REQUEST_S = 5.0  # for each read and write of a connection
CONNECTIONS_MAX = 16  # further ones are closed: a scraper and a probe need two
PORT_MAX = 65535
TEXT = "text/plain; charset=utf-8"
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' text format

Page = tuple[int, str, bytes]  # status, content type, body


class SharedPage:
    """Makes a page for all requests that wait for one: many scrapes cost as much as two."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make
        self._lock, self._counting = Lock(), Lock()
        self._started = 0  # pages that were begun
        self._page = b""
        self.waiting = 0  # requests that wait for a page to be complete

    def __call__(self) -> bytes:
        """A page that was begun after this call."""
        with self._counting:
            before = self._started
            self.waiting += 1
        with self._lock:
            with self._counting:
                self.waiting -= 1
                is_begun = self._started > before
                self._started += not is_begun
            if not is_begun:
                self._page = self._make()
            return self._page


class TelemetryServer:
    """Serves metrics and health checks until it is closed."""

    def __init__(
        self,
        port: int,
        host: str,
        metrics: Callable[[], bytes] | None = None,
        checks: HealthChecks = CHECKS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if type(port) is not int or not 0 <= port <= PORT_MAX:
            raise OptionError(
                f"the port must be a whole number from 0 to {PORT_MAX} (got {port!r})"
            )
        self._host, self._checks = host, checks
        self._metrics = None if metrics is None else SharedPage(metrics)
        # For Prometheus' http_sd_configs: the name and address of each process to scrape.
        self.targets: Callable[[], Iterable[tuple[str, str]]] | None = None
        try:
            self._server = BoundedServer((host, port), _Handler, self._page, clock)
        except OSError as error:
            raise cannot_listen(host, port, error) from None
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._server.stop()
        self._thread.join(REQUEST_S)
        self._server.server_close()

    def _page(self, path: str, host: str) -> Page:
        if not is_own_name(host, self._host):
            return 421, TEXT, b"the Host header names another server\n"
        if path == "/metrics" and self._metrics is not None:
            return 200, EXPOSITION, self._metrics()
        if path in ("/livez", "/readyz"):
            return health_page(self._checks.failures(LIVE if path == "/livez" else READY))
        if path == "/targets" and self.targets is not None:
            return targets_page(self.targets())
        return 404, TEXT, b"there is /metrics, /livez and /readyz\n"


def cannot_listen(host: str, port: int, error: OSError) -> Exception:
    kind = PortTaken if error.errno == errno.EADDRINUSE else OptionError
    return kind(
        f"cannot listen on {host}:{port} for metrics and health checks: {error.strerror}; "
        "choose another address, another port, or port 0 for any free one"
    )


def health_page(failures: dict[str, str]) -> Page:
    if not failures:
        return 200, TEXT, b"ok\n"
    lines = "".join(f"{name}: {failure}\n" for name, failure in failures.items())
    return 503, TEXT, lines.encode("utf-8", "backslashreplace")


def targets_page(targets: Iterable[tuple[str, str]]) -> Page:
    """The format of Prometheus' HTTP service discovery."""
    groups = [{"targets": [address], "labels": {"process": name}} for name, address in targets]
    return 200, "application/json", json.dumps(groups).encode()


def is_own_name(host: str, listens_on: str) -> bool:
    """Whether a Host header can name this server. This prevents DNS rebinding.

    If a web page lets its own DNS name point to this machine, the browser sends that name as Host.
    Such a page must not read the metrics.
    """
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    if name in ("", "localhost", listens_on.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return not is_loopback(listens_on)  # other machines may use any name for this one
    return True


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class BoundedServer(ThreadingHTTPServer):
    """A server with a limit of connections, each with a deadline.

    Beyond the limit the oldest connection is closed in favour of the new one: slow clients do not
    keep a probe out.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        page: Callable[[str, str], Page],
        clock: Callable[[], float],
    ) -> None:
        self.page, self._clock = page, clock
        self._is_closing = False
        self.timeout = TURN_S
        self._lock = Lock()
        self._open: dict[socket, float] = {}  # and when each was accepted, the oldest first
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        super().__init__(address, handler)

    def serve(self) -> None:
        """Handle requests until `stop` is called. An idle server costs one short turn a second."""
        while not self._is_closing:
            self.handle_request()
            self.service_actions()

    def stop(self) -> None:
        self._is_closing = True
        host, port = self.server_address[:2]
        with suppress(OSError), create_connection((str(host), port), TURN_S):
            """`serve` waits for a connection: it need not wait for its next turn."""

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = self._clock()
            excess = list(self._open)[: max(0, len(self._open) - CONNECTIONS_MAX)]
        self._end(excess)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End the connections whose deadline has passed."""
        now_s = self._clock()
        with self._lock:
            late = [each for each, since_s in self._open.items() if now_s - since_s > REQUEST_S]
        self._end(late)

    def _end(self, connections: list[socket]) -> None:
        """The thread of a connection then reads its end, and closes it."""
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Errors of a request are not logged, for example that the client has disconnected."""


class _Handler(BaseHTTPRequestHandler):
    """One request per connection: HTTP/1.0 closes it afterwards."""

    timeout = REQUEST_S
    server: BoundedServer
    server_version, sys_version = "pumphouse", ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        status, content_type, body = self.server.page(path, self.headers.get("Host", ""))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""

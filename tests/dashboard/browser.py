"""A hub, `pumphouse dash` as a process, and Debian's chromium, for the browser tests.

Playwright's blocking interface runs its own event loop in this thread, so coroutines of the tests
run in another thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from pumphouse.homes.schema import HUBS
from pumphouse.hub.embedded import EmbeddedHub

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--disable-sync",
)
PATIENCE_MS = 60_000
STOP_S = 30.0


def find_chromium() -> str:
    """The path of the browser that scripts/chromium finds."""
    names = os.environ.get("CHROMIUM", "chromium chromium-browser google-chrome").split()
    for name in names:
        if path := shutil.which(name):
            return path
    raise AssertionError("no browser path: run scripts/chromium, or set CHROMIUM")


@contextmanager
def open_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=[*ARGUMENTS])
        try:
            yield browser
        finally:
            browser.close()


def run_in_thread(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in another thread: this one runs the event loop of the browser."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class DashProcess:
    """`pumphouse dash` as a process that can be stopped and restarted."""

    def __init__(self, connection: str, *arguments: str, port: int = 0, token: str = "") -> None:
        self.connection, self.arguments, self.port = connection, arguments, port
        self.env = {"PUMPHOUSE_DASH_TOKEN": token} if token else {}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pumphouse", "dash", "-o", "json"),
                *("--port", str(self.port), *self.arguments),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "EVENT_HUB_CONN_STR": self.connection, **self.env},
            text=True,
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.port, self.url = ready["port"], ready["url"]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def dispose(self) -> None:
        if self.process.poll() is None:
            try:
                self.stop()
            finally:
                self.process.kill()
                self.process.wait()


@contextmanager
def homes_hub(partitions: int) -> Iterator[EmbeddedHub]:
    """The hubs of the homes with a consumer group for the page, and a group for hosts."""
    with EmbeddedHub(dict.fromkeys(HUBS, partitions)) as hub:
        for name in HUBS:
            hub.create_group(name, "page")
        hub.create_group("sensors", "counters")
        yield hub


def dash_arguments(folder: Path, *, homes: int, fleet: str, lease: str, every: str) -> list[str]:
    return [
        *("--homes", "--homes-count", str(homes), "--events-group", "page", "--write"),
        *("--fleet", f"sensors/{fleet}", "--lease", lease, "--every", every),
        *("--store", str(folder / "leases.db"), "--status", str(folder / "status.json")),
        *("--database", str(folder / "homes.db")),
    ]


class BrowserLog:
    """Records the errors of a browser and its requests to other servers."""

    def __init__(self, context: BrowserContext, port: int) -> None:
        self.context, self.own = context, f"127.0.0.1:{port}"
        self.errors: list[str] = []
        self.foreign_requests: list[str] = []
        context.on("request", lambda request: self.add_request(request.url))
        context.on("page", self.watch)

    def watch(self, page: Page) -> None:
        page.on("console", lambda entry: self.add_console(entry.type, entry.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def add_request(self, url: str) -> None:
        if urlsplit(url).netloc != self.own:
            self.foreign_requests.append(url)

    def add_console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(text)

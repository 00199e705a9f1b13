"""A private Prometheus from Debian's package, on a free port of the loopback address."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

LIMIT_S = 60.0
ATTEMPTS = 3  # another program may take the free port first

CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: lag
    {targets}
"""


class Prometheus:
    """Scrapes the targets every second, and answers PromQL.

    `targets` are addresses, or the URL of a list of them, which is read every second.
    """

    def __init__(
        self, folder: Path, targets: Iterable[str] | str, limit_s: float = LIMIT_S
    ) -> None:
        self._limit_s = limit_s  # of the time until an answer is as expected
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self._config = folder / "prometheus.yml"
        found = (
            {"http_sd_configs": [{"url": targets, "refresh_interval": "1s"}]}
            if isinstance(targets, str)
            else {"static_configs": [{"targets": list(targets)}]}
        )
        self._config.write_text(CONFIG.format(targets=json.dumps(found)[1:-1]))

    def __enter__(self) -> Self:
        for _ in range(ATTEMPTS):
            self._start()
            if self._is_ready():
                return self
        raise RuntimeError((self._folder / "log").read_text()[-2000:])

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(LIMIT_S)

    def _start(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={self._config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self.address}",
                ],
                stdout=log,
                stderr=log,
            )

    def _is_ready(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + LIMIT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5):
                    return True
            except OSError:
                time.sleep(0.05)
        return False

    def ask(self, query: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series that the query finds."""
        words = urllib.parse.urlencode({"query": query})
        url = f"http://{self.address}/api/v1/query?{words}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                reply: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        results = reply["data"]["result"]
        return [(each["metric"], float(each["value"][1])) for each in results]

    def values(self, query: str, *labels: str) -> dict[tuple[str, ...], float]:
        results = self.ask(query)
        return {tuple(each.get(label, "") for label in labels): value for each, value in results}

    def until(self, query: str, expected: dict[tuple[str, ...], float], *labels: str) -> None:
        """Wait until the query has these values, by these labels."""
        deadline = time.monotonic() + self._limit_s
        while (values := self.values(query, *labels)) != expected:
            assert time.monotonic() < deadline, f"{query}: {values}, expected {expected}"
            time.sleep(0.1)

    def until_series(self, *queries: str) -> None:
        """Wait until each query has found a series with a value, which NaN is not."""
        deadline = time.monotonic() + self._limit_s
        while queries := tuple(query for query in queries if not self.has_values(query)):
            assert time.monotonic() < deadline, f"no values: {queries}"
            time.sleep(0.1)

    def has_values(self, query: str) -> bool:
        """A quantile without values in its span is NaN, as is 0 / 0."""
        return any(not math.isnan(value) for _, value in self.ask(query))


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"these tests need {name}: run scripts/prometheus, or make test")
    return path


def free_port() -> int:
    """A port that is free now; Prometheus cannot choose one itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def promtool(*args: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *args],
        input=text,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

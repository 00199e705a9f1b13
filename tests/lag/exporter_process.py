"""`pumphouse lag-exporter` as a process, and its pages."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from tests.cli.conftest import Program

LIMIT_S = 60.0
STATUS = "eventhub_consumergroup_status"


class Exporter:
    """A running exporter. The secrets in its options must not appear on its pages."""

    def __init__(self, *args: str, connection: str) -> None:
        options = ("--port", "0", "--interval", "200ms", "-o", "json")
        self.program = Program("lag-exporter", *options, *args, connection=connection)
        self.port = int(json.loads(self.program.line())["port"])

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def page(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.target}{path}", timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def until_ready(self) -> None:
        self.until_page("/readyz", 200, "ok")

    def until_page(self, path: str, status: int, text: str) -> str:
        deadline = time.monotonic() + LIMIT_S
        while True:
            page = self.page(path)
            if page[0] == status and text in page[1]:
                return page[1]
            assert time.monotonic() < deadline, f"{path}: {page}"
            time.sleep(0.05)

    def series(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Labels and values by the name of the sample."""
        samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(self.page("/metrics")[1]):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        return samples

    def until_names(self, expected: Callable[[set[str]], bool]) -> None:
        """Wait until the names of the samples are as expected."""
        deadline = time.monotonic() + LIMIT_S
        while not expected(names := set(self.series())):
            assert time.monotonic() < deadline, names
            time.sleep(0.05)

    def until_group(self, name: str) -> None:
        """Wait until the partitions of this group have a status."""
        deadline = time.monotonic() + LIMIT_S
        while not any(labels["group"] == name for labels, _ in self.series().get(STATUS, ())):
            assert time.monotonic() < deadline, self.page("/metrics")
            time.sleep(0.05)

    def dispose(self) -> None:
        self.program.dispose()


@contextmanager
def exporter(*args: str, connection: str) -> Iterator[Exporter]:
    running = Exporter(*args, connection=connection)
    try:
        yield running
    finally:
        running.dispose()

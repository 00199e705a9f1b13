"""A process that is started, probed and ended as Kubernetes does with a container."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

DEFAULT_GRACE_S = 30.0  # terminationGracePeriodSeconds
START_S = 120.0  # until it is ready, on a busy machine
EVERY_S = 0.05
READY, NOT_READY, NOT_LISTENING = 200, 503, 0


class Kubelet:
    """Probes /readyz of a process, and records each change of its status."""

    def __init__(self, process: subprocess.Popen[Any], address: str) -> None:
        self._process, self._address = process, address
        self.statuses = [NOT_LISTENING]

    def until_ready(self) -> None:
        deadline_s = time.monotonic() + START_S
        while self._probe() != READY:
            assert self._process.poll() is None, "it has ended"
            assert time.monotonic() < deadline_s, "it is not ready"
            time.sleep(EVERY_S)
        assert READY not in self.statuses[:-1], "it was ready before, and then not"

    def terminate(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Send SIGTERM. It must end with status 0 before SIGKILL would follow, and must not be
        ready again after it was not."""
        deadline_s = time.monotonic() + grace_s
        self.statuses = [READY]
        self._process.send_signal(signal.SIGTERM)
        while self._process.poll() is None:
            assert time.monotonic() < deadline_s, f"it runs after {grace_s:g} s: {self.statuses}"
            self._probe()
            time.sleep(EVERY_S)
        assert READY not in self.statuses[1:], self.statuses
        assert self._process.returncode == 0

    def _probe(self) -> int:
        status = status_of(f"{self._address}/readyz")
        if status != self.statuses[-1]:
            self.statuses.append(status)
        return status


def status_of(url: str) -> int:
    try:
        with urlopen(url, timeout=30) as response:
            status: int = response.status
            return status
    except HTTPError as error:
        return error.code
    except (URLError, OSError):  # it does not listen, or closed the connection
        return NOT_LISTENING

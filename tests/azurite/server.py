"""Azurite, Microsoft's emulator of Blob Storage, as a separate process on a free port.

It runs in memory, with a clock that tests can advance (clock.cjs), and ends with its parent.
"""

from __future__ import annotations

import queue
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Self

from pumphouse.clock import MovableClock

HERE = Path(__file__).parent
MAIN = HERE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
OPTIONS = """--blobHost 127.0.0.1 --blobPort 0 --inMemoryPersistence --skipApiVersionCheck
    --disableTelemetry --silent"""
# It listens after a second or two; on a busy machine later.
LIMIT_S = 90.0

# The account of every Azurite. The key is public, and still must not be in our error texts.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Azurite:
    """One Azurite process. `clock` shows the same time as its clock."""

    def __init__(self) -> None:
        self.port = 0
        self.clock = MovableClock()
        self._lines: queue.Queue[str] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        if (node := shutil.which("node")) is None or not MAIN.is_file():
            raise RuntimeError(
                "the tests of blob stores need node and Azurite: run scripts/npm-ci, or make test"
            )
        self._process = subprocess.Popen(
            [node, "--require", str(HERE / "clock.cjs"), str(MAIN), *OPTIONS.split()],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        listening = self._await(r"successfully listens on http://127\.0\.0\.1:(\d+)")
        self.port = int(listening[1])

    def stop(self) -> None:
        if (process := self._process) is not None:
            process.terminate()
            process.wait(LIMIT_S)
            assert process.stdin is not None
            process.stdin.close()

    def advance(self, seconds: float) -> None:
        """Advance its clock. Blobs of other tests age too."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"advance {seconds}\n")
        self._process.stdin.flush()
        self._await(r"^advanced ")
        self.clock.advance(seconds)

    def connection_string(self, port: int | None = None) -> str:
        """The connection string for its own port, or for that of a proxy."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port or self.port}/{ACCOUNT};"
        )

    def _await(self, pattern: str) -> re.Match[str]:
        lines: list[str] = []
        while True:
            try:
                lines.append(self._lines.get(timeout=LIMIT_S))
            except queue.Empty:
                lines.append("")
            if match := re.search(pattern, lines[-1]):
                return match
            if not lines[-1]:
                raise RuntimeError(
                    f"Azurite did not print {pattern!r}; it printed: {''.join(lines)!r}"
                )

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")

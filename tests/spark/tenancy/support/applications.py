"""A Spark application as a group of processes: its parts can be paused and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pumphouse.spark.tenancy.journal import JournalRange, from_offset
from tests.spark.support.processes import command_line, descendants
from tests.spark.support.waiting import until
from tests.spark.tenancy.support.breakpoints import FOLDER, Breakpoints

ROOT = Path(__file__).parents[4]
JOB = Path(__file__).parent / "job.py"
UNTIL_S = 900
ENVIRONMENT = {
    **os.environ,
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYTHONPATH": str(ROOT),  # workers import what is pickled by name
}
RUNNER, DAEMON, JAVA = "python_streaming_source_runner", "pyspark.daemon", "java"


def send_signal(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


class Application:
    """One Spark application."""

    def __init__(self, folder: Path, settings: dict[str, object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.checkpoint = folder, Path(str(settings["checkpoint"]))
        self.log, self.breakpoints = folder / "output.txt", Breakpoints(folder / "breakpoints")
        self._orphans: list[int] = []  # processes of a driver that was killed
        (folder / "settings.json").write_text(json.dumps(settings))
        with self.log.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(JOB), str(folder / "settings.json")], stdout=output,
                stderr=output, env=ENVIRONMENT | {FOLDER: str(self.breakpoints.folder)},
                start_new_session=True,
            )  # fmt: skip

    def output(self) -> str:
        return self.log.read_text()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def processes(self) -> list[int]:
        """All its processes; the application itself last."""
        return [*descendants(self.process.pid), self.process.pid]

    def processes_of(self, kind: str) -> list[int]:
        """The processes of a kind: the runner, the JVM, or workers that run tasks."""
        processes = self.processes()
        if kind == DAEMON:
            daemons = [each for each in processes if DAEMON in command_line(each)]
            # The daemon itself is the parent of the workers.
            return [each for each in daemons if not set(descendants(each)) & set(daemons)]
        if kind == RUNNER:
            return [each for each in processes if kind in command_line(each)]
        return [each for each in processes if kind in command_line(each).split(" -")[0]]

    def kill(self) -> None:
        """kill -9 of all processes at once."""
        for each in [*self.processes(), *self.orphans()]:
            send_signal(each, signal.SIGKILL)
        self.process.wait(60)

    def kill_driver(self) -> None:
        """kill -9 of the JVM and of the script that started it; the others end by themselves."""
        self._orphans = descendants(self.process.pid)
        for each in [self.process.pid, *self.processes_of(JAVA)]:
            send_signal(each, signal.SIGKILL)
        self.process.wait(60)

    def orphans(self) -> list[int]:
        """The processes that have outlived their driver."""
        return [each for each in self._orphans if "pyspark" in command_line(each)]

    def pause_at(self, stage: str) -> int:
        """Wait until a batch is paused at this stage; the process that is paused."""
        self.breakpoints.set(stage)
        reason = f"no process reaches {stage}: {self.output()}"
        until(lambda: self.breakpoints.paused is not None, UNTIL_S, reason, every_s=0.1)
        paused = self.breakpoints.paused
        assert paused is not None
        return paused

    def suspend(self) -> None:
        for each in self.processes():
            send_signal(each, signal.SIGSTOP)

    def resume(self) -> None:
        for each in reversed(self.processes()):
            send_signal(each, signal.SIGCONT)

    def batches(self, kind: str) -> set[int]:
        """The batches that Spark has planned (offsets) or committed (commits)."""
        with suppress(OSError):
            names = [path.name for path in (self.checkpoint / kind).iterdir()]
            return {int(name) for name in names if name.isdecimal()}
        return set()

    def in_flight(self) -> set[int]:
        """The batch that is planned and not committed, if there is one."""
        committed = max(self.batches("commits") | {-1})
        return {batch for batch in self.batches("offsets") if batch > committed}

    def journal(self) -> dict[str, JournalRange]:
        """What the newest batch reads, of each partition."""
        newest = max(self.batches("offsets"))
        offset = (self.checkpoint / "offsets" / str(newest)).read_text().splitlines()[-1]
        return dict(from_offset("sensors", offset).ranges)

"""After kill -9 of the application no event is lost, and duplicates have the same identity.

Slow: `make test-spark` runs it (`-m cluster`), `make test` does not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks._alert_score import Truth, due_by, overall, score
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import (
    DAY_MS,
    KINDS,
    MINUTE_MS,
    decode_activity,
    decode_alert,
    home_id,
)
from pumphouse.homes.simulator.incidents import MANY
from pumphouse.homes.simulator.sensors import HomeSimulator
from tests.homes.streams import put_in_turn, read_all
from tests.homes.watch.activity_columns import FIRST_MINUTE, identities, kept

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("homes"), pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
UNTIL_S = 600
MINUTES = 480


@contextmanager
def stages(namespace: HomesNamespace, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The running stages; at the end all their processes are killed."""
    with open(folder / "said", "ab") as log:
        job = subprocess.Popen(
            [sys.executable, "-m", "tests.homes.stages_process", str(folder)],
            stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
    assert job.stdin is not None
    job.stdin.write(namespace.connection.encode() + b"\n")
    job.stdin.flush()
    try:
        yield job
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.stdin.close()
        job.wait(60)


def until(done: Callable[[], bool], job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + UNTIL_S
    while not done():
        assert time.monotonic() < deadline
        assert job.poll() is None, "the job has ended"
        time.sleep(0.5)


def test_a_kill_loses_nothing_and_duplicates_have_the_same_identity(
    namespace: HomesNamespace, tmp_path: Path
) -> None:
    simulator, end = HomeSimulator(40, 7, MANY), FIRST_MINUTE + MINUTES
    batches = [simulator.minute(minute) for minute in range(FIRST_MINUTE, end)]
    expected = {i for batch in batches for i in identities(kept(batch.columns))}
    due = due_by(simulator.truth(FIRST_MINUTE, end), (end - 6) * MINUTE_MS)
    half = MINUTES // 2
    put_in_turn(namespace, "sensors", [batch.events() for batch in batches[:half]])
    with stages(namespace, tmp_path) as job:
        # In the middle of both: some of each has been written, and more is on its way.
        until(lambda: len(read_all(namespace, "alerts")) > 0, job)
        put_in_turn(namespace, "sensors", [batch.events() for batch in batches[half:]])
    before = len(read_all(namespace, "activity"))
    assert before < len(expected)
    with stages(namespace, tmp_path) as job:
        until(
            lambda: len({event.body for event in read_all(namespace, "activity")}) >= len(expected),
            job,
        )
        until(lambda: recall(namespace, due) == 1.0, job)

    readings = [decode_activity(event.body).reading for event in read_all(namespace, "activity")]
    assert {r.identity for r in readings} == {as_identity(*identity) for identity in expected}
    # A repeat is the same in every byte.
    assert len({event.body for event in read_all(namespace, "activity")}) == len(expected)
    alerts = [decode_alert(event.body) for event in read_all(namespace, "alerts")]
    truth = simulator.truth(FIRST_MINUTE - 2 * DAY_MS // MINUTE_MS, end)
    assert overall(score(truth, alerts)).precision == 1.0


def recall(namespace: HomesNamespace, due: list[Truth]) -> float:
    alerts = [decode_alert(event.body) for event in read_all(namespace, "alerts")]
    return overall(score(due, alerts)).recall


def as_identity(home: int, sensor: int, seq: int) -> tuple[str, str, int]:
    return home_id(home), KINDS[sensor], seq

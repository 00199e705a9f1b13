"""A Spark application that shares a group is killed or suspended during a batch: real processes.

Slow: `make test-spark` runs them (`-m cluster`), `make test` does not. KILLS is the number of
kills, SEED their order. With 12 kills, each kind of process is killed once at each stage.
"""

from __future__ import annotations

import os
import signal
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from pumphouse.spark.versions.features import SHARING
from tests.spark.tenancy.support.application_group import ApplicationGroup, application_group
from tests.spark.tenancy.support.applications import (
    DAEMON,
    JAVA,
    RUNNER,
    Application,
    send_signal,
)
from tests.spark.tenancy.support.breakpoints import STAGES
from tests.spark.tenancy.support.copied_events import (
    ContinuousSender,
    are_all_copied,
    compare,
    read_copies,
    without_repeats,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.needs(SHARING),
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(3000),
]

SEED = int(os.environ.get("SEED", "7"))
KILLS = int(os.environ.get("KILLS", "12"))
DRIVER, WORKER = "driver", "worker"


def test_killed_at_every_stage_of_a_batch(tmp_path: Path) -> None:
    """No event is missing; only the batch in flight is repeated, and its identities show that."""
    rng = Random(SEED)
    may_repeat: set[int] = set()
    with (
        application_group(tmp_path, 4, lease_s=60.0, renew_s=5.0, interval_s=1.0) as group,
        ContinuousSender(group.hubs, events=10, every_s=0.5) as sender,
    ):
        application = start_pausing(group)
        for victim, stage in islice(kills(rng), KILLS):
            group.until_progress()
            may_repeat |= kill_at(application, victim, stage, rng)
            if victim == DRIVER:
                application = start_pausing(group)
        group.until_progress()
        sender.stop()
        group.until(lambda: are_all_copied(group.hubs, sender.sent), "events are missing")
        group.until(
            lambda: not any(app.orphans() for app in group.applications), "processes are left"
        )
        copies = read_copies(group.hubs)
    comparison = compare(copies, sender.sent)
    assert comparison.is_complete_and_ordered, comparison
    assert comparison.repeated_batches <= may_repeat, (comparison, may_repeat)
    deduplicated = compare(without_repeats(copies), sender.sent)
    assert deduplicated.is_complete_and_ordered, deduplicated
    assert not deduplicated.repeated, deduplicated


def start_pausing(group: ApplicationGroup) -> Application:
    # With small Arrow batches a task has read only some of its rows when it reaches a breakpoint.
    return group.start("one", form="pausing", maxEventsPerTrigger="800", arrowBatchRows="10")


def kills(rng: Random) -> Iterator[tuple[str, str]]:
    """Each victim at each stage, repeatedly, in a new order each time."""
    pairs = list(product((DRIVER, RUNNER, WORKER), STAGES))
    while True:
        yield from rng.sample(pairs, len(pairs))


def kill_at(application: Application, victim: str, stage: str, rng: Random) -> set[int]:
    """Kill a process while a batch is paused at this stage; the batches that may be repeated."""
    paused = application.pause_at(stage)
    (batch,), batch_after = application.in_flight(), set[int]()
    if victim == DRIVER:
        rng.choice((application.kill, application.kill_driver))()
    elif victim == RUNNER:
        send_signal(application.processes_of(RUNNER)[-1], signal.SIGKILL)
    elif paused in (workers := application.processes_of(DAEMON)):
        send_signal(paused, signal.SIGKILL)
    else:
        send_signal(rng.choice(workers), signal.SIGKILL)
        batch_after = {batch + 1}  # the worker was idle: the next batch fails on it
    application.breakpoints.clear()
    return {batch} | batch_after


def test_an_application_suspended_beyond_its_lease_loses_its_partitions_and_continues(
    tmp_path: Path,
) -> None:
    """A batch is written, and the driver is suspended before it can commit."""
    with (
        application_group(tmp_path, 4, lease_s=20.0, renew_s=3.0, interval_s=3.0) as group,
        ContinuousSender(group.hubs) as sender,
    ):
        suspended = start_pausing(group)
        group.until_shared(one=4)
        group.until_progress()
        group.start("two")
        group.until_shared(one=2, two=2)
        lost = group.leases.owned("one")
        group.until_progress()
        suspended.pause_at("committing")
        suspended.suspend()
        try:
            group.until_shared(two=4)
            group.until_progress()
            epochs_of_two = group.leases.epochs()
        finally:
            suspended.breakpoints.clear()
            suspended.resume()
        group.until(
            lambda: all(logs_new_owner(suspended, partition, "two") for partition in lost),
            "no loss is logged",
        )
        checkpoints = group.leases.checkpoints()
        assert all(checkpoints[partition].epoch >= epochs_of_two[partition] for partition in lost)
        group.until_shared(one=2, two=2)
        assert suspended.is_alive
        assert "start 0:" not in suspended.output()  # the query was not restarted
        group.until_progress()
        sender.stop()
        group.until(lambda: are_all_copied(group.hubs, sender.sent), "events are missing")
        comparison = compare(read_copies(group.hubs), sender.sent)
    assert comparison.is_complete_and_ordered, comparison
    assert {name for name, _ in comparison.repeated_events} <= lost, comparison


def logs_new_owner(application: Application, partition: str, owner: str) -> bool:
    text = f'partition_taken partition={partition} why="{owner} owns it'
    return text in application.output()


def test_the_partitions_are_released_when_the_jvm_is_killed(tmp_path: Path) -> None:
    """The runner sees that its driver has ended, and releases its partitions at once."""
    with (
        application_group(tmp_path, 4, lease_s=300.0, renew_s=5.0, interval_s=2.0) as group,
        ContinuousSender(group.hubs) as sender,
    ):
        killed = group.start("one")
        group.until_shared(one=4)
        group.until_progress()
        for process in killed.processes_of(JAVA):
            send_signal(process, signal.SIGKILL)
        group.until(lambda: not group.leases.shares(group.lease_s), "no partition is released")
        killed.kill()
        group.start("one")
        group.until_shared(one=4)
        sender.stop()
        group.until(lambda: are_all_copied(group.hubs, sender.sent), "events are missing")
        comparison = compare(read_copies(group.hubs), sender.sent)
    assert comparison.is_complete_and_ordered, comparison

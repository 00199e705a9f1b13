"""A Spark application as a tenant, killed or stopped in the middle of a batch: real processes.

Slow: `make test-spark` runs them (`-m cluster`), `make test` does not. KILLS says how often, SEED
in which order; twelve kills are each victim at each stage once.
"""

from __future__ import annotations

import os
import signal
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from .tenants.fleet import (
    DAEMON,
    JAVA,
    RUNNER,
    App,
    Sender,
    all_copied,
    copied,
    judge,
    send_signal,
    until,
    without_repeats,
)
from .tenants.gates import STAGES
from .tenants.street import Street, street_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(3000),
]

SEED = int(os.environ.get("SEED", "7"))
KILLS = int(os.environ.get("KILLS", "12"))
DRIVER, WORKER = "driver", "worker"


def test_killed_at_every_stage_of_a_batch(tmp_path: Path) -> None:
    """No gap; what comes again is of the batch in hand; and by its identities nothing does."""
    rng = Random(SEED)
    may_repeat: set[int] = set()
    with (
        street_of(tmp_path, 4, lease_s=60.0, renew_s=5.0, interval_s=1.0) as street,
        Sender(street.hubs, each=10, every_s=0.5) as sender,
    ):
        app = start_held(street)
        for victim, stage in islice(deaths(rng), KILLS):
            street.until_moving()
            may_repeat |= kill_at(app, victim, stage, rng)
            if victim == DRIVER:
                app = start_held(street)
        street.until_moving()
        sender.stop()
        street.until(lambda: all_copied(street.hubs, sender.sent), "not everything is copied")
        until(lambda: not any(one.left() for one in street.apps), "somebody was left behind")
        found = copied(street.hubs)
    verdict = judge(found, sender.sent)
    assert verdict.sound, verdict
    assert verdict.batches <= may_repeat, (verdict, may_repeat)
    once = judge(without_repeats(found), sender.sent)
    assert once.sound, once
    assert not once.repeated, once


def start_held(street: Street) -> App:
    # A task hands over many times: so some of it is read and some is not.
    return street.start("one", form="held", maxEventsPerTrigger="800", arrowBatchRows="10")


def deaths(rng: Random) -> Iterator[tuple[str, str]]:
    """Each victim at each stage, again and again, in a new order each time."""
    every = list(product((DRIVER, RUNNER, WORKER), STAGES))
    while True:
        yield from rng.sample(every, len(every))


def kill_at(app: App, victim: str, stage: str, rng: Random) -> set[int]:
    """Kill it while a batch is held at that stage; the batches that may come again by that."""
    holder = app.hold_at(stage)
    (batch,), batch_after = app.in_flight(), set[int]()
    if victim == DRIVER:
        rng.choice((app.kill, app.kill_driver))()
    elif victim == RUNNER:
        send_signal(app.of_kind(RUNNER)[-1], signal.SIGKILL)
    elif holder in (workers := app.of_kind(DAEMON)):
        send_signal(holder, signal.SIGKILL)
    else:
        send_signal(rng.choice(workers), signal.SIGKILL)
        batch_after = {batch + 1}  # misses a worker that had nothing to do
    app.gate.open()
    return {batch} | batch_after


def test_stopped_beyond_the_lease_and_continued(tmp_path: Path) -> None:
    """A batch is written, and the driver stands still before it can say so, for too long."""
    with (
        street_of(tmp_path, 4, lease_s=20.0, renew_s=3.0, interval_s=3.0) as street,
        Sender(street.hubs) as sender,
    ):
        one = start_held(street)
        street.until_shared(one=4)
        street.until_moving()
        street.start("two")
        street.until_shared(one=2, two=2)
        had = street.leases.owned("one")
        street.until_moving()
        one.hold_at("committing")
        one.pause()
        try:
            street.until_shared(two=4)
            street.until_moving()
            taken = street.leases.epochs()
        finally:
            one.gate.open()
            one.go_on()
        street.until(lambda: all(names(one, part, "two") for part in had), "it tells of no loss")
        marks = street.leases.checkpoints()
        assert all(marks[part].epoch >= taken[part] for part in had)
        street.until_shared(one=2, two=2)
        assert one.alive
        assert "start 0:" not in one.said()  # the query itself went on
        street.until_moving()
        sender.stop()
        street.until(lambda: all_copied(street.hubs, sender.sent), "not everything is copied")
        verdict = judge(copied(street.hubs), sender.sent)
    assert verdict.sound, verdict
    assert {part for part, _ in verdict.events} <= had, verdict


def names(app: App, partition: str, other: str) -> bool:
    """Whether it has told who has a partition now that was its own."""
    return f"partition {partition} is not ours any more: {other} has it" in app.said()


def test_java_alone_is_killed_and_its_partitions_are_given_up(tmp_path: Path) -> None:
    """The runner hears that its driver is gone, and releases what it owns at once."""
    with (
        street_of(tmp_path, 4, lease_s=300.0, renew_s=5.0, interval_s=2.0) as street,
        Sender(street.hubs) as sender,
    ):
        one = street.start("one")
        street.until_shared(one=4)
        street.until_moving()
        for each in one.of_kind(JAVA):
            send_signal(each, signal.SIGKILL)
        street.until(lambda: not street.leases.shares(street.lease_s), "nothing was released")
        one.kill()
        street.start("one")
        street.until_shared(one=4)
        sender.stop()
        street.until(lambda: all_copied(street.hubs, sender.sent), "not everything is copied")
        verdict = judge(copied(street.hubs), sender.sent)
    assert verdict.sound, verdict

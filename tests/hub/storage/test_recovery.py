"""The hub starts on data directories that were damaged at random.

Whatever the damage: the hub starts (or names the file that it needs), every acknowledged group
without a changed byte is read unchanged, nothing is read that was never written, missing events are
reported, and the hub stores new events.

`PUMPHOUSE_FUZZ_ROUNDS` sets the number of directories; a failure names its seed and the damage.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from pumphouse.errors import AmqpError, DataDirectoryError
from pumphouse.events import Position
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.storage import disk_log
from pumphouse.hub.storage.base import Log
from tests.hub.events import batch_of, offsets_and_bodies
from tests.hub.storage.damage import WHOLE_FILE, DamagedDirectory, KnownGroup

ROUNDS = int(os.environ.get("PUMPHOUSE_FUZZ_ROUNDS", "120"))
PER_TEST = 60  # two tests by default: one for each process of `pytest -n 2`
RECORDS = 40
HUBS = {"doors": 2, "windows": 3}
DEADLINE_S = 30.0
READ_ON = re.compile(r"Read on from (?:sequence number (\d+)|the end)")

Event = tuple[int, bytes]  # offset, body
PartitionKey = tuple[str, int]  # hub, partition
Contents = dict[PartitionKey, dict[int, Event]]
Known = list[KnownGroup]

PARTITIONS: list[PartitionKey] = [(name, p) for name, count in HUBS.items() for p in range(count)]


@pytest.fixture(autouse=True, scope="module")
def small_segments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_log, "FIRST_SEGMENT_BYTES", 2000)
        patch.setattr(disk_log, "SEGMENT_BYTES", 5000)
        # No crash of the machine is simulated, so syncing the disk would only cost time.
        patch.setattr(os, "fdatasync", lambda fd: None)
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(scope="module")
def original(small_segments: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Known]:
    """An intact directory with several segments per partition, and its acknowledged groups."""
    path = tmp_path_factory.mktemp("original")
    rng = Random("original")
    with EmbeddedHub(HUBS, data=path) as hub:
        for number in range(150):
            name = rng.choice([*HUBS])
            partition = rng.randrange(HUBS[name])
            bodies = [
                f"{number}.{n} ".encode() * rng.randrange(12) for n in range(rng.choice([1, 3, 9]))
            ]
            assert publish(hub, (name, partition), bodies).result(DEADLINE_S) is None
        known = [group for key in PARTITIONS for group in groups_of(hub, key)]
    assert len({group.file for group in known}) > 15
    return path, known


def log_of(hub: EmbeddedHub, key: PartitionKey) -> Log:
    return hub.namespace.hub(key[0]).partitions[key[1]].log


def publish(hub: EmbeddedHub, key: PartitionKey, bodies: list[bytes]) -> Future[AmqpError | None]:
    """Publish a batch on the hub's thread; the future holds the error, if any."""
    done: Future[AmqpError | None] = Future()
    partition = hub.namespace.hub(key[0]).partitions[key[1]]
    hub._call(lambda: hub.namespace.publish(partition, batch_of(bodies), None, done.set_result))
    return done


def groups_of(hub: EmbeddedHub, key: PartitionKey) -> Iterator[KnownGroup]:
    """The groups that were written to a partition."""
    log = log_of(hub, key)
    assert isinstance(log, disk_log.DiskLog)
    for segment in log.segments:
        position = segment.index.positions[0]
        while (group := segment.group_at(position)) is not None:
            run = log.read(group.sequence, group.events, 1 << 30)
            assert run is not None
            assert hub.data is not None
            yield KnownGroup(
                *key,
                segment.path.relative_to(hub.data),
                (group.position, group.end),
                group.sequence,
                tuple(offsets_and_bodies(run)),
            )
            position = group.end


# -- reading a damaged directory ------------------------------------------------------------------


def read_all(log: Log, errors: list[AmqpError]) -> dict[int, Event]:
    """Every readable event. After an error, reading continues where the error text says."""
    events: dict[int, Event] = {}
    sequence = log.begin
    while True:
        try:
            run = log.read(sequence, 100, 3000)
        except AmqpError as damage:
            errors.append(damage)
            sequence = next_readable(damage, sequence)
            continue
        if run is None:
            return events
        for number, event in enumerate(offsets_and_bodies(run)):
            events[run.sequence + number] = event
        sequence = max(events) + 1


def next_readable(damage: AmqpError, sequence: int) -> int:
    """The sequence number that an error names to read on from."""
    match = READ_ON.search(damage.description)
    assert match is not None, damage
    onward = int(match[1] or 1 << 60)
    assert onward > sequence, damage
    return onward


def contents(hub: EmbeddedHub, errors: dict[PartitionKey, list[AmqpError]]) -> Contents:
    """The readable events of every partition, and the errors of reading them."""
    return {
        key: hub._call(partial(read_all, log_of(hub, key), errors.setdefault(key, [])))
        for key in PARTITIONS
    }


def events_of(group: KnownGroup) -> dict[int, Event]:
    return {group.sequence + number: event for number, event in enumerate(group.events)}


# -- checks ---------------------------------------------------------------------------------------


def damaged_copy(original: Path, target: Path, seed: str) -> DamagedDirectory:
    shutil.copytree(original, target)
    directory = DamagedDirectory(target, Random(seed))
    for _ in range(directory.rng.choice([1, 1, 2, 3, 6])):
        directory.damage()
    return directory


def check_directory(
    directory: DamagedDirectory, known: Known, caplog: pytest.LogCaptureFixture
) -> None:
    intact = [group for group in known if directory.survives(group)]
    errors: dict[PartitionKey, list[AmqpError]] = {}
    with EmbeddedHub(data=directory.path) as hub:
        first = contents(hub, errors)
        check_events(first, known, intact)
        messages = [record.getMessage() for record in caplog.records]
        check_reported(known, intact, messages, errors)
        check_positions(hub, directory.rng)
        new = send_to_all(hub)
    with EmbeddedHub(data=directory.path) as hub:
        second = contents(hub, {})
    # The second start keeps what the first one read, and what was sent since.
    for key, events in first.items():
        assert second[key].items() >= events.items(), key
        assert [body for _, body in second[key].values()][-len(new[key]) :] == new[key]


def check_events(contents: Contents, known: Known, intact: Known) -> None:
    """All events of intact groups are there, and no event that was never written."""
    written: Contents = {}
    for group in known:
        written.setdefault((group.hub, group.partition), {}).update(events_of(group))
    for key, events in contents.items():
        assert events.items() <= written[key].items(), f"never written: {key}"
    for group in intact:
        events = contents[group.hub, group.partition]
        assert events.items() >= events_of(group).items(), f"lost: {group}"


def check_reported(
    known: Known,
    intact: Known,
    messages: list[str],
    errors: dict[PartitionKey, list[AmqpError]],
) -> None:
    """A gap between intact files is logged when the hub starts, or is an error for its readers.

    A whole file lost at either end cannot be noticed: it looks like events that have expired, or
    that were never written.
    """
    lost = {(g.hub, g.partition, g.file) for g in known} - {
        (g.hub, g.partition, g.file) for g in intact
    }
    inner = {
        (hub, partition, file)
        for hub, partition, file in lost
        if any(g.file > file for g in intact if (g.hub, g.partition) == (hub, partition))
        and any(g.file < file for g in intact if (g.hub, g.partition) == (hub, partition))
    }
    for hub, partition, file in inner:
        reported = any(f"partition={partition}" in message for message in messages)
        assert reported or errors[hub, partition], f"{file} of {hub}: {messages}"


def check_positions(hub: EmbeddedHub, rng: Random) -> None:
    """Any position is located or refused, without another error."""
    for key in PARTITIONS:
        hub._call(partial(check_positions_of, log_of(hub, key), rng))


def check_positions_of(log: Log, rng: Random) -> None:
    for _ in range(5):
        for position in (
            Position("offset", str(rng.randrange(20_000)), inclusive=True),
            Position("sequence", str(rng.randrange(400)), inclusive=False),
            Position("time", str(rng.randrange(2_000_000_000_000)), inclusive=True),
        ):
            with suppress(AmqpError):
                log.locate(position)
    log.expire(0)


def send_to_all(hub: EmbeddedHub) -> dict[PartitionKey, list[bytes]]:
    """Send events to every partition: known damage is no reason to refuse them."""
    sent = {key: [f"new {n}".encode() * 40 for n in range(12)] for key in PARTITIONS}
    # All are sent before the first is waited for, so that they share few syncs of the disk.
    outcomes = hub._call(
        lambda: [publish(hub, key, [body]) for key, bodies in sent.items() for body in bodies]
    )
    assert [outcome.result(DEADLINE_S) for outcome in outcomes] == [None] * len(outcomes)
    return sent


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, ROUNDS, PER_TEST))
def test_a_damaged_directory(
    original: tuple[Path, Known], tmp_path: Path, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for number in range(first, min(ROUNDS, first + PER_TEST)):
        caplog.clear()
        directory = damaged_copy(original[0], tmp_path / str(number), f"ruin {number}")
        try:
            check_directory(directory, original[1], caplog)
        except BaseException as failure:
            failure.add_note(f"seed {number}: " + "; ".join(directory.steps))
            raise
        shutil.rmtree(directory.path)


def test_a_damaged_record(original: tuple[Path, Known], tmp_path: Path) -> None:
    """The hub does not start, names the file, and changes nothing."""
    path = tmp_path / "data"
    shutil.copytree(original[0], path)
    record = path / "namespace.json"
    intact = record.read_bytes()
    segments = sorted(path.rglob("*.log"))
    for seed in range(RECORDS):
        data = damaged_record(intact, seed)
        record.write_bytes(data)
        # A wrong bit in the name of the checksum removes the checksum, and nothing else.
        if b'"crc32"' in data or seed % 2:
            with pytest.raises(DataDirectoryError, match=r"namespace\.json"):
                EmbeddedHub(data=path).__enter__()
            assert record.read_bytes() == data, f"seed {seed}"
        assert sorted(path.rglob("*.log")) == segments, f"seed {seed}"
    record.write_bytes(intact)
    with EmbeddedHub(data=path) as hub:
        check_events(contents(hub, {}), original[1], original[1])


def damaged_record(intact: bytes, seed: int) -> bytes:
    """The record cut short, or with one wrong bit."""
    rng, data = Random(f"record {seed}"), bytearray(intact)
    if seed % 2:
        del data[rng.randrange(len(data)) :]
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def test_the_recorded_damage_covers_every_changed_byte(
    original: tuple[Path, Known], tmp_path: Path
) -> None:
    """Otherwise the checks above would expect too little, or too much."""
    directory = damaged_copy(original[0], tmp_path / "copy", "any")
    for path in sorted(original[0].rglob("*.log")):
        file = path.relative_to(original[0])
        copy = directory.path / file
        before, after = path.read_bytes(), copy.read_bytes() if copy.is_file() else b""
        spans = [] if after == before else directory.changed.get(file, [])
        assert after == before or spans, file
        if spans and WHOLE_FILE not in spans:
            changed = [n for n in range(min(len(before), len(after))) if before[n] != after[n]]
            assert all(any(s <= n < e for s, e in spans) for n in changed), file

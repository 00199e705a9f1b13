"""A data directory is ruined at random, and the hub is started on it.

Whatever was done: it starts (or says which file it cannot do without), every acknowledged group
whose bytes were not touched is read as it was written, nothing is read that was never written,
what is missing is told, and events are taken again and kept.

`PUMPHOUSE_FUZZ_ROUNDS` makes it longer; a failure names its seed and what was done.
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
from pumphouse.hub.storage import disk_log as disk
from pumphouse.hub.storage.base import Log
from tests.hub.events import batch_of, bodies_of, offsets_of
from tests.hub.ruin import EVERYTHING, KnownGroup, Ruin

ROUNDS = int(os.environ.get("PUMPHOUSE_FUZZ_ROUNDS", "120"))
PER_TEST = 20
HUBS = {"doors": 2, "windows": 3}
DEADLINE_S = 30.0
SAID = re.compile(r"Read on from (?:sequence number (\d+)|the end)")

Known = list[KnownGroup]


@pytest.fixture(autouse=True, scope="module")
def small_segments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "FIRST_SEGMENT_BYTES", 2000)
        patch.setattr(disk, "SEGMENT_BYTES", 5000)
        yield


@pytest.fixture(scope="module")
def original(small_segments: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Known]:
    """A sound directory of several segments each, and all that was acknowledged into it."""
    path = tmp_path_factory.mktemp("original")
    rng = Random("original")
    with EmbeddedHub(HUBS, data=path) as hub:
        for number in range(150):
            name = rng.choice([*HUBS])
            partition = rng.randrange(HUBS[name])
            bodies = [
                f"{number}.{n} ".encode() * rng.randrange(12) for n in range(rng.choice([1, 3, 9]))
            ]
            assert publish(hub, name, partition, bodies) is None
        known = [
            group for name in HUBS for p in range(HUBS[name]) for group in groups(hub, name, p)
        ]
    assert len({group.file for group in known}) > 15
    return path, known


def publish(hub: EmbeddedHub, name: str, partition: int, bodies: list[bytes]) -> AmqpError | None:
    said: Future[AmqpError | None] = Future()
    place = hub.namespace.hub(name).partitions[partition]
    hub._call(lambda: hub.namespace.publish(place, batch_of(bodies), None, said.set_result))
    return said.result(DEADLINE_S)


def groups(hub: EmbeddedHub, name: str, partition: int) -> Iterator[KnownGroup]:
    """What was written to a partition, group by group."""
    log = hub.namespace.hub(name).partitions[partition].log
    assert isinstance(log, disk.DiskLog)
    for segment in log.segments:
        position = segment.index.positions[0]
        while (group := segment.group_at(position)) is not None:
            run = log.read(group.sequence, group.events, 1 << 30)
            assert run is not None
            assert hub.data is not None
            yield KnownGroup(
                name,
                partition,
                segment.path.relative_to(hub.data),
                (group.position, group.end),
                group.sequence,
                tuple(offsets_of(run)),
                tuple(bodies_of(run)),
            )
            position = group.end


# -- what is there now ----------------------------------------------------------------------------

Event = tuple[int, bytes]  # offset, body


def read_all(log: Log) -> dict[int, Event]:
    """Every event, as a stubborn reader gets them: where it is refused it goes on as it is told."""
    found: dict[int, Event] = {}
    sequence = log.begin
    while True:
        try:
            run = log.read(sequence, 100, 3000)
        except AmqpError as damaged:
            sequence = further(damaged, sequence)
            continue
        if run is None:
            return found
        for place, event in enumerate(zip(offsets_of(run), bodies_of(run), strict=True)):
            found[run.sequence + place] = event
        sequence = max(found) + 1


def further(damaged: AmqpError, sequence: int) -> int:
    """Where a reader that was refused is told to go on."""
    said = SAID.search(damaged.description)
    assert said is not None, damaged
    onward = int(said[1] or 1 << 60)
    assert onward > sequence, damaged
    return onward


def contents(hub: EmbeddedHub) -> dict[tuple[str, int], dict[int, Event]]:
    """Of every partition of every hub."""
    return {
        (name, number): hub._call(partial(read_all, place.log))
        for name in HUBS
        for number, place in enumerate(hub.namespace.hub(name).partitions)
    }


def events_of(group: KnownGroup) -> dict[int, Event]:
    pairs = zip(group.offsets, group.bodies, strict=True)
    return {group.sequence + place: event for place, event in enumerate(pairs)}


# -- the judgement --------------------------------------------------------------------------------


def ruined(original: Path, target: Path, seed: str) -> Ruin:
    shutil.copytree(original, target)
    ruin = Ruin(target, Random(seed))
    for _ in range(ruin.rng.choice([1, 1, 2, 3, 6])):
        ruin.damage()
    return ruin


def judge(ruin: Ruin, known: Known, caplog: pytest.LogCaptureFixture) -> None:
    intact = [group for group in known if ruin.survives(group)]
    with EmbeddedHub(data=ruin.path) as hub:
        found = contents(hub)
        check(found, known, intact)
        check_told(found, known, intact, [record.getMessage() for record in caplog.records])
        look_everywhere(hub, ruin.rng)
        new = send_everywhere(hub)
    with EmbeddedHub(data=ruin.path) as hub:
        again = contents(hub)
    # Once more: neither the second start nor what was sent has cost anything.
    for place, events in found.items():
        assert again[place].items() >= events.items(), place
        assert [body for _, body in again[place].values()][-len(new[place]) :] == new[place]


def check(found: dict[tuple[str, int], dict[int, Event]], known: Known, intact: Known) -> None:
    truth: dict[tuple[str, int], dict[int, Event]] = {}
    for group in known:
        truth.setdefault((group.hub, group.partition), {}).update(events_of(group))
    for place, events in found.items():
        assert events.items() <= truth[place].items(), f"made up in {place}"
    for group in intact:
        held = found[group.hub, group.partition]
        assert held.items() >= events_of(group).items(), f"lost: {group}"


def check_told(
    found: dict[tuple[str, int], dict[int, Event]], known: Known, intact: Known, said: list[str]
) -> None:
    """A gap with something behind it is told when the hub starts, or to whoever reads there.

    What went with a whole file at either end cannot be told: so do events that have expired, and
    those that were never written. (That a reader is told is `read_all`, which found its way.)
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
        assert any(f"partition={partition}" in line for line in said), f"{file} of {hub}: {said}"


def look_everywhere(hub: EmbeddedHub, rng: Random) -> None:
    """Any position is found, or refused; nothing else comes out of it."""
    for name, count in HUBS.items():
        for number in range(count):
            log = hub.namespace.hub(name).partitions[number].log
            for _ in range(5):
                for position in (
                    Position("offset", str(rng.randrange(20_000)), inclusive=True),
                    Position("sequence", str(rng.randrange(400)), inclusive=False),
                    Position("time", str(rng.randrange(2_000_000_000_000)), inclusive=True),
                ):
                    with suppress(AmqpError):
                        hub._call(partial(log.locate, position))
            hub._call(partial(log.expire, 0))


def send_everywhere(hub: EmbeddedHub) -> dict[tuple[str, int], list[bytes]]:
    """Every partition takes events again: damage that is known is no reason to refuse."""
    sent = {}
    for name, count in HUBS.items():
        for number in range(count):
            sent[name, number] = [f"new {n}".encode() * 40 for n in range(12)]
            for body in sent[name, number]:
                assert publish(hub, name, number, [body]) is None
    return sent


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, ROUNDS, PER_TEST))
def test_a_ruined_directory(
    original: tuple[Path, Known], tmp_path: Path, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for number in range(first, min(ROUNDS, first + PER_TEST)):
        caplog.clear()
        ruin = ruined(original[0], tmp_path / str(number), f"ruin {number}")
        try:
            judge(ruin, original[1], caplog)
        except BaseException as wrong:
            wrong.add_note(f"seed {number}: " + "; ".join(ruin.story))
            raise
        shutil.rmtree(ruin.path)


@pytest.mark.parametrize("seed", range(40))
def test_a_ruined_record(original: tuple[Path, Known], tmp_path: Path, seed: int) -> None:
    """Without it nobody can know whose events these are: the hub says so, and touches nothing."""
    rng = Random(f"record {seed}")
    path = tmp_path / "data"
    shutil.copytree(original[0], path)
    record = path / "namespace.json"
    data = bytearray(record.read_bytes())
    if seed % 2:
        del data[rng.randrange(len(data)) :]
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    record.write_bytes(data)
    before = sorted(p for p in path.rglob("*.log"))
    # One bit can be wrong and no harm done: if it is in the name of the checksum itself.
    if b'"crc32"' in data or seed % 2:
        with pytest.raises(DataDirectoryError, match=r"namespace\.json"):
            EmbeddedHub(data=path).__enter__()
        assert record.read_bytes() == data
    assert sorted(p for p in path.rglob("*.log")) == before
    # Put back, it opens everything again.
    shutil.copyfile(original[0] / "namespace.json", record)
    with EmbeddedHub(data=path) as hub:
        check(contents(hub), original[1], original[1])


def test_the_ruin_knows_what_it_has_done(original: tuple[Path, Known], tmp_path: Path) -> None:
    """If it forgot what it touched, the judgement would be too lenient, or never fair."""
    ruin = ruined(original[0], tmp_path / "one", "any")
    for path in sorted(original[0].rglob("*.log")):
        file = path.relative_to(original[0])
        there = (ruin.path / file).read_bytes() if (ruin.path / file).is_file() else b""
        was = path.read_bytes()
        spans = [] if there == was else ruin.touched.get(file, [])
        assert there == was or spans, file
        if spans and EVERYTHING not in spans:
            changed = [n for n in range(min(len(was), len(there))) if was[n] != there[n]]
            assert all(any(s <= n < e for s, e in spans) for n in changed), file

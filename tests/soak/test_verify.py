"""The checks of a soak: a correct history passes, and every violation is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.soak import script
from tests.soak.records import Record, RecordReader, RecordWriter, digest, parse_record
from tests.soak.verify import Evidence, Verdict, terms_of, verify, verify_mixed

BODIES = [b"%d" % number for number in range(10)]
KEYS = ["even" if number % 2 == 0 else "odd" for number in range(10)]


class History:
    """Records of one partition, a second apart."""

    def __init__(self) -> None:
        self.records: list[Record] = [Record("ack", 0.0, "sender", "0", first=0, last=9)]

    def write(
        self, event: str, host: str, epoch: int, first: int = -1, last: int = -1, note: str = "-"
    ) -> None:
        at_s, term = float(len(self.records)), int(host[-1])
        self.records.append(Record(event, at_s, host, "0", epoch, term, first, last, note))

    def handle(self, host: str, epoch: int, first: int, last: int) -> None:
        self.write("in", host, epoch, first, last, note=digest(BODIES[first : last + 1]))
        self.write("out", host, epoch, first, last)

    def begin(self, host: str, epoch: int, number: int) -> None:
        self.write("in", host, epoch, number, number, note=digest(BODIES[number : number + 1]))

    def end(self, host: str, epoch: int, number: int) -> None:
        self.write("out", host, epoch, number, number)

    def leave(self, host: str, epoch: int, note: str = "hand-off") -> None:
        self.write("end", host, epoch, note=note)
        self.write("released", host, 0)

    def evidence(self, checkpoint: int | None = 9) -> Evidence:
        return Evidence(self.records, {"0": BODIES}, {"0": KEYS}, {"0": checkpoint})


def clean_move() -> History:
    """h1 hands over to h2 in good order."""
    history = History()
    history.write("open", "h1", 1)
    history.handle("h1", 1, 0, 3)
    history.write("checkpoint", "h1", 1, 3, 3)
    history.handle("h1", 1, 4, 5)
    history.leave("h1", 1)
    history.write("open", "h2", 2)
    history.handle("h2", 2, 6, 9)
    history.leave("h2", 2, "shutdown")
    return history


def crash() -> History:
    """h1 is killed while it handles a batch; h2 continues behind its checkpoint."""
    history = History()
    history.write("open", "h1", 1)
    history.handle("h1", 1, 0, 3)
    history.write("checkpoint", "h1", 1, 3, 3)
    history.handle("h1", 1, 4, 5)
    history.write("in", "h1", 1, 6, 7, note=digest(BODIES[6:8]))
    history.write("open", "h2", 2)
    history.handle("h2", 2, 4, 9)
    history.leave("h2", 2, "shutdown")
    return history


def frozen() -> History:
    """h1 is suspended while it handles a batch, and continues when h2 is active."""
    history = crash()
    history.write("out", "h1", 1, 6, 7)
    history.write("lost", "h1", 1, 7, 7)
    history.write("late", "h1", 1, 7, 7, note="refused")
    history.write("end", "h1", 1, note="lost")
    return history


def concurrent() -> History:
    """h1 handles two keys at once, and is killed; h2 continues behind its low-water mark."""
    history = History()
    history.write("open", "h1", 1, note="2")
    history.begin("h1", 1, 0)
    history.begin("h1", 1, 1)
    history.end("h1", 1, 0)
    history.begin("h1", 1, 2)
    history.end("h1", 1, 2)
    history.end("h1", 1, 1)
    history.write("checkpoint", "h1", 1, 2, 2)
    history.begin("h1", 1, 4)
    history.end("h1", 1, 4)
    history.begin("h1", 1, 3)
    history.write("open", "h2", 2, note="2")
    history.begin("h2", 2, 3)
    history.begin("h2", 2, 4)
    for number in range(5, 10):
        history.end("h2", 2, number - 2)
        history.begin("h2", 2, number)
    history.end("h2", 2, 8)
    history.end("h2", 2, 9)
    history.leave("h2", 2, "shutdown")
    return history


@pytest.mark.parametrize(
    ("history", "duplicates", "clean", "refused", "most_calls"),
    [
        (clean_move, 0, 1, 0, 1),
        (crash, 4, 0, 0, 1),
        (frozen, 4, 0, 1, 1),
        (concurrent, 2, 0, 0, 2),
    ],
)
def test_a_correct_history_passes(
    history: Callable[[], History], duplicates: int, clean: int, refused: int, most_calls: int
) -> None:
    verdict = verify(history().evidence())
    assert verdict == Verdict((), 10, duplicates, duplicates, 1, clean, refused, most_calls)
    assert verify_mixed(history().evidence()).violations == ()
    assert "0 violations" in str(verdict)


def changed(history: History, number: int, **changes: object) -> History:
    history.records[number] = replace(history.records[number], **changes)  # type: ignore[arg-type]
    return history


def without(history: History, number: int) -> History:
    del history.records[number]
    return history


def repeats_checkpointed_events() -> History:
    history = crash()
    at = next(
        n
        for n, record in enumerate(history.records)
        if record.host == "h2" and record.event == "in"
    )
    changed(history, at, first=3, note=digest(BODIES[3:]))
    return changed(history, at + 1, first=3)


def late_checkpoint_is_granted() -> History:
    history = frozen()
    return changed(history, -2, note="granted")


def continues_after_it_was_fenced() -> History:
    history = frozen()
    history.handle("h1", 1, 8, 8)
    history.handle("h1", 1, 9, 9)
    return history


def repeats_on_a_clean_move() -> History:
    history = clean_move()
    at = next(
        n
        for n, record in enumerate(history.records)
        if record.host == "h2" and record.event == "in"
    )
    changed(history, at, first=5, note=digest(BODIES[5:]))
    return changed(history, at + 1, first=5)


def two_at_once_on_a_clean_move() -> History:
    history = clean_move()
    at = max(
        n
        for n, record in enumerate(history.records)
        if (record.host, record.event) == ("h1", "out")
    )
    return changed(history, at, at_s=99.0)


def skips_an_event() -> History:
    history = crash()
    at = next(
        n
        for n, record in enumerate(history.records)
        if record.host == "h2" and record.event == "in"
    )
    changed(history, at, first=7, note=digest(BODIES[7:]))
    return changed(history, at + 1, first=7)


def one_epoch_of_two_hosts() -> History:
    history = clean_move()
    history.records = [
        replace(record, epoch=1) if record.epoch == 2 else record for record in history.records
    ]
    return history


def out_of_order() -> History:
    history = clean_move()
    history.handle("h2", 2, 0, 0)
    return history


def index_of(history: History, host: str, event: str, number: int) -> int:
    return next(
        n
        for n, record in enumerate(history.records)
        if (record.host, record.event, record.first) == (host, event, number)
    )


def one_key_twice_at_once() -> History:
    history = concurrent()
    return changed(history, index_of(history, "h2", "out", 5), at_s=90.0)


def a_key_out_of_order() -> History:
    history = concurrent()
    for event in ("in", "out"):
        changed(history, at := index_of(history, "h2", event, 5), first=9, last=9)
        if event == "in":
            changed(history, at, note=digest(BODIES[9:]))
    return history


def a_key_begins_late() -> History:
    """h2 never gets event 4, the first of its key after the checkpoint."""
    history = concurrent()
    for event in ("in", "out"):
        del history.records[index_of(history, "h2", event, 4)]
    return history


def more_calls_than_handlers() -> History:
    history = concurrent()
    at = next(n for n, record in enumerate(history.records) if record.event == "open")
    return changed(history, at, note="1")


def with_record(event: str, note: str) -> History:
    history = clean_move()
    history.write(event, "h1", 1, 3, 3, note=note)
    return history


BROKEN: list[tuple[Callable[[], Evidence], str]] = [
    (lambda: changed(crash(), 0, last=10).evidence(), "acknowledged and gone: 10"),
    (lambda: without(clean_move(), -3).evidence(), "never handled: 6, 7, 8, 9"),
    (lambda: changed(crash(), 2, note="00000000").evidence(), "are not those of the log"),
    (lambda: out_of_order().evidence(), "event 0 came after 9"),
    (lambda: skips_an_event().evidence(), "began at 7, only 6 were handled"),
    (lambda: crash().evidence(checkpoint=8), "the checkpoint is 8, the end 9"),
    (lambda: one_epoch_of_two_hosts().evidence(), "epoch 1 is of h1, h2"),
    (lambda: repeats_checkpointed_events().evidence(), "has checkpointed 3"),
    (lambda: late_checkpoint_is_granted().evidence(), "has checkpointed 7"),
    (lambda: continues_after_it_was_fenced().evidence(), "was handed 2 batches after"),
    (lambda: repeats_on_a_clean_move().evidence(), "ended cleanly at 5"),
    (lambda: two_at_once_on_a_clean_move().evidence(), "was still at work"),
    (lambda: one_key_twice_at_once().evidence(), "events 5 and 7 of odd at once"),
    (lambda: a_key_out_of_order().evidence(), "event 9 of odd came after 3"),
    (lambda: a_key_begins_late().evidence(), "event 6 of even came after 2"),
    (lambda: more_calls_than_handlers().evidence(), "2 calls at once, and it has 1 handlers"),
    (lambda: with_record("raised", "StoreUnavailable").evidence(), "got StoreUnavailable in its"),
    (lambda: with_record("error", "PoisonEvent").evidence(), "an event became poison at h1"),
]


@pytest.mark.parametrize(("evidence", "violation"), BROKEN, ids=[text for _, text in BROKEN])
def test_a_violation_is_named(evidence: Callable[[], Evidence], violation: str) -> None:
    assert any(violation in text for text in verify(evidence()).violations)


def test_a_move_with_a_reported_error_is_not_clean() -> None:
    history = repeats_on_a_clean_move()
    at = next(n for n, record in enumerate(history.records) if record.event == "end")
    error = Record("error", float(at), "h1", "0", 0, 1, note="StoreError")
    history.records.insert(at, error)
    assert verify(history.evidence()).violations == ()


def test_an_epoch_may_be_raised_during_a_term() -> None:
    history = clean_move()
    history.write("in", "h2", 7, 6, 9)
    assert [term.epoch for term in terms_of(history.records)["0"]] == [1, 7]


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    reader = RecordReader(tmp_path)
    writer = RecordWriter(tmp_path / "h1.records", "h1")
    writer.write("in", "3", 2, 1, 10, 19, note="cafe")
    (record,) = reader.read_new()
    assert (record.event, record.host, record.partition, record.last) == ("in", "h1", "3", 19)
    assert parse_record(str(record)) == record
    with (tmp_path / "h1.records").open("a") as half:
        half.write("out 1.0 h1")  # an incomplete record
    assert reader.read_new() == []
    with (tmp_path / "h1.records").open("a") as half:
        half.write(" 3 2 1 10 19 -\n")
    assert [record.event for record in reader.read_new()] == ["out"]


def test_a_schedule_depends_on_its_seed_and_its_first_bag_has_every_fault() -> None:
    def first(seed: int) -> list[script.Step]:
        steps = script.steps(Random(seed))
        return [next(steps) for _ in range(40)]

    assert first(7) == first(7) != first(8)
    bag = first(7)[: len(script.BAG)]
    assert sorted(step.kind for step in bag) == sorted(script.BAG)
    assert not any(step.hurried for step in bag)
    assert all(step.leases > 1 for step in bag if step.kind in (script.STORE, script.FREEZE))
    assert any(step.hurried for step in first(7))

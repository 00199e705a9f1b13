"""The judge of soaks: a fleet that kept its promises passes, and every broken one is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.soak import script
from tests.soak.records import Book, Line, Pages, digest, read_line
from tests.soak.verify import Evidence, Verdict, stays_of, verify, verify_mixed

BODIES = [b"%d" % number for number in range(10)]


class History:
    """Lines of one partition, a second apart."""

    def __init__(self) -> None:
        self.lines: list[Line] = [Line("ack", 0.0, "sender", "0", first=0, last=9)]

    def put(
        self, word: str, host: str, epoch: int, first: int = -1, last: int = -1, note: str = "-"
    ) -> None:
        at_s, stay = float(len(self.lines)), int(host[-1])
        self.lines.append(Line(word, at_s, host, "0", epoch, stay, first, last, note))

    def handle(self, host: str, epoch: int, first: int, last: int) -> None:
        self.put("in", host, epoch, first, last, note=digest(BODIES[first : last + 1]))
        self.put("out", host, epoch, first, last)

    def leave(self, host: str, epoch: int, note: str = "hand-off") -> None:
        self.put("end", host, epoch, note=note)
        self.put("released", host, 0)

    def evidence(self, mark: int | None = 9) -> Evidence:
        return Evidence(self.lines, {"0": BODIES}, {"0": mark})


def clean_move() -> History:
    """h1 hands over to h2 in good order."""
    history = History()
    history.put("open", "h1", 1)
    history.handle("h1", 1, 0, 3)
    history.put("mark", "h1", 1, 3, 3)
    history.handle("h1", 1, 4, 5)
    history.leave("h1", 1)
    history.put("open", "h2", 2)
    history.handle("h2", 2, 6, 9)
    history.leave("h2", 2, "shutdown")
    return history


def crash() -> History:
    """h1 dies with a batch in hand; h2 goes on behind its checkpoint."""
    history = History()
    history.put("open", "h1", 1)
    history.handle("h1", 1, 0, 3)
    history.put("mark", "h1", 1, 3, 3)
    history.handle("h1", 1, 4, 5)
    history.put("in", "h1", 1, 6, 7, note=digest(BODIES[6:8]))
    history.put("open", "h2", 2)
    history.handle("h2", 2, 4, 9)
    history.leave("h2", 2, "shutdown")
    return history


def frozen() -> History:
    """h1 is stopped with a batch in hand and wakes up when h2 is at work."""
    history = crash()
    history.put("out", "h1", 1, 6, 7)
    history.put("lost", "h1", 1, 7, 7)
    history.put("late", "h1", 1, 7, 7, note="refused")
    history.put("end", "h1", 1, note="lost")
    return history


@pytest.mark.parametrize(
    ("history", "duplicates", "clean", "refused"),
    [(clean_move, 0, 1, 0), (crash, 4, 0, 0), (frozen, 4, 0, 1)],
)
def test_promises_that_were_kept(
    history: Callable[[], History], duplicates: int, clean: int, refused: int
) -> None:
    verdict = verify(history().evidence())
    assert verdict == Verdict((), 10, duplicates, duplicates, 1, clean, refused)
    assert verify_mixed(history().evidence()).violations == ()
    assert "0 violations" in str(verdict)


def changed(history: History, number: int, **changes: object) -> History:
    history.lines[number] = replace(history.lines[number], **changes)  # type: ignore[arg-type]
    return history


def without(history: History, number: int) -> History:
    del history.lines[number]
    return history


def repeats_what_was_marked() -> History:
    history = crash()
    at = next(n for n, line in enumerate(history.lines) if line.host == "h2" and line.word == "in")
    changed(history, at, first=3, note=digest(BODIES[3:]))
    return changed(history, at + 1, first=3)


def late_checkpoint_is_granted() -> History:
    history = frozen()
    return changed(history, -2, note="granted")


def goes_on_after_it_was_fenced() -> History:
    history = frozen()
    history.handle("h1", 1, 8, 8)
    history.handle("h1", 1, 9, 9)
    return history


def repeats_on_a_clean_move() -> History:
    history = clean_move()
    at = next(n for n, line in enumerate(history.lines) if line.host == "h2" and line.word == "in")
    changed(history, at, first=5, note=digest(BODIES[5:]))
    return changed(history, at + 1, first=5)


def two_at_once_on_a_clean_move() -> History:
    history = clean_move()
    at = max(n for n, line in enumerate(history.lines) if (line.host, line.word) == ("h1", "out"))
    return changed(history, at, at_s=99.0)


def skips_an_event() -> History:
    history = crash()
    at = next(n for n, line in enumerate(history.lines) if line.host == "h2" and line.word == "in")
    changed(history, at, first=7, note=digest(BODIES[7:]))
    return changed(history, at + 1, first=7)


def one_epoch_of_two_hosts() -> History:
    history = clean_move()
    history.lines = [replace(line, epoch=1) if line.epoch == 2 else line for line in history.lines]
    return history


def out_of_order() -> History:
    history = clean_move()
    history.handle("h2", 2, 0, 0)
    return history


BROKEN: list[tuple[Callable[[], Evidence], str]] = [
    (lambda: changed(crash(), 0, last=10).evidence(), "acknowledged and gone: 10"),
    (lambda: without(clean_move(), -3).evidence(), "never handled: 6, 7, 8, 9"),
    (lambda: changed(crash(), 2, note="00000000").evidence(), "are not those of the log"),
    (lambda: out_of_order().evidence(), "event 0 came after 9"),
    (lambda: skips_an_event().evidence(), "began at 7, only 6 were handled"),
    (lambda: crash().evidence(mark=8), "the checkpoint is 8, the end 9"),
    (lambda: one_epoch_of_two_hosts().evidence(), "epoch 1 is of h1, h2"),
    (lambda: repeats_what_was_marked().evidence(), "has marked 3"),
    (lambda: late_checkpoint_is_granted().evidence(), "has marked 7"),
    (lambda: goes_on_after_it_was_fenced().evidence(), "was handed 2 batches after"),
    (lambda: repeats_on_a_clean_move().evidence(), "ended cleanly at 5"),
    (lambda: two_at_once_on_a_clean_move().evidence(), "was still at work"),
]


@pytest.mark.parametrize(("evidence", "violation"), BROKEN, ids=[text for _, text in BROKEN])
def test_promises_that_were_broken(evidence: Callable[[], Evidence], violation: str) -> None:
    assert any(violation in found for found in verify(evidence()).violations)


def test_a_move_on_which_something_was_reported_is_not_called_clean() -> None:
    history = repeats_on_a_clean_move()
    at = next(n for n, line in enumerate(history.lines) if line.word == "end")
    error = Line("error", float(at), "h1", "0", 0, 1, note="StoreError")
    history.lines.insert(at, error)
    assert verify(history.evidence()).violations == ()


def test_an_epoch_may_be_raised_during_a_stay() -> None:
    history = clean_move()
    history.put("in", "h2", 7, 6, 9)
    assert [stay.epoch for stay in stays_of(history.lines)["0"]] == [1, 7]


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    book = Book(tmp_path / "h1.book", "h1")
    book.put("in", "3", 2, 1, 10, 19, note="cafe")
    (line,) = pages.turn()
    assert (line.word, line.host, line.partition, line.last) == ("in", "h1", "3", 19)
    assert read_line(str(line)) == line
    with (tmp_path / "h1.book").open("a") as half:
        half.write("out 1.0 h1")  # a line of which the end has not come yet
    assert pages.turn() == []
    with (tmp_path / "h1.book").open("a") as half:
        half.write(" 3 2 1 10 19 -\n")
    assert [line.word for line in pages.turn()] == ["out"]


def test_a_script_is_its_seeds_and_its_first_bag_has_every_fault() -> None:
    def first(seed: int) -> list[script.Step]:
        found = script.steps(Random(seed))
        return [next(found) for _ in range(40)]

    assert first(7) == first(7) != first(8)
    bag = first(7)[: len(script.BAG)]
    assert sorted(step.what for step in bag) == sorted(script.BAG)
    assert not any(step.hurried for step in bag)
    assert all(step.leases > 1 for step in bag if step.what in (script.STORE, script.FREEZE))
    assert any(step.hurried for step in first(7))

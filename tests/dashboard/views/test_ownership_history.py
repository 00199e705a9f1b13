"""What happened between two looks: fleets as pictures."""

from __future__ import annotations

import pytest

from pumphouse.dashboard.views.ownership_history import CHANGE_MEANINGS, Change, changes
from pumphouse.leases.model import Listing, Ownership

LEASE_S = 10.0


def row(
    owner: str,
    epoch: int,
    age_s: float = 1.0,
    successor: str = "",
    deadline_s: float | None = None,
) -> Ownership:
    return Ownership("7", owner, epoch, "e", age_s, successor, deadline_s)


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        (None, row("a", 1), "claim"),
        (row("a", 1), row("a", 1), None),
        (row("a", 1), row("a", 1, successor="b", deadline_s=9.0), None),
        (row("a", 1, successor="b", deadline_s=9.0), row("b", 2), "hand-off"),
        (row("a", 1), row("b", 2), "hand-off"),  # so fast that the question was not seen
        (row("a", 1, successor="b", deadline_s=1.0), row("b", 2), "steal"),  # two seconds later
        (row("a", 0), row("b", 0), "steal"),  # an official SDK: no epoch, and it does not ask
        (row("a", 1), row("a", 1, 10.0), "expire"),
        (row("a", 1, 10.0), row("a", 1, 12.0), None),  # it had expired before
        (row("a", 1, 10.0), row("b", 2), "claim"),
        (row("a", 1), row("", 1), "release"),
        (row("", 1), row("", 1), None),
        (row("", 1), row("a", 2), "claim"),
        (row("a", 1), row("a", 3), "re-claim"),
    ],
)
def test_the_word_for_what_happened(
    before: Ownership | None, after: Ownership, word: str | None
) -> None:
    earlier = Listing(() if before is None else (before,))
    found = changes(earlier, Listing((after,)), LEASE_S, 2.0, 1000)
    assert [change.word for change in found] == ([] if word is None else [word])


def test_who_had_it_and_who_has_it() -> None:
    (found,) = changes(Listing((row("a", 1),)), Listing((row("b", 2),)), LEASE_S, 1.0, 5000)
    assert found == Change(5000, "7", "hand-off", "a", "b", 2)
    assert found.sentence == "a handed partition 7 to b"


@pytest.mark.parametrize(
    ("old_age_s", "new_age_s", "words"),
    [
        (9.0, 0.5, ["expire", "claim"]),  # it was taken 10.5 s after the last renewal
        (3.0, 0.5, ["hand-off"]),
        (8.9, 1.9, ["expire", "claim"]),
        (8.0, 1.9, ["hand-off"]),
    ],
)
def test_a_lease_that_ran_out_and_was_claimed_between_two_looks(
    old_age_s: float, new_age_s: float, words: list[str]
) -> None:
    before, after = Listing((row("a", 1, old_age_s),)), Listing((row("b", 2, new_age_s),))
    found = changes(before, after, LEASE_S, 2.0, 0)
    assert [change.word for change in found] == words
    assert (found[0].before, found[-1].after) == ("a", "b")


def test_changes_come_in_the_order_of_partitions() -> None:
    rows = tuple(Ownership(name, "a", 1, "e") for name in ("10", "9", "2"))
    found = changes(Listing(), Listing(rows), LEASE_S, 1.0, 0)
    assert [change.partition for change in found] == ["2", "9", "10"]


@pytest.mark.parametrize("word", CHANGE_MEANINGS)
def test_every_word_has_a_sentence(word: str) -> None:
    assert "7" in Change(0, "7", word, "a", "b", 1).sentence

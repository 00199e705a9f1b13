"""Changes of ownership between two listings."""

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
    ("before", "after", "kind"),
    [
        (None, row("a", 1), "claim"),
        (row("a", 1), row("a", 1), None),
        (row("a", 1), row("a", 1, successor="b", deadline_s=9.0), None),
        (row("a", 1, successor="b", deadline_s=9.0), row("b", 2), "hand-off"),
        (row("a", 1), row("b", 2), "hand-off"),  # the request was not visible in the first listing
        (row("a", 1, successor="b", deadline_s=1.0), row("b", 2), "steal"),  # two seconds later
        (row("a", 0), row("b", 0), "steal"),  # an official SDK: no epoch, no request
        (row("a", 1), row("a", 1, 10.0), "expire"),
        (row("a", 1, 10.0), row("a", 1, 12.0), None),  # it had expired before
        (row("a", 1, 10.0), row("b", 2), "claim"),
        (row("a", 1), row("", 1), "release"),
        (row("", 1), row("", 1), None),
        (row("", 1), row("a", 2), "claim"),
        (row("a", 1), row("a", 3), "re-claim"),
    ],
)
def test_the_kind_of_a_change(before: Ownership | None, after: Ownership, kind: str | None) -> None:
    earlier = Listing(() if before is None else (before,))
    result = changes(earlier, Listing((after,)), LEASE_S, 2.0, 1000)
    assert [change.kind for change in result] == ([] if kind is None else [kind])


def test_a_change_has_the_previous_and_the_new_owner() -> None:
    (result,) = changes(Listing((row("a", 1),)), Listing((row("b", 2),)), LEASE_S, 1.0, 5000)
    assert result == Change(5000, "7", "hand-off", "a", "b", 2)
    assert result.sentence == "a handed partition 7 to b"


@pytest.mark.parametrize(
    ("old_age_s", "new_age_s", "kinds"),
    [
        (9.0, 0.5, ["expire", "claim"]),  # it was taken 10.5 s after the last renewal
        (3.0, 0.5, ["hand-off"]),
        (8.9, 1.9, ["expire", "claim"]),
        (8.0, 1.9, ["hand-off"]),
    ],
)
def test_an_expired_lease_that_was_claimed_between_two_listings(
    old_age_s: float, new_age_s: float, kinds: list[str]
) -> None:
    before, after = Listing((row("a", 1, old_age_s),)), Listing((row("b", 2, new_age_s),))
    result = changes(before, after, LEASE_S, 2.0, 0)
    assert [change.kind for change in result] == kinds
    assert (result[0].before, result[-1].after) == ("a", "b")


def test_changes_are_ordered_by_partition() -> None:
    rows = tuple(Ownership(name, "a", 1, "e") for name in ("10", "9", "2"))
    result = changes(Listing(), Listing(rows), LEASE_S, 1.0, 0)
    assert [change.partition for change in result] == ["2", "9", "10"]


@pytest.mark.parametrize("kind", CHANGE_MEANINGS)
def test_every_kind_has_a_text(kind: str) -> None:
    assert "7" in Change(0, "7", kind, "a", "b", 1).sentence

"""The options of the page."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.dashboard.options import DashboardOptions, HomesFeed, WatchedGroup
from pumphouse.errors import OptionError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to show"),
        ({"hubs": ("a",)}, "needs a connection string"),
        ({"groups": (WatchedGroup("c"),), "write": True}, "needs a connection string"),
        ({"groups": (WatchedGroup("c"),), "port": 65536}, "port must be from"),
        ({"groups": (WatchedGroup("c"),), "update_s": 0.0}, "the update interval must be from"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DashboardOptions(**options)


def test_the_old_name_of_the_update_interval_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="is now update_s"):
        options = DashboardOptions(groups=(WatchedGroup("c"),), look_s=0.5)
    assert options.update_s == 0.5


def test_an_invalid_homes_feed_is_rejected() -> None:
    with pytest.raises(OptionError, match="homes must be"):
        HomesFeed("c", homes=0)
    with pytest.raises(OptionError, match="hours must be"):
        HomesFeed("c", hours=0)


def test_no_repr_contains_a_secret() -> None:
    options = DashboardOptions(
        connection="S3cret", groups=(WatchedGroup("S3cret", store="S3cret"),),
        homes=HomesFeed("S3cret"),
    )  # fmt: skip
    assert "S3cret" not in repr(options)

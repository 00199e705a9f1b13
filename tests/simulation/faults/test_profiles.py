"""Fault profiles: parsing and changing them."""

from __future__ import annotations

import pytest

from pumphouse.errors import OptionError
from pumphouse.simulation import PROFILES, parse_faults


def test_profiles_can_be_changed() -> None:
    assert parse_faults("default") == PROFILES["default"]
    assert parse_faults("harsh,crash=0, stale=0.5").stale == 0.5
    assert parse_faults("crash=3").crash == 3
    for text, sentence in (
        ("mild", "unknown fault profile 'mild'"),
        ("default,flood=1", "unknown fault 'flood'"),
        ("default,crash=much", "must be a number"),
        ("default,stale=2", "a probability"),
        ("default,crash=-1", "below 0"),
    ):
        with pytest.raises(OptionError, match=sentence):
            parse_faults(text)

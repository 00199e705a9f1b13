from __future__ import annotations

import json
from pathlib import Path

import pytest

from pumphouse.errors import OptionError
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.state_order import keep_state_order, state_order
from tests.homes.kinds.kinds_files import ALL_RULES, CARBON_MONOXIDE, kinds_of


def test_kinds_may_be_added_at_the_end_between_two_starts(tmp_path: Path) -> None:
    for kinds in (DEFAULT, DEFAULT, kinds_of(CARBON_MONOXIDE), kinds_of(ALL_RULES)):
        keep_state_order(tmp_path, kinds)
        assert json.loads((tmp_path / "kinds.json").read_text()) == state_order(kinds)


def test_kinds_may_not_be_removed_or_exchanged(tmp_path: Path) -> None:
    keep_state_order(tmp_path, kinds_of(CARBON_MONOXIDE))
    with pytest.raises(OptionError, match=r"default kinds: the kinds are motion, .*, humidity; "):
        keep_state_order(tmp_path, DEFAULT)
    first = '[kinds.water]\nunit = ""\nquiet = { at = 0 }\n'
    with pytest.raises(OptionError, match=r"kinds\.toml: .* use another folder \(--data\)"):
        keep_state_order(tmp_path, kinds_of(first + CARBON_MONOXIDE))


def test_a_rule_may_not_come_before_those_of_the_state(tmp_path: Path) -> None:
    keep_state_order(tmp_path, DEFAULT)
    rule = '{ type = "threshold", alert = "fire", at_least = 5, text = "" }'
    text = f'[kinds.motion]\nunit = ""\nquiet = {{ at = 0 }}\nrules = [{rule}]'
    with pytest.raises(OptionError, match="the threshold rules are motion/fire, smoke/fire; the c"):
        keep_state_order(tmp_path, kinds_of(text))

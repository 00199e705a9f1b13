from __future__ import annotations

import pickle

import numpy as np
import pytest

from pumphouse.errors import OptionError
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import (
    Change,
    Combination,
    Condition,
    Lasting,
    Quiet,
    Range,
    Silence,
    Simulated,
    Threshold,
    Unusual,
)
from tests.homes.kinds.kinds_files import ALL_RULES, CARBON_MONOXIDE, kinds_of


def test_a_file_adds_kinds_after_those_of_the_default() -> None:
    kinds = kinds_of(CARBON_MONOXIDE)
    assert kinds.names == (*DEFAULT.names, "carbon-monoxide")
    assert kinds.alert_names == (*DEFAULT.alert_names, "carbon-monoxide")
    added = kinds.by_name["carbon-monoxide"]
    assert added.quiet == Quiet(below=50)
    assert added.limits == Range(0, 5000)
    assert added.rules == (
        Threshold("carbon-monoxide", "Carbon monoxide", Range(at_least=50), 600_000),
        Silence("silent-sensor", "Carbon monoxide sensor sends no readings", 900_000),
    )
    assert added.simulated == Simulated((0, 5), "carbon-monoxide", (80, 300), (20, 40), 50)


def test_a_table_of_the_same_name_replaces_that_of_the_default() -> None:
    kinds = kinds_of('[kinds.smoke]\nunit = "ppm"\nquiet = { below = 40 }')
    assert kinds.names == DEFAULT.names
    assert kinds.by_name["smoke"].quiet == Quiet(below=40)
    assert kinds.rules(Threshold) == []
    assert kinds.by_name["door"] == DEFAULT.by_name["door"]


def test_every_type_of_rule_is_parsed() -> None:
    kinds = kinds_of(ALL_RULES)
    water, radon = kinds.by_name["water"], kinds.by_name["radon"]
    assert water.rules == (
        Change("leak", "Water", Range(at_least=1), armed=False),
        Lasting("flood", "Water for an hour", Range(at_least=1), None, 3_600_000),
    )
    assert radon.rules == (
        Unusual("unusual-reading", "Radon is unusual", 20.0),
        Threshold("radon", "Detector defective", Range(at_most=5), 60_000),
    )
    conditions = (Condition("smoke", Range(60)), Condition("carbon-monoxide", Range(50)))
    assert kinds.combinations == (
        Combination("smouldering", "Smoke and carbon monoxide", conditions, 600_000),
    )
    assert kinds.texts["smouldering", "smoke"] == "Smoke and carbon monoxide"


def test_kinds_can_be_sent_to_executors() -> None:
    kinds = kinds_of(ALL_RULES)
    assert kinds.texts
    assert pickle.loads(pickle.dumps(kinds)) == kinds


@pytest.mark.parametrize(
    ("quiet", "values"),
    [
        (Quiet(at=0), [-1.0, 1.0]),
        (Quiet(below=60), [60.0, 61.0]),
        (Quiet(above=5), [5.0, -1.0]),
        (Quiet(above=5, below=300), [5.0, 300.0]),
    ],
)
def test_a_sensor_is_active_outside_of_its_quiet_values(quiet: Quiet, values: list[float]) -> None:
    assert not any(quiet.contains(value) for value in values)
    assert quiet.contains(np.array(values)).tolist() == [False, False]
    assert Quiet().contains(np.array(values)).all()


BAD_FILES = [
    ('kind = 1', "kinds.toml: kind: unknown key: did you mean kinds?"),
    ("kinds = 3", "kinds.toml: kinds: expected a table, found 3"),
    ("[kinds.CO]", "kinds.toml: kinds.CO: invalid name: use a letter"),
    ("[kinds.co]", "kinds.toml: kinds.co.unit: missing: add a text"),
    ("[kinds.co]\nunit = 3", "kinds.toml: kinds.co.unit: expected a text, found 3"),
    ('[kinds.co]\nunit = ""', 'kinds.toml: kinds.co.quiet: expected { at = 0 }'),
    ('[kinds.co]\nunit = ""\nquiet = { under = 3 }', "kinds.co.quiet.under: unknown key"),
    ('[kinds.co]\nunit = ""\nquiet = { at = 3, below = 4 }', "kinds.co.quiet: expected { at"),
    ('[kinds.co]\nunit = ""\nquiet = { below = true }', "quiet.below: expected a number, found T"),
    ('[kinds.co]\nunit = ""\nquiet = { below = nan }', "quiet.below: expected a finite number"),
    ('[alerts.gas]\nurgent = 1\nrule = ""', "alerts.gas.urgent: expected true or false, found 1"),
    ("[[combinations]]\nwhen = []", "combinations[1].when: expected conditions of at least two"),
]  # fmt: skip
BAD_RULES = [
    ("3", "kinds.co.rules[1]: expected a table, found 3"),
    ('{ type = "level" }', "rules[1].type: unknown type 'level': use threshold, change"),
    ('{ type = "threshold", alert = "gas" }', "rules[1].alert: unknown alert 'gas': add a table"),
    ('{ type = "silence", alert = "fire", after_s = 0 }', "after_s: must be above 0 and at most"),
    (
        '{ type = "threshold", alert = "fire", text = "" }',
        "rules[1].at_least: missing: add at_least or at_most, a number",
    ),
    (
        '{ type = "threshold", alert = "fire", text = "", at_least = 9 }',
        "rules[1].at_least: a sensor is quiet at some of these values",
    ),
    (
        '{ type = "threshold", alert = "fire", text = "", at_least = 90, at_most = 80 }',
        "rules[1].at_most: the range is empty: 80 is below 90",
    ),
    (
        '{ type = "silence", alert = "fire", after_s = 9 },'
        '{ type = "silence", alert = "fire", after_s = 8 }',
        "kinds.co.rules: two rules raise fire: use one rule for each alert",
    ),
]
BAD_SIMULATIONS = [
    ("{ quiet = [0, 60] }", "simulate.quiet: a sensor is not quiet at these values"),
    (
        '{ quiet = [0, 1], incident = "fire", active = [9, 99] }',
        "simulate.active: a sensor is quie",
    ),
    ("{ quiet = [5, 0] }", "simulate.quiet: expected two whole numbers from 0 to 999 in order"),
    ("{ quiet = [0, 1], minutes = [1, 2] }", "simulate.minutes: unknown key"),
    ('{ quiet = [0, 1], active = [60, 70], incident = "gas" }', "simulate.incident: unknown alert"),
]
KIND = '[kinds.co]\nunit = "ppm"\nquiet = { below = 50 }\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *BAD_FILES,
        *((f"{KIND}rules = [{rules}]", sentence) for rules, sentence in BAD_RULES),
        *((f"{KIND}simulate = {table}", sentence) for table, sentence in BAD_SIMULATIONS),
    ],
)
def test_an_error_names_the_file_the_key_and_the_value(text: str, sentence: str) -> None:
    with pytest.raises(OptionError) as raised:
        kinds_of(text)
    assert sentence in str(raised.value)
    assert str(raised.value).startswith("kinds.toml: ")
    assert "\n" not in str(raised.value)


def test_a_combination_needs_known_kinds_that_are_active() -> None:
    rule = '[[combinations]]\nalert = "fire"\ntext = ""\nwithin_s = 9\nwhen = ['
    smoke = '{ kind = "smoke", at_least = 60 }'
    with pytest.raises(OptionError, match=r"combinations\[1\]\.when\[2\]\.kind: unknown kind 'co'"):
        kinds_of(f'{rule}{smoke}, {{ kind = "co", at_least = 1 }}]')
    with pytest.raises(OptionError, match=r"when\[2\]\.at_least: a sensor is quiet"):
        kinds_of(f'{rule}{smoke}, {{ kind = "temperature", at_least = 50 }}]')
    with pytest.raises(OptionError, match="each kind once"):
        kinds_of(f"{rule}{smoke}, {smoke}]")


def test_a_file_has_a_limited_number_of_kinds() -> None:
    many = "".join(f'[kinds.k{n}]\nunit = ""\nquiet = {{ at = 0 }}\n' for n in range(26))
    with pytest.raises(OptionError, match="kinds: 33 tables: use at most 32"):
        kinds_of(many)

"""Parses the tables of a kinds file.

    TOML -> dict -> merged -> parse_kinds -> Kinds; OptionError names file, key and value
                    ^^^^^^^^^^^^^^^^^^^^^ this module

A file adds to the default. A table `kinds.NAME` or `alerts.NAME` replaces that of the default, in
its position; tables with other names come after those of the default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pumphouse.homes.kinds.model import (
    KINDS_MAX,
    AlertKind,
    Change,
    Combination,
    Condition,
    Kind,
    Kinds,
    Lasting,
    Quiet,
    Range,
    Rule,
    Silence,
    Simulated,
    Threshold,
    Unusual,
)
from pumphouse.homes.kinds.tables import Table, shown

NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,19}")
ALERTS_MAX: Final = 32
VALUE_MAX: Final = 999  # of a simulated reading
MODELLED: Final = ("motion", "door", "window", "glass", "smoke")  # kinds of the home simulator
MINUTES_MAX: Final = 1200
RATE_MAX: Final = 1000.0  # one incident for each home and day


def merged(default: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of the default with those of a file."""
    tables = dict(given)
    for name in ("kinds", "alerts"):
        if isinstance(of_file := given.get(name, {}), Mapping):
            tables[name] = {**default[name], **of_file}
    return tables


def parse_kinds(tables: Mapping[str, Any], source: str) -> Kinds:
    """The kinds of these tables; raises OptionError. `source` is the file, for messages."""
    top = Table(source, "", tables)
    top.only("kinds", "alerts", "combinations")
    alerts = tuple(parse_alert(top.table("alerts").table(name)) for name in names(top, "alerts"))
    known = tuple(alert.name for alert in alerts)
    kinds = tuple(
        parse_kind(top.table("kinds").table(name), name, known) for name in names(top, "kinds")
    )
    check_count(top, "kinds", len(kinds), KINDS_MAX)
    check_count(top, "alerts", len(alerts), ALERTS_MAX)
    by_name = {kind.name: kind for kind in kinds}
    combinations = [parse_combination(each, by_name, known) for each in top.tables("combinations")]
    return Kinds(source, kinds, alerts, tuple(combinations))


def check_count(top: Table, name: str, count: int, most: int) -> None:
    if count > most:
        raise top.error(f"{count} tables: use at most {most}, with those of the default", name)


def names(top: Table, name: str) -> list[str]:
    table = top.table(name)
    for given in table.values:
        if not NAME.fullmatch(given):
            raise table.error(
                "invalid name: use a letter, then letters, digits and hyphens, all in lower case, "
                "at most 20",
                given,
            )
    return list(table.values)


def parse_alert(table: Table) -> AlertKind:
    table.only("rule", "urgent")
    name = table.key.rpartition(".")[2]
    return AlertKind(name, table.text("rule"), table.flag("urgent"))


def parse_kind(table: Table, name: str, alerts: tuple[str, ...]) -> Kind:
    table.only(
        "unit", "quiet", "minimum", "maximum", "rules", "alarm", "quiet_text", "active_text",
        "simulate",
    )  # fmt: skip
    unit, quiet = table.text("unit"), parse_quiet(table)
    rules = tuple(parse_rule(each, name, quiet, alerts) for each in table.tables("rules"))
    check_repeated(table, rules)
    limits = Range(table.number("minimum", None), table.number("maximum", None))
    alarm = table.table("alarm")
    alarm.only("at_least", "at_most")
    return Kind(
        name=name,
        unit=unit,
        quiet=quiet,
        limits=table.ordered(limits, "maximum"),
        rules=rules,
        alarm=active_range(alarm, quiet) if alarm.values else None,
        quiet_text=table.text("quiet_text", ""),
        active_text=table.text("active_text", ""),
        simulated=parse_simulated(table.table("simulate"), name, quiet, alerts),
    )


def check_repeated(table: Table, rules: tuple[Rule, ...]) -> None:
    raised = [rule.alert for rule in rules]
    for alert in raised:
        if raised.count(alert) > 1:
            raise table.error(f"two rules raise {alert}: use one rule for each alert", "rules")


def parse_quiet(table: Table) -> Quiet:
    """`{ at = 0 }`, `{ below = 60 }`, `{ above = 5, below = 30 }`, or "always"."""
    if table.values.get("quiet") == "always":
        return Quiet()
    table.value("quiet", table.values.get("quiet", ()), (Mapping,), QUIET)
    inner = table.table("quiet")
    inner.only("at", "above", "below")
    if not inner.values or ("at" in inner.values and len(inner.values) > 1):
        raise table.error(f"expected {QUIET}, found {shown(dict(inner.values))}", "quiet")
    quiet = Quiet(*(inner.number(name, None) for name in ("at", "above", "below")))
    inner.ordered(Range(quiet.above, quiet.below), "below")
    return quiet


QUIET: Final = '{ at = 0 }, { below = 60 }, { above = 5, below = 30 } or "always"'


# -- rules


def parse_rule(table: Table, kind: str, quiet: Quiet, alerts: tuple[str, ...]) -> Rule:
    form = table.text("type")
    if form not in RULES:
        use = f"{', '.join(RULES)}; rules of several kinds are [[combinations]]"
        raise table.error(f"unknown type {form!r}: use {use}", "type")
    return RULES[form](table, kind, quiet, alert_of(table, alerts))


def alert_of(table: Table, alerts: tuple[str, ...], name: str = "alert") -> str:
    alert = table.text(name)
    if alert not in alerts:
        raise table.error(
            f"unknown alert {alert!r}: add a table [alerts.{alert}], or use one of "
            f"{', '.join(alerts)}",
            name,
        )
    return alert


def active_range(table: Table, quiet: Quiet) -> Range:
    """The range of a rule. It must have no quiet values: sift may drop quiet readings."""
    values = table.range()
    if quiet.overlaps(values):
        raise table.error(
            "a sensor is quiet at some of these values, and sift drops quiet readings: change the "
            "range, or `quiet` of the kind",
            "at_most" if values.at_least is None else "at_least",
        )
    return values


def parse_threshold(table: Table, kind: str, quiet: Quiet, alert: str) -> Threshold:
    table.only("type", "alert", "text", "at_least", "at_most", "same_s")
    same_ms = table.milliseconds("same_s", 600.0)
    return Threshold(alert, table.text("text"), active_range(table, quiet), same_ms)


def parse_change(table: Table, kind: str, quiet: Quiet, alert: str) -> Change:
    table.only("type", "alert", "text", "at_least", "at_most", "armed")
    return Change(alert, table.text("text"), active_range(table, quiet), table.flag("armed"))


def parse_lasting(table: Table, kind: str, quiet: Quiet, alert: str) -> Lasting:
    table.only("type", "alert", "text", "at_least", "at_most", "armed_s", "any_s")
    armed_ms = table.milliseconds("armed_s") if "armed_s" in table.values else None
    values = active_range(table, quiet)
    return Lasting(alert, table.text("text"), values, armed_ms, table.milliseconds("any_s"))


def parse_silence(table: Table, kind: str, quiet: Quiet, alert: str) -> Silence:
    table.only("type", "alert", "text", "after_s")
    text = table.text("text", f"{title(kind)} sensor sends no readings")
    return Silence(alert, text, table.milliseconds("after_s"))


def parse_unusual(table: Table, kind: str, quiet: Quiet, alert: str) -> Unusual:
    table.only("type", "alert", "text", "least")
    return Unusual(alert, table.text("text", f"{title(kind)} is unusual"), table.positive("least"))


RULES: Final[Mapping[str, Callable[[Table, str, Quiet, str], Rule]]] = {
    "threshold": parse_threshold,
    "change": parse_change,
    "lasting": parse_lasting,
    "silence": parse_silence,
    "unusual": parse_unusual,
}


def title(kind: str) -> str:
    return kind.replace("-", " ").capitalize()


def parse_combination(
    table: Table, kinds: Mapping[str, Kind], alerts: tuple[str, ...]
) -> Combination:
    table.only("alert", "text", "within_s", "when")
    conditions = tuple(parse_condition(each, kinds) for each in table.tables("when"))
    if len({condition.kind for condition in conditions}) < max(2, len(conditions)):
        raise table.error("expected conditions of at least two kinds, each kind once", "when")
    alert = alert_of(table, alerts)
    return Combination(alert, table.text("text"), conditions, table.milliseconds("within_s"))


def parse_condition(table: Table, kinds: Mapping[str, Kind]) -> Condition:
    table.only("kind", "at_least", "at_most")
    name = table.text("kind")
    if name not in kinds:
        raise table.error(f"unknown kind {name!r}: use one of {', '.join(kinds)}", "kind")
    return Condition(name, active_range(table, kinds[name].quiet))


# -- the simulator


def parse_simulated(
    table: Table, kind: str, sensor: Quiet, alerts: tuple[str, ...]
) -> Simulated | None:
    if not table.values:
        return None
    if kind in MODELLED:
        raise table.error("the home simulator has a model of its own: remove this table", "")
    table.only("quiet", "incident", "active", "minutes", "per_1000_homes")
    quiet = table.span("quiet", 0, VALUE_MAX)
    if not all(map(sensor.contains, quiet)):
        raise table.error(
            "a sensor is not quiet at these values: change them, or `quiet` of the kind", "quiet"
        )
    if "incident" not in table.values:
        table.only("quiet")
        return Simulated(quiet, "", quiet, (1, 1), 0.0)
    active = table.span("active", 0, VALUE_MAX)
    if sensor.overlaps(Range(*active)):
        raise table.error(
            "a sensor is quiet at some of these values: change them, or `quiet` of the kind",
            "active",
        )
    return Simulated(
        quiet,
        alert_of(table, alerts, "incident"),
        active,
        table.span("minutes", 1, MINUTES_MAX),
        table.positive("per_1000_homes", RATE_MAX),
    )

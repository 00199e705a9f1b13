from __future__ import annotations

from pumphouse.homes import schema
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import (
    Change,
    Lasting,
    Quiet,
    Range,
    Silence,
    Threshold,
    Unusual,
)

SWITCHES = ("motion", "door", "window", "glass")


def test_the_default_has_the_kinds_of_the_schema_in_the_order_of_the_state() -> None:
    assert DEFAULT.names == schema.KINDS == schema.SENSORS + schema.CLIMATE
    assert DEFAULT.alert_names == schema.ALERT_KINDS
    assert {alert.name: alert.rule for alert in DEFAULT.alerts} == schema.ALERT_RULES
    assert DEFAULT.combinations == ()


def test_the_default_is_quiet_where_the_schema_is() -> None:
    quiet = {kind.name: kind.quiet for kind in DEFAULT.kinds}
    assert quiet == (
        dict.fromkeys(SWITCHES, Quiet(at=0))
        | {"smoke": Quiet(below=schema.SMOKE_ALARM_PPM)}
        | dict.fromkeys(schema.CLIMATE, Quiet())
    )
    assert all(kind.limits == Range() for kind in DEFAULT.kinds)


def test_the_rules_of_the_default_have_the_limits_of_the_schema() -> None:
    door, window, glass, smoke = (DEFAULT.names.index(name) for name in schema.SENSORS[1:])
    (at, fire), = DEFAULT.rules(Threshold)  # fmt: skip
    assert at == smoke
    assert fire.values == Range(at_least=schema.SMOKE_ALARM_PPM)
    assert fire.same_ms == 10 * schema.MINUTE_MS
    changes = [(kind, rule.alert, rule.values, rule.armed) for kind, rule in DEFAULT.rules(Change)]
    assert changes == [(kind, "break-in", Range(1), True) for kind in (door, glass)]
    (at, forgotten), = DEFAULT.rules(Lasting)  # fmt: skip
    assert at == window
    assert (forgotten.armed_ms, forgotten.any_ms) == (
        schema.FORGOTTEN_ARMED_MS,
        schema.FORGOTTEN_MS,
    )
    silent = {kind: rule.after_ms for kind, rule in DEFAULT.rules(Silence)}
    assert silent == dict.fromkeys(range(len(schema.KINDS)), schema.SILENT_MS)
    assert [rule.least for _, rule in DEFAULT.rules(Unusual)] == [0.5, 2.0]

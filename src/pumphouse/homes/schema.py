"""The records in the hubs of the homes: readings, activities and alerts, and their limits.

Bodies are JSON in UTF-8; `v` is the version of the schema. Times are milliseconds since 1970, UTC.

    sensors -> sensors (hub) -> sift -> activity (hub) -> watch -> alerts (hub) -> record
               Reading                  Activity                   Alert
               ^^^^^^^                  ^^^^^^^^                   ^^^^^ this module

These functions process one record at a time and are the reference. The simulator and the Spark
stages process columns, and are tested against them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pumphouse.errors import BadRecord
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kind, Kinds

VERSION: Final = 1

# The hubs and their consumer groups. The partition key of readings, activities
# and alerts is their home.
SENSORS_HUB: Final = "sensors"
ACTIVITY_HUB: Final = "activity"
ALERTS_HUB: Final = "alerts"
DEADLETTER_HUB: Final = "deadletter"
HUBS: Final = (SENSORS_HUB, ACTIVITY_HUB, ALERTS_HUB, DEADLETTER_HUB)
GROUPS: Final = ("sift", "watch", "record", "page")
PARTITIONS: Final = 16

# The default kinds (kinds/default.toml): the five sensors of every home, in the order of sending;
# climate sensors only in replays.
SENSORS: Final = ("motion", "door", "window", "glass", "smoke")
CLIMATE: Final = ("temperature", "humidity")
KINDS: Final = SENSORS + CLIMATE
MODES: Final = ("home", "away", "asleep")
# The modes in which the alarm is armed.
ARMED: Final = ("away", "asleep")

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
HOMES_MAX: Final = 1_000_000  # the id of a home has six digits

SMOKE_ALARM_PPM: Final = 60.0
LOW_BATTERY: Final = 15  # percent; low at this level and below
ALIVE_EVERY: Final = 10  # every tenth reading is kept as a sign of life
CHANGE_MS: Final = MINUTE_MS  # a reading reports a change if `at - since` is less

# The kinds of alerts, and the thresholds of the rules.
ALERT_KINDS: Final = ("break-in", "fire", "forgotten-window", "silent-sensor", "unusual-reading")
FORGOTTEN_ARMED_MS: Final = 2 * HOUR_MS  # a window open this long while the alarm is armed
FORGOTTEN_MS: Final = 8 * HOUR_MS  # a window open this long in any mode
SILENT_MS: Final = 30 * MINUTE_MS  # three missing signs of life
# The rules of the stages sift and watch, in words.
ALERT_RULES: Final = {
    "break-in": "The door opens or glass breaks while the alarm is armed.",
    "fire": "Smoke or carbon monoxide is at 60 ppm or more. Smoke that returns within ten minutes"
    " is the same fire.",
    "forgotten-window": "A window is open for two hours while the alarm is armed, or for eight"
    " hours in any mode.",
    "silent-sensor": "A sensor sends no reading for 30 minutes, while others of its partition do.",
    "unusual-reading": "A temperature or humidity is far from the recent readings of its sensor.",
}
# Alerts of these kinds are about one sensor, whose name is part of the id.
PER_SENSOR: Final = ("silent-sensor", "unusual-reading")


REGIONS: Final = (
    "Alder Grove",
    "Beacon Hill",
    "Canal Side",
    "Dock Row",
    "East Gate",
    "Fern Valley",
    "Garden End",
    "Harbour View",
    "Iron Bridge",
    "Juniper Rise",
    "Kiln Lane",
    "Lime Walk",
    "Mill Pond",
    "North Field",
    "Orchard Park",
    "Priory Green",
)

# The same records as DDL for Spark. A reading has either a `value` or a `fault`; the other is null.
READING_DDL: Final = (
    "v INT, home STRING, sensor STRING, seq BIGINT, at BIGINT, value DOUBLE, since BIGINT, "
    "mode STRING, battery INT, fault STRING"
)
ALERT_DDL: Final = (
    "v INT, id STRING, home STRING, kind STRING, sensor STRING, at BIGINT, since BIGINT, "
    "region STRING, text STRING"
)

# The reasons of dead letters.
NOT_JSON: Final = "not-json"
MISSING_KEY: Final = "missing-key"
WRONG_TYPE: Final = "wrong-type"
UNKNOWN_VERSION: Final = "unknown-version"
UNKNOWN_SENSOR: Final = "unknown-sensor"
UNKNOWN_MODE: Final = "unknown-mode"
BAD_HOME: Final = "bad-home"
BAD_VALUE: Final = "bad-value"
REASONS: Final = (
    NOT_JSON,
    MISSING_KEY,
    WRONG_TYPE,
    UNKNOWN_VERSION,
    UNKNOWN_SENSOR,
    UNKNOWN_MODE,
    BAD_HOME,
    BAD_VALUE,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a sensor. Its identity is (home, sensor, seq): a duplicate has the same."""

    home: str
    sensor: str
    seq: int  # number of the reading of this sensor; simulated: the minute since 1970
    at: int
    value: float | None  # None in a fault
    since: int  # when the sensor last changed between quiet and active
    mode: str  # of the home's alarm panel
    battery: int  # percent
    fault: str | None = None

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.home, self.sensor, self.seq


@dataclass(frozen=True, slots=True)
class Activity:
    """A reading that matters, the reason, and the region of its home."""

    reading: Reading
    why: str
    region: str


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. The same incident always has the same id."""

    home: str
    kind: str
    sensor: str
    at: int  # of the reading that raised it
    since: int  # when the condition began
    region: str
    text: str

    @property
    def id(self) -> str:
        return alert_id(self.kind, self.home, self.sensor, self.since)


def home_id(number: int) -> str:
    """The id of a home.

    >>> home_id(42)
    'h000042'
    """
    if not 0 <= number < HOMES_MAX:
        raise ValueError(f"invalid home number {number}: use 0 to {HOMES_MAX - 1}")
    return f"h{number:06d}"


def home_number(home: str) -> int:
    digits = home[1:]
    if home[:1] != "h" or len(digits) != 6 or not (digits.isascii() and digits.isdigit()):
        raise BadRecord(BAD_HOME, f"home must be 'h' and six digits (got {home!r:.40})")
    return int(digits)


def region_of(number: int) -> str:
    """The region of a home, by its number.

    >>> region_of(17)
    'Beacon Hill'
    """
    return REGIONS[number % len(REGIONS)]


def alert_id(kind: str, home: str, sensor: str, since: int) -> str:
    """The id of an alert: the same incident always has the same id.

    >>> alert_id("break-in", "h000042", "door", 1792031571000)
    'break-in:h000042:1792031571000'
    >>> alert_id("silent-sensor", "h000042", "door", 1792031571000)
    'silent-sensor:h000042:door:1792031571000'
    """
    subject = f"{home}:{sensor}" if kind in PER_SENSOR else home
    return f"{kind}:{subject}:{since}"


def sensor_number(home: Any, kind: Any) -> Any:
    """The number of a sensor, by the number of its home and the index of its kind, or of arrays.

    It is part of the state of the stages. It was `home * 8 + kind` when there were eight kinds at
    most; later kinds come in blocks of eight.
    """
    return kind // 8 * (8 * HOMES_MAX) + home * 8 + kind % 8


def home_of(sensor: Any) -> Any:
    """The number of the home, from the number of a sensor or an array of them."""
    return sensor % (8 * HOMES_MAX) // 8


def kind_of(sensor: Any) -> Any:
    """The index of the kind, from the number of a sensor or an array of them."""
    return sensor // (8 * HOMES_MAX) * 8 + sensor % 8


def is_quiet(sensor: str, value: float, kinds: Kinds = DEFAULT) -> bool:
    """Whether a value is normal: no movement, shut, not broken, no smoke; any climate value."""
    return bool(kinds.by_name[sensor].quiet.contains(value))


def why_kept(reading: Reading, kinds: Kinds = DEFAULT) -> str | None:
    """Why a reading is kept; None if it is dropped."""
    if reading.fault is not None or reading.value is None:
        return "fault"
    if 0 <= reading.at - reading.since < CHANGE_MS:
        return "change"
    if not is_quiet(reading.sensor, reading.value, kinds):
        return "active"
    if reading.battery <= LOW_BATTERY:
        return "battery"
    if (reading.seq + home_number(reading.home)) % ALIVE_EVERY == 0:
        return "alive"
    return None


def activity_of(reading: Reading, kinds: Kinds = DEFAULT) -> Activity | None:
    """The activity of a reading; None if it is dropped."""
    why = why_kept(reading, kinds)
    if why is None:
        return None
    return Activity(reading, why, region_of(home_number(reading.home)))


# -- encoding and decoding


def encode_reading(reading: Reading) -> bytes:
    """The body of an event for the hub `sensors`."""
    return _to_json(_reading_fields(reading))


def encode_activity(activity: Activity) -> bytes:
    """The body of an event for the hub `activity`."""
    extra_fields = {"why": activity.why, "region": activity.region}
    return _to_json(_reading_fields(activity.reading) | extra_fields)


def encode_alert(alert: Alert) -> bytes:
    """The body of an event for the hub `alerts`."""
    fields = {name: getattr(alert, name) for name in Alert.__slots__}
    return _to_json({"v": VERSION, "id": alert.id} | fields)


def decode_reading(body: bytes, kinds: Kinds = DEFAULT) -> Reading:
    """Decode a reading; raises BadRecord with the reason."""
    return _reading(_parse_object(body), kinds)


def decode_activity(body: bytes, kinds: Kinds = DEFAULT) -> Activity:
    """The activity in the body of an event; BadRecord if it is invalid."""
    fields = _parse_object(body)
    return Activity(_reading(fields, kinds), _text(fields, "why"), _text(fields, "region"))


def decode_alert(body: bytes) -> Alert:
    """The alert in the body of an event; BadRecord if it is invalid."""
    return Alert(**_decode_fields(_parse_object(body), _ALERT_KEYS))


def _to_json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _reading_fields(reading: Reading) -> dict[str, Any]:
    fields = {name: getattr(reading, name) for name in Reading.__slots__}
    if reading.fault is None:
        del fields["fault"]
    if isinstance(reading.value, float) and reading.value.is_integer():
        fields["value"] = int(reading.value)
    return {"v": VERSION} | fields


def _reading(fields: dict[str, Any], kinds: Kinds) -> Reading:
    if _integer(fields, "v") != VERSION:
        raise BadRecord(UNKNOWN_VERSION, f"v is {fields['v']}, expected {VERSION}")
    fault = None if fields.get("fault") is None else _text(fields, "fault")
    reading = Reading(**_decode_fields(fields, _READING_KEYS), fault=fault)
    _check_values(reading, kinds)
    return reading


def _check_values(reading: Reading, kinds: Kinds) -> None:
    home_number(reading.home)
    if reading.sensor not in kinds.by_name:
        sensor, known = f"{reading.sensor!r:.40}", ", ".join(kinds.names)
        raise BadRecord(UNKNOWN_SENSOR, f"{sensor} is not a kind of {kinds.source}: {known}")
    if reading.mode not in MODES:
        raise BadRecord(UNKNOWN_MODE, f"{reading.mode!r:.40} is not one of {', '.join(MODES)}")
    if reading.value is None and reading.fault is None:
        raise BadRecord(WRONG_TYPE, "value is null, but fault is not set")
    if reading.value is not None:
        _check_limits(reading.value, kinds.by_name[reading.sensor], kinds.source)


def _check_limits(value: float, kind: Kind, source: str) -> None:
    low, high = kind.limits.at_least, kind.limits.at_most
    if low is not None and value < low:
        raise BadRecord(BAD_VALUE, f"{kind.name} {value:g} is below {low:g}, minimum in {source}")
    if high is not None and value > high:
        raise BadRecord(BAD_VALUE, f"{kind.name} {value:g} is above {high:g}, maximum in {source}")


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise BadRecord(NOT_JSON, f"{error}") from None
    if not isinstance(fields, dict):
        raise BadRecord(NOT_JSON, f"expected an object, got {type(fields).__name__}")
    return fields


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _required(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise BadRecord(MISSING_KEY, name)
    return fields[name]


def _text(fields: dict[str, Any], name: str) -> str:
    value = _required(fields, name)
    if not isinstance(value, str):
        raise BadRecord(WRONG_TYPE, f"{name} is {type(value).__name__}, not text")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        # JSON can contain half of a surrogate pair, which UTF-8 cannot encode.
        raise BadRecord(WRONG_TYPE, f"{name} has half of a surrogate pair")
    return value


def _integer(fields: dict[str, Any], name: str) -> int:
    value = _required(fields, name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRecord(WRONG_TYPE, f"{name} is {type(value).__name__}, not a whole number")
    return value


def _number(fields: dict[str, Any], name: str) -> float | None:
    value = _required(fields, name)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise BadRecord(WRONG_TYPE, f"{name} is {type(value).__name__}, not a number")


# How each key is decoded; the first invalid key in this order is reported.
_READING_KEYS: Final = {
    "home": _text,
    "sensor": _text,
    "seq": _integer,
    "at": _integer,
    "value": _number,
    "since": _integer,
    "mode": _text,
    "battery": _integer,
}
_ALERT_KEYS: Final = dict.fromkeys(("home", "kind", "sensor"), _text) | {
    "at": _integer,
    "since": _integer,
    "region": _text,
    "text": _text,
}


def _decode_fields(
    fields: dict[str, Any], keys: Mapping[str, Callable[..., Any]]
) -> dict[str, Any]:
    return {name: decode(fields, name) for name, decode in keys.items()}

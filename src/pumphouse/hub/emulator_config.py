"""Parses the `config.json` of Microsoft's emulator, which lists hubs and consumer groups.

    {"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Name": "emulatorNs1", "Entities": [
        {"Name": "eh1", "PartitionCount": 2, "ConsumerGroups": [{"Name": "cg1"}]}]}],
      "LoggingConfig": {"Type": "File"}}}

An error names the path of the wrong value. The emulator's own limits (ten hubs, one fixed namespace
name) are enforced only with `strict`. As in the emulator, field names are case-insensitive and a
number may be in quotes.

    text -> parse_config -> HubSpec, HubSpec ... -> namespace.with_hubs
            ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pumphouse.errors import OptionError
from pumphouse.hub.limits.quotas import PARTITIONS_MAX
from pumphouse.hub.routing import DEFAULT_GROUP, check_group_name, check_hub_name

CONFIG_CHARS_MAX = 1 << 20
VALUE_CHARS_MAX = 60  # of a wrong value, in an error text

# The emulator's own limits.
STRICT_NAMESPACE = "emulatorNs1"
STRICT_HUBS_MAX, STRICT_PARTITIONS_MAX, STRICT_GROUPS_MAX = 10, 32, 20
STRICT_LOGGING = ("File", "Console", "File,Console", "Console,File")


@dataclass(frozen=True, slots=True)
class HubSpec:
    """A hub to create."""

    name: str
    partitions: int
    groups: tuple[str, ...] = ()  # besides $Default, which every hub has


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value in the file, and its path."""

    path: str
    value: Any

    def invalid(self, expected: str) -> OptionError:
        actual = json.dumps(self.value, ensure_ascii=False)
        if len(actual) > VALUE_CHARS_MAX:
            actual = f"{actual[:VALUE_CHARS_MAX]}..."
        return OptionError(f"{self.path}: expected {expected}, found {actual}")

    def field(self, name: str) -> ConfigValue | None:
        """A field of an object; None if it is missing or null."""
        if not isinstance(self.value, dict):
            raise self.invalid("an object")
        path = f"{self.path}.{name}" if self.path else name
        for key, value in self.value.items():
            if key.lower() == name.lower() and value is not None:
                return ConfigValue(path, value)
        return None

    def require(self, name: str, expected: str) -> ConfigValue:
        """A field of an object that must not be missing."""
        value = self.field(name)
        if value is None:
            path = f"{self.path}.{name}" if self.path else name
            raise OptionError(f"{path}: expected {expected}, found nothing")
        return value

    def items(self) -> list[ConfigValue]:
        if not isinstance(self.value, list):
            raise self.invalid("a list")
        return [
            ConfigValue(f"{self.path}[{number}]", value) for number, value in enumerate(self.value)
        ]

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            raise self.invalid("a string")
        return self.value

    def number(self, most: int) -> int:
        """A whole number from 1 to `most`; it may be in quotes, as in Microsoft's older samples."""
        value = self.value
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.invalid(f"1 to {most}")
        return value

    def one_of(self, values: Sequence[str]) -> str:
        if self.value not in values:
            raise self.invalid(" or ".join(f'"{value}"' for value in values))
        return str(self.value)


def parse_config(text: str, strict: bool = False) -> tuple[HubSpec, ...]:
    """The hubs of a config.json; OptionError names the path of a wrong value."""
    user = ConfigValue("", decode(text)).require("UserConfig", "an object")
    namespaces = user.require("NamespaceConfig", "a list with one namespace").items()
    if len(namespaces) != 1:
        raise OptionError(
            f"UserConfig.NamespaceConfig: expected one namespace, found {len(namespaces)}; "
            "start one hub for each namespace"
        )
    if strict:
        check_strict(user, namespaces[0])
    return read_namespace(namespaces[0], strict)


def decode(text: str) -> Any:
    if len(text) > CONFIG_CHARS_MAX:
        raise OptionError(
            f"config.json has {len(text)} characters; at most {CONFIG_CHARS_MAX} are allowed"
        )
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as failure:
        raise OptionError(
            f"config.json is not JSON: line {failure.lineno}, column {failure.colno}: {failure.msg}"
        ) from None
    except RecursionError:
        raise OptionError("config.json is not valid: it is nested too deeply") from None


def check_strict(user: ConfigValue, namespace: ConfigValue) -> None:
    """Check what the emulator requires besides hubs."""
    namespace.require("Name", f'"{STRICT_NAMESPACE}"').one_of((STRICT_NAMESPACE,))
    logging = user.require("LoggingConfig", "an object")
    logging.require("Type", "a string").one_of(STRICT_LOGGING)
    entities = namespace.require("Entities", "a list of hubs")
    if not 1 <= len(entities.items()) <= STRICT_HUBS_MAX:
        raise OptionError(
            f"{entities.path}: expected 1 to {STRICT_HUBS_MAX} hubs, found {len(entities.items())}"
        )


def read_namespace(namespace: ConfigValue, strict: bool) -> tuple[HubSpec, ...]:
    kind = namespace.field("Type")
    if kind is not None:
        kind.one_of(("EventHub",))
    entities = namespace.require("Entities", "a list of hubs").items()
    hubs = tuple(read_hub(entity, strict) for entity in entities)
    check_unique("hub", [entity.require("Name", "a string") for entity in entities])
    return hubs


def read_hub(entity: ConfigValue, strict: bool) -> HubSpec:
    name = checked_name(entity, check_hub_name)
    partitions_max = STRICT_PARTITIONS_MAX if strict else PARTITIONS_MAX
    partitions = entity.require("PartitionCount", f"1 to {partitions_max}").number(partitions_max)
    groups_value = entity.field("ConsumerGroups")
    return HubSpec(
        name, partitions, () if groups_value is None else read_groups(groups_value, strict)
    )


def read_groups(groups_value: ConfigValue, strict: bool) -> tuple[str, ...]:
    entries = groups_value.items()
    if strict and not 1 <= len(entries) <= STRICT_GROUPS_MAX:
        raise OptionError(
            f"{groups_value.path}: expected 1 to {STRICT_GROUPS_MAX} consumer groups, "
            f"found {len(entries)}"
        )
    # Slashes are accepted here, because a stored group may have one. New groups may not.
    names = [checked_name(entry, partial(check_group_name, slashes=True)) for entry in entries]
    values = [entry.require("Name", "a string") for entry in entries]
    check_unique("consumer group", values)
    for value in values:
        if strict and is_default(value.value):
            raise value.invalid(f"a name other than {DEFAULT_GROUP}, which every hub has")
    return tuple(name for name in names if not is_default(name))


def checked_name(entry: ConfigValue, check: Callable[[str], None]) -> str:
    """The name of a hub or group; OptionError if it is not valid."""
    value = entry.require("Name", "a string")
    name = value.text()
    try:
        check(name)
    except OptionError as failure:
        raise OptionError(f"{value.path}: {failure}") from None
    return name


def check_unique(what: str, values: Sequence[ConfigValue]) -> None:
    """OptionError at the second of two equal names."""
    paths: dict[str, str] = {}
    for value in values:
        first = paths.setdefault(str(value.value).lower(), value.path)
        if first != value.path:
            raise OptionError(f"{value.path}: {what} {value.value!r} is already at {first}")


def is_default(name: str) -> bool:
    return name.lower() == DEFAULT_GROUP.lower()

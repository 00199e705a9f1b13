"""Microsoft's emulator is told its hubs by a `config.json`; the same file is understood here.

    {"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Name": "emulatorNs1", "Entities": [
        {"Name": "eh1", "PartitionCount": 2, "ConsumerGroups": [{"Name": "cg1"}]}]}],
      "LoggingConfig": {"Type": "File"}}}

What is wrong is named by its place in the file. The emulator's own limits (ten hubs, its one name
for a namespace) are not ours: they are kept only if `strict` asks for them. As in the emulator,
names of fields are known in any case and a number may stand in quotes.

    text -> parse_config -> HubSpec, HubSpec ... -> ensure_hubs, ensure_groups
            ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pumphouse.errors import OptionError
from pumphouse.hub.quotas import PARTITIONS_MAX
from pumphouse.hub.routing import DEFAULT_GROUP, check_group_name, check_hub_name

CONFIG_CHARS_MAX = 1 << 20
FOUND_CHARS_MAX = 60  # of a wrong value, in an error text

# The emulator's own limits.
STRICT_NAMESPACE = "emulatorNs1"
STRICT_HUBS_MAX, STRICT_PARTITIONS_MAX, STRICT_GROUPS_MAX = 10, 32, 20
STRICT_LOGGING = ("File", "Console", "File,Console", "Console,File")


@dataclass(frozen=True, slots=True)
class HubSpec:
    """A hub as the file asks for it."""

    name: str
    partitions: int
    groups: tuple[str, ...] = ()  # besides $Default, which every hub has


@dataclass(frozen=True, slots=True)
class Place:
    """A value in the file, and the way to it."""

    path: str
    value: Any

    def wrong(self, expected: str) -> OptionError:
        found = json.dumps(self.value, ensure_ascii=False)
        if len(found) > FOUND_CHARS_MAX:
            found = f"{found[:FOUND_CHARS_MAX]}..."
        return OptionError(f"{self.path}: expected {expected}, found {found}")

    def field(self, name: str) -> Place | None:
        """A field of an object, if it is there; None also if it is null."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        path = f"{self.path}.{name}" if self.path else name
        for key, value in self.value.items():
            if key.lower() == name.lower() and value is not None:
                return Place(path, value)
        return None

    def need(self, name: str, expected: str) -> Place:
        """A field of an object that has to be there."""
        found = self.field(name)
        if found is None:
            path = f"{self.path}.{name}" if self.path else name
            raise OptionError(f"{path}: expected {expected}, found nothing")
        return found

    def items(self) -> list[Place]:
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [Place(f"{self.path}[{number}]", value) for number, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            raise self.wrong("a string")
        return self.value

    def number(self, most: int) -> int:
        """A whole number from 1 on; it may stand in quotes, as in Microsoft's older samples."""
        value = self.value
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.wrong(f"1 to {most}")
        return value

    def one_of(self, words: Sequence[str]) -> str:
        if self.value not in words:
            raise self.wrong(" or ".join(f'"{word}"' for word in words))
        return str(self.value)


def parse_config(text: str, strict: bool = False) -> tuple[HubSpec, ...]:
    """The hubs that a config.json asks for; OptionError names what is wrong, and where."""
    user = Place("", decode(text)).need("UserConfig", "an object")
    namespaces = user.need("NamespaceConfig", "a list with one namespace").items()
    if len(namespaces) != 1:
        raise OptionError(
            f"UserConfig.NamespaceConfig: expected one namespace, found {len(namespaces)}; "
            "a hub is one namespace: start one for each"
        )
    if strict:
        check_strict(user, namespaces[0])
    return read_namespace(namespaces[0], strict)


def decode(text: str) -> Any:
    if len(text) > CONFIG_CHARS_MAX:
        raise OptionError(f"config.json is longer than {CONFIG_CHARS_MAX} characters")
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as wrong:
        raise OptionError(
            f"config.json is not JSON: line {wrong.lineno}, column {wrong.colno}: {wrong.msg}"
        ) from None
    except RecursionError:
        raise OptionError("config.json is not a configuration: it is nested too deeply") from None


def check_strict(user: Place, namespace: Place) -> None:
    """What the emulator wants besides hubs."""
    namespace.need("Name", f'"{STRICT_NAMESPACE}"').one_of((STRICT_NAMESPACE,))
    logging = user.need("LoggingConfig", "an object")
    logging.need("Type", "a string").one_of(STRICT_LOGGING)
    entities = namespace.need("Entities", "a list of hubs")
    if not 1 <= len(entities.items()) <= STRICT_HUBS_MAX:
        raise OptionError(
            f"{entities.path}: expected 1 to {STRICT_HUBS_MAX} hubs, found {len(entities.items())}"
        )


def read_namespace(namespace: Place, strict: bool) -> tuple[HubSpec, ...]:
    kind = namespace.field("Type")
    if kind is not None:
        kind.one_of(("EventHub",))
    entities = namespace.need("Entities", "a list of hubs").items()
    hubs = tuple(read_hub(entity, strict) for entity in entities)
    check_once("hub", [entity.need("Name", "a string") for entity in entities])
    return hubs


def read_hub(entity: Place, strict: bool) -> HubSpec:
    name = named(entity, check_hub_name)
    most = STRICT_PARTITIONS_MAX if strict else PARTITIONS_MAX
    partitions = entity.need("PartitionCount", f"1 to {most}").number(most)
    listed = entity.field("ConsumerGroups")
    return HubSpec(name, partitions, () if listed is None else read_groups(listed, strict))


def read_groups(listed: Place, strict: bool) -> tuple[str, ...]:
    entries = listed.items()
    if strict and not 1 <= len(entries) <= STRICT_GROUPS_MAX:
        raise OptionError(
            f"{listed.path}: expected 1 to {STRICT_GROUPS_MAX} consumer groups, "
            f"found {len(entries)}"
        )
    names = [named(entry, check_group_name) for entry in entries]
    places = [entry.need("Name", "a string") for entry in entries]
    check_once("consumer group", places)
    for place in places:
        if strict and is_default(place.value):
            raise place.wrong(f"no {DEFAULT_GROUP}, which every hub has by itself")
    return tuple(name for name in names if not is_default(name))


def named(entry: Place, check: Callable[[str], None]) -> str:
    """The name of a hub or group, which must be one that it may have."""
    place = entry.need("Name", "a string")
    name = place.text()
    try:
        check(name)
    except OptionError as wrong:
        raise OptionError(f"{place.path}: {wrong}") from None
    return name


def check_once(what: str, places: Sequence[Place]) -> None:
    """OptionError at the second of two names that are the same."""
    seen: dict[str, str] = {}
    for place in places:
        first = seen.setdefault(str(place.value).lower(), place.path)
        if first != place.path:
            raise OptionError(f"{place.path}: {what} {place.value!r} stands at {first} already")


def is_default(name: str) -> bool:
    return name.lower() == DEFAULT_GROUP.lower()

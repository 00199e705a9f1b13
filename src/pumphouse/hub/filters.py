"""Where does a reader start? Selectors and attach filters to a Position.

A client says where it starts with a selector, a one-line expression inside the filter of its
attach. It becomes a Position here; the log then finds the event.

    attach -> position_from_filter -> log
              ^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pumphouse.amqp.performatives import SELECTOR_FILTER
from pumphouse.amqp.types import Described
from pumphouse.errors import AmqpError
from pumphouse.events import EARLIEST, LATEST, Position

SELECTOR_FILTER_CODE = 0x468C00000004  # the same descriptor as a number, as Go's client sends it

ARGUMENT_ERROR = "com.microsoft:argument-error"
INVALID_FIELD = "amqp:invalid-field"

_ANNOTATIONS = {
    "x-opt-offset": "offset",
    "x-opt-sequence-number": "sequence",
    "x-opt-enqueued-time": "time",
    "x-opt-enqueuedtimeutc": "time",  # what the first .NET and Java clients call it
}
# Nineteen digits hold every 64-bit number; the wire has nothing larger.
_SELECTOR = re.compile(
    r"\s*amqp\.annotation\.(?P<annotation>[a-z-]+)\s*(?P<operator>>=?)\s*"
    r"(?P<quote>['\"]?)\s*(?P<value>-?[0-9]{1,19}|@latest)\s*(?P=quote)\s*",
    re.IGNORECASE,
)


def parse_selector(text: str) -> Position:
    """The position that a selector means; AmqpError if it means none."""
    found = _SELECTOR.fullmatch(text)
    kind = _ANNOTATIONS.get(found["annotation"].lower()) if found else None
    if found is None or kind is None:
        raise _bad_selector(text)
    inclusive = found["operator"] == ">="
    if found["value"].lower() == "@latest":
        if kind != "offset":
            raise _bad_selector(text)
        return LATEST
    return _position(kind, int(found["value"]), inclusive, text)


def _position(kind: str, value: int, inclusive: bool, text: str) -> Position:
    if kind != "offset":
        return Position(kind, str(value), inclusive)
    if value < -1:
        raise _bad_selector(text)
    # -1 is the place before the first event, so it makes no difference whether it is included.
    return EARLIEST if value == -1 else Position(kind, str(value), inclusive)


@dataclass(frozen=True, slots=True)
class Start:
    """What an attach filter means: where to start, what to echo, and what was not understood."""

    position: Position = EARLIEST
    # The attach reply echoes only the filters in force: that is how a client sees what it got.
    honoured: Mapping[Any, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def position_from_filter(filter_map: Mapping[Any, Any] | None) -> Start:
    """Read the decoded filter of a source; without a selector reading starts at the first event."""
    filters = dict(filter_map or {})
    selectors = [name for name, value in filters.items() if _is_selector(name, value)]
    ignored = tuple(str(name) for name in filters if name not in selectors)
    if not selectors:
        return Start(ignored=ignored)
    if len(selectors) > 1:
        raise AmqpError(
            ARGUMENT_ERROR, f"One selector is allowed, the filter has {len(selectors)}."
        )
    name = selectors[0]
    return Start(parse_selector(_text_of(filters[name])), {name: filters[name]}, ignored)


def _is_selector(name: Any, value: Any) -> bool:
    # The descriptor decides; the name in the map is the client's own choice. A value without
    # descriptor breaks the rules, and is understood all the same if its name is the well-known one.
    key = value.descriptor if isinstance(value, Described) else name
    return key in (SELECTOR_FILTER, SELECTOR_FILTER_CODE) and value is not None


def _text_of(value: Any) -> str:
    text = value.value if isinstance(value, Described) else value
    if not isinstance(text, str):
        raise AmqpError(INVALID_FIELD, f"The selector must be a string, got {text!r:.80}.")
    return text


def _bad_selector(text: str) -> AmqpError:
    return AmqpError(
        ARGUMENT_ERROR,
        f"The supplied filter '{text:.200}' is invalid. Expected amqp.annotation.x-opt-offset, "
        "x-opt-sequence-number or x-opt-enqueued-time, then > or >=, then a number in quotes.",
    )

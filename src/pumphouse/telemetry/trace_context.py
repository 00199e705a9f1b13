"""The trace context of an event: which span has created it. Pure.

    producer -> write_context -> application properties -> read_context -> links of the consumer

The context is in the properties `traceparent` and `tracestate`, as W3C Trace Context defines them.
SDKs of Azure also use the property `Diagnostic-Id`, with the value of `traceparent`. Both are input
of strangers: what is invalid or too long is ignored. The cost is linear in the accepted lengths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

TRACEPARENT, TRACESTATE, DIAGNOSTIC_ID = "traceparent", "tracestate", "Diagnostic-Id"

TRACEPARENT_CHARS = 55  # of version 00; later versions may append fields
TRACEPARENT_CHARS_MAX = 512
TRACESTATE_CHARS_MAX = 512  # what every implementation must pass on
TRACESTATE_MEMBERS_MAX = 32

SAMPLED, RANDOM = 0x01, 0x02  # the flags that the standard defines
KNOWN_FLAGS = SAMPLED | RANDOM

_TRACEPARENT = re.compile(
    "(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
)
_KEY = "[a-z0-9][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}"
_MEMBER = re.compile(f"(?P<key>{_KEY})={_VALUE}")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The ids of a span: 32 and 16 lower-case hexadecimal digits, not all of them zero."""

    trace_id: str
    span_id: str
    flags: int = SAMPLED
    state: str = ""  # the value of `tracestate`

    @property
    def is_sampled(self) -> bool:
        """Whether the span is recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags & KNOWN_FLAGS:02x}"


# -- ids ------------------------------------------------------------------------------------------


def new_trace_id(rng: Random) -> str:
    return f"{rng.randrange(1, 1 << 128):032x}"


def new_span_id(rng: Random) -> str:
    return f"{rng.randrange(1, 1 << 64):016x}"


def new_context(rng: Random, *, is_sampled: bool = True) -> TraceContext:
    """The context of the first span of a new trace."""
    flags = RANDOM | (SAMPLED if is_sampled else 0)
    return TraceContext(new_trace_id(rng), new_span_id(rng), flags)


def child_of(parent: TraceContext, rng: Random) -> TraceContext:
    """The context of a new span in the trace of its parent."""
    return TraceContext(parent.trace_id, new_span_id(rng), parent.flags, parent.state)


# -- text -----------------------------------------------------------------------------------------


def parse_context(traceparent: object, tracestate: object = "") -> TraceContext | None:
    """The context in these values, each a str or bytes; None if `traceparent` is invalid."""
    text = text_of(traceparent, TRACEPARENT_CHARS_MAX)
    match = _TRACEPARENT.match(text)
    if match is None or not has_valid_end(match["version"], text):
        return None
    if not int(match["trace"], 16) or not int(match["span"], 16):
        return None
    flags = int(match["flags"], 16) & KNOWN_FLAGS
    return TraceContext(match["trace"], match["span"], flags, parse_tracestate(tracestate))


def has_valid_end(version: str, text: str) -> bool:
    """Whether what follows the four known fields is valid: nothing, or `-` in later versions."""
    rest = text[TRACEPARENT_CHARS:]
    return not rest if version == "00" else version != "ff" and rest[:1] in ("", "-")


def parse_tracestate(tracestate: object) -> str:
    """The value without white space and empty members; "" if any part of it is invalid."""
    text = text_of(tracestate, TRACESTATE_CHARS_MAX)
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = {match["key"] for match in matches if match is not None}
    is_valid = len(keys) == len(members) <= TRACESTATE_MEMBERS_MAX
    return ",".join(members) if is_valid else ""


def text_of(value: object, chars_max: int) -> str:
    """A value of the type str or bytes as ASCII; "" if it is something else or too long."""
    if not isinstance(value, str | bytes) or len(value) > chars_max:
        return ""
    text = value if isinstance(value, str) else value.decode("latin-1")
    return text if text.isascii() else ""


# -- application properties -----------------------------------------------------------------------


def property_of(properties: Mapping[Any, Any], name: str) -> Any:
    """A property whose name is a str, or bytes as in the official Python SDK."""
    return properties.get(name) if name in properties else properties.get(name.encode())


def carries_context(properties: Mapping[Any, Any]) -> bool:
    """Whether a producer has written a context, valid or not."""
    return any(property_of(properties, name) is not None for name in (TRACEPARENT, DIAGNOSTIC_ID))


def read_context(properties: Mapping[Any, Any]) -> TraceContext | None:
    """The context that an event carries."""
    if not properties:
        return None
    tracestate = property_of(properties, TRACESTATE)
    context = parse_context(property_of(properties, TRACEPARENT), tracestate)
    return context or parse_context(property_of(properties, DIAGNOSTIC_ID), tracestate)


def write_context(properties: Mapping[Any, Any], context: TraceContext) -> Mapping[Any, Any]:
    """The properties with this context. Those that carry a context are returned as they are."""
    if carries_context(properties):
        return properties
    parent = context.traceparent
    written = {**properties, TRACEPARENT: parent, DIAGNOSTIC_ID: parent}
    return written | {TRACESTATE: context.state} if context.state else written

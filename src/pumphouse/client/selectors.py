"""Filters that start a reader at a position.

Position -> selector_for -> the filter of an attach -> hub
            ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from typing import Any

from pumphouse.amqp.performatives import SELECTOR_FILTER
from pumphouse.amqp.types import Described
from pumphouse.errors import OptionError
from pumphouse.events import Position

_ANNOTATIONS = {
    "offset": "x-opt-offset",
    "sequence": "x-opt-sequence-number",
    "time": "x-opt-enqueued-time",
}


def selector_for(position: Position) -> str:
    """The selector of a position, as the official clients write it."""
    if position.kind == "earliest":
        return "amqp.annotation.x-opt-offset > '-1'"
    if position.kind == "latest":
        return "amqp.annotation.x-opt-offset > '@latest'"
    if position.kind not in _ANNOTATIONS:
        raise OptionError(
            f"invalid kind of position {position.kind!r} (got {position}): "
            "use earliest, latest, offset, sequence or time"
        )
    operator = ">=" if position.inclusive else ">"
    return f"amqp.annotation.{_ANNOTATIONS[position.kind]} {operator} '{position.value}'"


def filter_for(position: Position) -> dict[Any, Any]:
    """The filter of a source that starts at a position."""
    return {SELECTOR_FILTER: Described(SELECTOR_FILTER, selector_for(position))}

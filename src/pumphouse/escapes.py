"""Text from clients as output: it changes neither a terminal nor the lines of a log.

Keys, bodies, properties, host names and error texts of a peer can contain escape sequences that
move the cursor, recolour or retitle a terminal, line breaks that look like another log line, and
characters that reverse the direction of text. All of them are written as escapes, such as \\x1b.

    text of a client -> printable, printable_lines, json_text -> terminal, log, JSON
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any


def printable(text: str) -> str:
    """The text on one line, with escapes in place of control characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """As `printable`, but line breaks are kept."""
    return "\n".join(map(printable, text.split("\n")))


def json_text(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """The value as JSON on one line. A number that JSON does not have is null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=default)
    except ValueError:  # NaN or an infinity
        text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, default=default)
    if text.isprintable():
        return text
    # JSON itself escapes only the characters below the space.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def finite(value: Any) -> Any:
    """The value with None in place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value

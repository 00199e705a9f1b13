"""JSON that every browser can parse, and server-sent events.

The browser re-opens a broken stream by itself.
"""

from __future__ import annotations

import json
from typing import Any

from pumphouse.escapes import finite

RETRY_MS = 1000  # delay before the browser reconnects
HEARTBEAT = b": still here\n\n"


def opening() -> bytes:
    return f"retry: {RETRY_MS}\n\n".encode()


def message(name: str, data: Any) -> bytes:
    """One message. JSON has no line breaks, so the data is always one line."""
    # Only CR and LF end a line here, and JSON escapes both; U+2028 is harmless.
    return f"event: {name}\ndata: ".encode() + encode_json(data) + b"\n\n"


def encode_json(data: Any) -> bytes:
    """The data as JSON. A number that JSON does not have is null; a lone surrogate is escaped."""
    try:
        text = _dumps(data)
    except ValueError:  # NaN or an infinity, which no view should contain
        text = _dumps(finite(data))
    # Only lone surrogates cannot be encoded. backslashreplace escapes them as JSON does.
    return text.encode("utf-8", "backslashreplace")


def _dumps(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

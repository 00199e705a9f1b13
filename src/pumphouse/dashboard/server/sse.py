"""Server-sent events. The browser re-opens a broken stream by itself."""

from __future__ import annotations

import json
from typing import Any

RETRY_MS = 1000  # delay before the browser reconnects
HEARTBEAT = b": still here\n\n"


def opening() -> bytes:
    return f"retry: {RETRY_MS}\n\n".encode()


def message(name: str, data: Any) -> bytes:
    """One message. JSON has no line breaks, so the data is always one line."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Only CR and LF end a line here, and JSON escapes both; U+2028 is harmless.
    return f"event: {name}\ndata: {text}\n\n".encode("utf-8", "backslashreplace")

"""Server-sent events: messages of a stream that a browser opens again by itself if it breaks."""

from __future__ import annotations

import json
from typing import Any

AGAIN_MS = 1000  # after so long a browser tries again
HEARTBEAT = b": still here\n\n"


def opening() -> bytes:
    return f"retry: {AGAIN_MS}\n\n".encode()


def message(name: str, data: Any) -> bytes:
    """One message. JSON without line breaks is one line of data, whatever the text in it."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # U+2028 and such are harmless here: only CR and LF end a line, and JSON escapes both.
    return f"event: {name}\ndata: {text}\n\n".encode("utf-8", "backslashreplace")

"""Decides which requests are allowed, and sets the security headers of the responses.

The page listens on this machine only. That excludes other machines, but not other web sites in the
same browser: a foreign site can resolve its own name to 127.0.0.1 (DNS rebinding), or post forms to
this address. So the Host must be ours, and every change needs our Origin and a token that only our
own page can read.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

TOKEN_HEADER = "x-pumphouse-token"
BODY_BYTES_MAX = 64 * 1024

HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def hosts_allowed(port: int) -> frozenset[str]:
    """The values of the Host header that are accepted."""
    names = ("127.0.0.1", "localhost", "[::1]")
    return frozenset(f"{name}:{port}" for name in names) | (
        frozenset(names) if port == 80 else frozenset()
    )


def refusal(
    method: str, headers: Mapping[str, str], allowed: frozenset[str], token: str
) -> tuple[int, str] | None:
    """The status and the reason if a request is refused; None if it is allowed."""
    host = headers.get("host", "")
    if host.lower() not in allowed:
        return 421, f"wrong Host {host!r:.80}: open the page by its address on this machine"
    if method in ("GET", "HEAD"):
        return None
    if method != "POST":
        return 405, "method not allowed: use GET or POST"
    if headers.get("origin", "").lower() != f"http://{host.lower()}":
        return 403, "wrong Origin: changes are accepted from the page only"
    if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), token.encode()):
        return 403, "wrong token: reload the page"
    return None

"""Who may ask the page for something, and what a browser may do with its answers.

The page listens on this machine only. That keeps other machines out, not other web sites: a page
from elsewhere could have its own name resolve to 127.0.0.1 and read along (DNS rebinding), or post
to us behind somebody's back. So the Host must be one of ours, and whatever changes something needs
our own Origin and a token that only our page has been given.
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
    """The names by which this machine's page is asked for."""
    names = ("127.0.0.1", "localhost", "[::1]")
    return frozenset(f"{name}:{port}" for name in names) | (
        frozenset(names) if port == 80 else frozenset()
    )


def refusal(
    method: str, headers: Mapping[str, str], allowed: frozenset[str], token: str
) -> tuple[int, str] | None:
    """Why a request is refused, with its status; None if it is not."""
    host = headers.get("host", "")
    if host.lower() not in allowed:
        return 421, "this page answers only to its own address on this machine"
    if method in ("GET", "HEAD"):
        return None
    if method != "POST":
        return 405, "only GET and POST are understood"
    if headers.get("origin", "").lower() != f"http://{host.lower()}":
        return 403, "a change must come from the page itself: the Origin is another"
    if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), token.encode()):
        return 403, "a change needs the token of the page; reload it"
    return None

"""Who may call the HTTP API: programs on this machine may look, holders of a key may change things.

A page in a browser is also a program on this machine, and may come from anywhere. Such a page can
reach a loopback port in two ways: by a request to it, which carries its origin, or under a name of
its own that leads here, which stands in Host. Both are refused, so that what the API shows stays
on the machine; and no request is ever answered with leave to read it across origins.

    request -> check_caller -> route -> check_key (for a change) -> admin.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pumphouse.errors import AuthError
from pumphouse.hub.access.auth import AccessRule, Claim, verify_sas

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
FORBIDDEN, UNAUTHORIZED = 403, 401


def check_caller(headers: Mapping[str, str], port: int) -> None:
    """AuthError unless the request was made for this address, and by no page of another one."""
    here = [f"{name}:{port}" for name in LOOPBACK_NAMES]
    if port == 80:
        here += LOOPBACK_NAMES
    host = headers.get("host", "").lower()
    if host not in here:
        raise AuthError(f"Host {host!r:.80} is not this address; call localhost:{port}", FORBIDDEN)
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in [f"http://{name}" for name in here]:
        raise AuthError("calls from pages of other origins are refused", FORBIDDEN)
    if headers.get("sec-fetch-site", "none").lower() not in ("none", "same-origin"):
        raise AuthError("calls from pages of other sites are refused", FORBIDDEN)


def check_key(
    headers: Mapping[str, str], path: str, rules: Iterable[AccessRule], now: float
) -> None:
    """AuthError unless the request carries a token that gives Manage on a path ("" is all)."""
    token = headers.get("authorization", "")
    if not token:
        raise AuthError(
            "a change needs the header Authorization: SharedAccessSignature sr=...&sig=...&se=..."
            "&skn=..., signed with a key that has Manage"
        )
    grant = verify_sas(token, path, rules, now)
    if Claim.MANAGE not in grant.claims:
        raise AuthError("the token's access rule lacks the claim Manage", FORBIDDEN)

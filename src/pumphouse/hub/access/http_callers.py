"""Access checks of the HTTP API: programs on this machine may read, holders of a key may change.

A web page in a browser on this machine can reach a loopback port in two ways: by a request that
carries the page's origin, or under a host name of its own that resolves to loopback. Both are
refused, so that the API's data stays on the machine. No response allows another origin to read it.

    request -> check_caller -> route -> check_key (for a change) -> admin_api.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pumphouse.errors import AuthError
from pumphouse.hub.access.auth import AccessRule, Claim, verify_sas

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
FORBIDDEN, UNAUTHORIZED = 403, 401


def check_caller(headers: Mapping[str, str], port: int) -> None:
    """AuthError unless the request is for this address and not from a page of another one."""
    addresses = [f"{name}:{port}" for name in LOOPBACK_NAMES]
    if port == 80:
        addresses += LOOPBACK_NAMES
    host = headers.get("host", "").lower()
    if host not in addresses:
        raise AuthError(f"Host {host!r:.80} is not this server; use localhost:{port}", FORBIDDEN)
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in [f"http://{name}" for name in addresses]:
        raise AuthError("calls from pages of other origins are refused", FORBIDDEN)
    if headers.get("sec-fetch-site", "none").lower() not in ("none", "same-origin"):
        raise AuthError("calls from pages of other sites are refused", FORBIDDEN)


def check_key(
    headers: Mapping[str, str], path: str, rules: Iterable[AccessRule], now: float
) -> None:
    """AuthError unless the request has a token with Manage on a path ("": the namespace)."""
    token = headers.get("authorization", "")
    if not token:
        raise AuthError(
            "a change needs the header Authorization: SharedAccessSignature sr=...&sig=...&se=..."
            "&skn=..., signed with a key that has Manage"
        )
    grant = verify_sas(token, path, rules, now)
    if Claim.MANAGE not in grant.claims:
        raise AuthError("the token's access rule lacks the claim Manage", FORBIDDEN)

"""Access checks of HTTP requests: of the HTTP API, and of the WebSocket handshake.

A web page in a browser can reach a port of the hub in two ways: by a request that carries the
page's origin, or under a host name of its own that resolves to the hub's address (DNS rebinding).
Both are refused. Programs send no origin, or the origin of the address that they connect to.

    HTTP request        -> check_caller -> route -> check_key (for a change) -> admin_api.py
    WebSocket handshake -> check_websocket -> AMQP connection
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from pumphouse.errors import AuthError
from pumphouse.hub.access.auth import AccessRule, Claim, verify_by_both_clocks, verify_sas

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
FORBIDDEN, UNAUTHORIZED = 403, 401


def check_caller(
    headers: Mapping[str, str], port: int, names: Iterable[str] = LOOPBACK_NAMES
) -> None:
    """AuthError if a request names another host, or comes from a page of another origin.

    `names` are the names and addresses of this server. The port is its own.
    """
    addresses = [f"{name}:{port}" for name in names]
    if port == 80:
        addresses += names
    host = headers.get("host", "").lower()
    if host not in addresses:
        raise AuthError(f"Host {host!r:.80} is not this server; use localhost:{port}", FORBIDDEN)
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in [f"http://{name}" for name in addresses]:
        raise AuthError(f"calls from pages of origin {origin!r:.80} are refused", FORBIDDEN)
    check_fetch_site(headers)


def check_websocket(headers: Mapping[str, str], names: Collection[str], tls: bool) -> None:
    """AuthError if a WebSocket handshake names another host, or is from a page of another origin.

    `names` are the names and addresses of this server. The port may be another one, because it may
    be forwarded. Over TLS the name is not checked: the client has compared it with the certificate,
    so a page under another name does not get this far.
    """
    host = headers.get("host", "").lower()
    if not tls and host_name(host) not in names:
        raise AuthError(
            f"Host {host!r:.80} is not a name of this hub; use localhost or its address, or start "
            "the hub with host_names",
            FORBIDDEN,
        )
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        raise AuthError(f"calls from pages of origin {origin!r:.80} are refused", FORBIDDEN)
    check_fetch_site(headers)


def check_fetch_site(headers: Mapping[str, str]) -> None:
    """AuthError if a browser states that the request is from a page of another site."""
    if headers.get("sec-fetch-site", "none").lower() not in ("none", "same-origin"):
        raise AuthError("calls from pages of other sites are refused", FORBIDDEN)


def host_name(host: str) -> str:
    """The name in a Host header, without the port. An IPv6 address keeps its brackets."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def as_host(name: str) -> str:
    """A name or address as it stands in a Host header."""
    lower = name.partition("%")[0].lower()
    return f"[{lower}]" if ":" in lower and not lower.startswith("[") else lower


def check_key(
    headers: Mapping[str, str],
    path: str,
    rules: Iterable[AccessRule],
    now: float,
    client_now: float,
) -> None:
    """AuthError unless the request has a token with Manage on a path ("": the namespace)."""
    token = headers.get("authorization", "")
    if not token:
        raise AuthError(
            "a change needs the header Authorization: SharedAccessSignature sr=...&sig=...&se=..."
            "&skn=..., signed with a key that has Manage"
        )
    grant = verify_by_both_clocks(partial(verify_sas, token, path, rules), now, client_now)
    if Claim.MANAGE not in grant.claims:
        raise AuthError("the token's access rule lacks the claim Manage", FORBIDDEN)

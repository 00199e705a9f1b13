"""Decides which requests are allowed, and sets the security headers of the responses.

The page listens on this machine only. That excludes other machines, but neither other users of the
machine nor other web sites in the same browser: a foreign site can resolve its own name to
127.0.0.1 (DNS rebinding), or send requests to this address. So

* the Host must be ours,
* every request needs the launch token, which is in the address that the command prints. The first
  visit sets it as a cookie; programs send it as `Authorization: Bearer`,
* only our own page may read data, as the browser reports in Sec-Fetch-Site, and
* every change needs our Origin and a second token that only our own page can read.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs

CHANGE_TOKEN_HEADER = "x-pumphouse-token"
LAUNCH_TOKEN = "token"  # the parameter in the address of the page
HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 64 * 1024
PAGES = ("homes", "fleet", "events")
DOCUMENTS = frozenset(f"/{name}" for name in ("", *PAGES))
# What a browser reports about a request of our own page, and about one that the user typed.
OWN_SITES = ("same-origin", "none")

HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Access:
    """What a request must have."""

    hosts: frozenset[str]
    cookie: str  # its name has the port, because the pages of a machine share their cookies
    change_token: str = field(repr=False)
    launch_token: str = field(repr=False)  # "": the page is open to every user of the machine


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The part of a request that decides."""

    method: str
    path: str
    query: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)  # names in lower case


def access_to(port: int, launch_token: str, change_token: str) -> Access:
    return Access(hosts_allowed(port), f"pumphouse-{port}", change_token, launch_token)


def hosts_allowed(port: int) -> frozenset[str]:
    """The values of the Host header that are accepted."""
    names = ("127.0.0.1", "localhost", "[::1]")
    return frozenset(f"{name}:{port}" for name in names) | (
        frozenset(names) if port == 80 else frozenset()
    )


def refusal(request: RequestHead, access: Access) -> tuple[int, str] | None:
    """The status and the reason if a request is refused; None if it is allowed."""
    headers = request.headers
    host = headers.get("host", "")
    if host.lower() not in access.hosts:
        return 421, f"wrong Host {host!r:.80}: open the page by its address on this machine"
    if not (is_launch(request, access) or has_launch_token(headers, access)):
        return 401, "the token is missing or stale: open the address that the command has printed"
    if request.method in ("GET", "HEAD"):
        return foreign_read(request)
    if request.method != "POST":
        return 405, "method not allowed: use GET or POST"
    if headers.get("origin", "").lower() != f"http://{host.lower()}":
        return 403, "wrong Origin: changes are accepted from the page only"
    if not is_equal(headers.get(CHANGE_TOKEN_HEADER, ""), access.change_token):
        return 403, "wrong token: reload the page"
    return None


def foreign_read(request: RequestHead) -> tuple[int, str] | None:
    """Refuse data to another site. It may link to a document, as any page may."""
    site = request.headers.get("sec-fetch-site", "none")
    if site in OWN_SITES or request.path in DOCUMENTS:
        return None
    return 403, "another web site has sent this request: use the page itself"


# -- the launch token -----------------------------------------------------------------------------


def is_launch(request: RequestHead, access: Access) -> bool:
    """Whether a request opens a document by the printed address."""
    if not access.launch_token or request.method != "GET" or request.path not in DOCUMENTS:
        return False
    try:
        values = parse_qs(request.query, max_num_fields=20).get(LAUNCH_TOKEN, [""])
    except ValueError:  # too many fields
        return False
    return is_equal(values[0], access.launch_token)


def has_launch_token(headers: Mapping[str, str], access: Access) -> bool:
    """Whether a request has the launch token as a cookie or as a bearer token."""
    if not access.launch_token:
        return True
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    bearer = credentials.strip() if scheme.lower() == "bearer" else ""
    sent = (bearer, cookie_of(headers.get("cookie", ""), access.cookie))
    return any([is_equal(token, access.launch_token) for token in sent])


def cookie_of(header: str, name: str) -> str:
    """The value of a cookie; "" if it was not sent."""
    pairs = (pair.partition("=") for pair in header.split(";"))
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def launch_cookie(access: Access) -> str:
    """The header that keeps the token in the browser, out of reach of scripts and other sites."""
    return f"{access.cookie}={access.launch_token}; Path=/; HttpOnly; SameSite=Strict"


def is_equal(sent: str, token: str) -> bool:
    """Compare in a time that does not depend on how much of the token is right."""
    return hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), token.encode())


# -- framing --------------------------------------------------------------------------------------


def has_body(headers: Mapping[str, str]) -> bool:
    return headers.get("content-length", "0") != "0"


def head_fault(headers: Sequence[tuple[bytes, bytes]]) -> tuple[int, str] | None:
    """Why the head of a request is refused: it is large.

    h11 limits only a head that is not complete yet. An ambiguous length does not get this far:
    `pumphouse.http_requests` refuses it.
    """
    if sum(len(name) + len(value) + 4 for name, value in headers) > HEAD_BYTES_MAX:
        return 431, f"the headers are larger than {HEAD_BYTES_MAX} bytes"
    return None

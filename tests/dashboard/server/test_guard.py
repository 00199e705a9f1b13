"""Which requests the page refuses, and the headers of its responses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pumphouse.dashboard.server.guard import (
    HEAD_BYTES_MAX,
    HEADERS,
    RequestHead,
    access_to,
    cookie_of,
    head_fault,
    is_launch,
    launch_cookie,
    refusal,
)

TOKEN = "the-token-of-the-page"
ACCESS = access_to(8080, TOKEN, "t")
OPEN = access_to(8080, "", "t")
OURS = {"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:8080", "x-pumphouse-token": "t"}


def status_of(
    method: str = "GET",
    path: str = "/api/about",
    query: str = "",
    *,
    to: object = OPEN,
    **headers: str | None,
) -> int | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {name: value for name, value in {**OURS, **named}.items() if value is not None}
    refused = refusal(RequestHead(method, path, query, sent), to)  # type: ignore[arg-type]
    return refused[0] if refused else None


@pytest.mark.parametrize(
    ("method", "change", "status"),
    [
        ("GET", {}, None),
        ("HEAD", {"origin": "http://evil.example"}, None),
        ("GET", {"host": "localhost:8080"}, None),
        ("GET", {"host": "LOCALHOST:8080"}, None),
        ("GET", {"host": "evil.example:8080"}, 421),  # DNS rebinding
        ("GET", {"host": "127.0.0.1:8081"}, 421),
        ("GET", {"host": "127.0.0.1"}, 421),
        ("GET", {"host": None}, 421),
        ("POST", {}, None),
        ("POST", {"host": "localhost:8080"}, 403),  # Origin and Host differ
        ("POST", {"origin": "http://evil.example"}, 403),
        ("POST", {"origin": "null"}, 403),
        ("POST", {"origin": None}, 403),
        ("POST", {"x-pumphouse-token": "other"}, 403),
        ("POST", {"x-pumphouse-token": "tö"}, 403),
        ("POST", {"x-pumphouse-token": None}, 403),
        ("PUT", {}, 405),
        ("OPTIONS", {}, 405),
    ],
)
def test_a_request_needs_our_host_origin_and_token(
    method: str, change: dict[str, str | None], status: int | None
) -> None:
    assert status_of(method, "/api/about", "", to=OPEN, **change) == status


# -- the launch token -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": f"Bearer {TOKEN}"}, None),
        ({"authorization": f"bearer  {TOKEN} "}, None),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": f"Bearer {TOKEN}x"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Bearer \udcff"}, 401),
        ({"cookie": f"pumphouse-8080={TOKEN}"}, None),
        ({"cookie": f'a=b; x="; pumphouse-8080={TOKEN}; c'}, None),
        ({"cookie": f"pumphouse-8081={TOKEN}"}, 401),  # of another page
        ({"cookie": "pumphouse-8080="}, 401),
        ({"cookie": f"pumphouse-8080={TOKEN[:-1]}"}, 401),
        ({"cookie": ";=;;pumphouse-8080"}, 401),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_every_request_needs_the_launch_token(
    method: str, headers: dict[str, str], status: int | None
) -> None:
    assert status_of(method, to=ACCESS, **headers) == status


@pytest.mark.parametrize(
    ("method", "path", "query", "status"),
    [
        ("GET", "/", f"token={TOKEN}", None),
        ("GET", "/homes", f"home=42&token={TOKEN}", None),
        ("GET", "/", "token=", 401),
        ("GET", "/", f"token={TOKEN[1:]}", 401),
        ("GET", "/", f"token=x&token={TOKEN}", 401),
        ("GET", "/", "&".join(["a=b"] * 100), 401),
        ("GET", "/api/about", f"token={TOKEN}", 401),  # documents only
        ("GET", "/stream/fleet", f"token={TOKEN}", 401),
        ("POST", "/", f"token={TOKEN}", 401),
    ],
)
def test_the_address_with_the_token_opens_a_document(
    method: str, path: str, query: str, status: int | None
) -> None:
    assert status_of(method, path, query, to=ACCESS) == status
    request = RequestHead(method, path, query, OURS)
    assert is_launch(request, ACCESS) == (status is None)
    assert not is_launch(request, OPEN)


def test_the_wrong_host_is_refused_before_the_token_is_checked() -> None:
    assert status_of("GET", "/", f"token={TOKEN}", to=ACCESS, host="evil.example") == 421


def test_the_cookie_is_for_our_own_site_and_not_for_scripts() -> None:
    cookie = launch_cookie(ACCESS)
    assert cookie == f"pumphouse-8080={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert cookie_of(cookie, "pumphouse-8080") == TOKEN


def test_tokens_are_in_no_repr() -> None:
    request = RequestHead("GET", "/", f"token={TOKEN}", {"cookie": TOKEN})
    assert TOKEN not in repr(ACCESS) + repr(request)
    assert "secret" not in repr(replace(ACCESS, change_token="secret"))


# -- other sites ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "site", "status"),
    [
        ("/api/about", "same-origin", None),
        ("/api/about", "none", None),
        ("/stream/fleet", "same-site", 403),  # another port of this machine
        ("/stream/fleet", "cross-site", 403),
        ("/static/main.js", "cross-site", 403),
        ("/fleet", "cross-site", None),  # a link
    ],
)
def test_data_is_for_our_own_page(path: str, site: str, status: int | None) -> None:
    assert status_of("GET", path, sec_fetch_site=site) == status


def test_the_policy_allows_only_our_own_files() -> None:
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], None),
        ([(b"content-length", b"5")], None),
        ([(b"a", b"b" * HEAD_BYTES_MAX)], "larger than 16384 bytes"),
    ],
)
def test_a_large_head_is_refused(headers: list[tuple[bytes, bytes]], reason: str | None) -> None:
    fault = head_fault(headers)
    assert fault is None if reason is None else reason in (fault or (0, ""))[1]

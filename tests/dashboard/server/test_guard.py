"""Which requests the page refuses, and the headers of its responses."""

from __future__ import annotations

import pytest

from pumphouse.dashboard.server.guard import HEADERS, hosts_allowed, refusal

OURS = {"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:8080", "x-pumphouse-token": "t"}


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
    headers = {name: value for name, value in {**OURS, **change}.items() if value is not None}
    result = refusal(method, headers, hosts_allowed(8080), "t")
    assert (result[0] if result else None) == status


def test_the_policy_allows_only_our_own_files() -> None:
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy

"""Every route of the page is refused without the launch token; a change also without its own.

The routes come from the application, so that a new one is checked too.
"""

from __future__ import annotations

import re

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import Message, Receive, Scope, Send

from pumphouse.dashboard.options import DashboardOptions
from pumphouse.dashboard.server.app import Dashboard
from pumphouse.dashboard.server.guard import CHANGE_TOKEN_HEADER, access_to
from pumphouse.dashboard.server.routes import GuardMiddleware, make_app

TOKEN, CHANGE_TOKEN = "the-launch-token", "the-change-token"
OPEN = {"host": "localhost", "authorization": f"Bearer {TOKEN}"}
CHANGE = OPEN | {"origin": "http://localhost", CHANGE_TOKEN_HEADER: CHANGE_TOKEN}


def guarded_app() -> GuardMiddleware:
    page = Dashboard(DashboardOptions(connection="Endpoint=sb://localhost", hubs=("eh",)))
    page.access = access_to(80, TOKEN, CHANGE_TOKEN)
    app = make_app(page)
    assert isinstance(app, GuardMiddleware)
    return app


def routes() -> list[tuple[str, str]]:
    """The method and a path of every route."""
    app = guarded_app().app
    assert isinstance(app, Starlette)
    found = []
    for route in app.routes:
        if isinstance(route, Mount):
            found.append(("GET", f"{route.path}/x"))
        else:
            assert isinstance(route, Route), "a new kind of route: check its access here"
            path = re.sub(r"\{\w+\}", "x", route.path)
            found += [(method, path) for method in sorted(route.methods or ())]
    return found


async def status_of(method: str, path: str, headers: dict[str, str]) -> int:
    """The status of a request. One that is allowed reaches a stand-in for the routes: 200."""
    app = guarded_app()
    app.app = PlainTextResponse("allowed")
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope_of(method, path, headers), receive, send)
    return statuses[0]


def scope_of(method: str, path: str, headers: dict[str, str]) -> Scope:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": raw,
        "scheme": "http",
        "http_version": "1.1",
    }


def test_all_routes_are_found() -> None:
    assert {"/", "/api/about", "/stream/home/x", "/api/send", "/static/x"} <= dict(
        (path, method) for method, path in routes()
    ).keys()
    assert {method for method, _ in routes()} == {"GET", "HEAD", "POST"}


def test_a_path_that_changes_something_cannot_be_read() -> None:
    """A browser sends GET requests for pages of other sites."""
    changes = {path for method, path in routes() if method == "POST"}
    assert not changes & {path for method, path in routes() if method != "POST"}


@pytest.mark.parametrize(("method", "path"), routes())
async def test_a_route_needs_its_tokens(method: str, path: str) -> None:
    allowed = CHANGE if method == "POST" else OPEN
    assert await status_of(method, path, allowed) == 200
    for left_out, status in refusals(method):
        headers = {name: value for name, value in allowed.items() if name != left_out}
        assert await status_of(method, path, headers) == status, left_out
        wrong = await status_of(method, path, allowed | {left_out: "wrong"})
        assert wrong == status, left_out


def refusals(method: str) -> list[tuple[str, int]]:
    """The headers that a request needs, and the status without one."""
    of_all = [("host", 421), ("authorization", 401)]
    of_changes = [("origin", 403), (CHANGE_TOKEN_HEADER, 403)]
    return of_all + of_changes if method == "POST" else of_all


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "x"])
async def test_other_methods_are_refused(method: str) -> None:
    for _, path in routes():
        assert await status_of(method, path, CHANGE) == 405


async def test_other_kinds_of_connections_are_not_served() -> None:
    """WebSocket and lifespan never reach the routes."""
    app = guarded_app()

    async def unexpected(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the routes were reached")

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        raise AssertionError("a response was sent")

    app.app = unexpected
    for kind in ("websocket", "lifespan"):
        await app({"type": kind, "path": "/", "headers": []}, receive, send)

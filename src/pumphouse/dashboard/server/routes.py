"""The HTTP routes of the page.

GET /homes, /fleet and /events return the same document; /static/... its files; /stream/... live
data. POST /api/... changes something, if `guard` allows it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pumphouse.clock import now_ms
from pumphouse.dashboard.monitors import hub_faults
from pumphouse.dashboard.monitors.events import LAST, Tail, TailQuery, sample_from, send_sample
from pumphouse.dashboard.server import guard, sse, streams
from pumphouse.dashboard.server.protocol import ALLOWED
from pumphouse.dashboard.views.homes import find_home
from pumphouse.errors import OptionError, PumphouseError
from pumphouse.events import parse_position

if TYPE_CHECKING:
    from pumphouse.dashboard.monitors.host_processes import Fleet
    from pumphouse.dashboard.server.app import Dashboard

STATIC = files("pumphouse.dashboard") / "static"
UNAUTHORISED = 401
BEARER = {"www-authenticate": "Bearer"}
NO_TOKEN = "<!doctype html><html lang='en'><title>Pumphouse</title><p>Pumphouse: {reason}.</p>"
CHANGE_S = 30.0  # deadline of a change
NO_HOMES = "the page was started without homes: use --homes"
TEXT_MAX = 200  # characters of a query parameter


def make_app(page: Dashboard) -> ASGIApp:
    handlers = Handlers(page)
    app = Starlette(
        routes=[
            *(Route(path, handlers.document) for path in sorted(guard.DOCUMENTS)),
            Route("/api/about", handlers.about),
            Route("/api/faults", handlers.faults),
            Route("/api/alert", handlers.alert),
            Route("/stream/fleet", handlers.fleet),
            Route("/stream/homes", handlers.homes),
            Route("/stream/home/{home}", handlers.home),
            Route("/stream/events", handlers.events),
            Route("/api/hosts/{act}", handlers.hosts, methods=["POST"]),
            Route("/api/faults/{act}", handlers.change_faults, methods=["POST"]),
            Route("/api/alerts/{act}", handlers.change_alert, methods=["POST"]),
            Route("/api/send", handlers.send, methods=["POST"]),
            Mount("/static", StaticFiles(directory=str(STATIC))),
        ]
    )
    return GuardMiddleware(app, page)


class GuardMiddleware:
    """Refuses requests as `guard` decides, and adds its headers to every response."""

    def __init__(self, app: ASGIApp, page: Dashboard) -> None:
        self.app, self.page = app, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in guard.HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = self.refusal(Request(scope))
        if refused is None:
            scope.setdefault("state", {})[ALLOWED] = True
        await (refused or self.app)(scope, receive, send_guarded)

    def refusal(self, request: Request) -> Response | None:
        """The response that refuses a request; None if it is allowed."""
        if fault := guard.head_fault(request.headers.raw):
            return error_response(fault[1], fault[0], connection="close")
        head = head_of(request)
        if (refused := guard.refusal(head, self.page.access)) is None:
            return None
        status, reason = refused
        headers = BEARER if status == UNAUTHORISED else {}
        if guard.has_body(request.headers):
            headers = headers | {"connection": "close"}  # the body is not read
        if status == UNAUTHORISED and head.path in guard.DOCUMENTS:
            return HTMLResponse(NO_TOKEN.format(reason=reason), status, headers)
        return error_response(reason, status, **headers)


def head_of(request: Request) -> guard.RequestHead:
    # Not request.url, which is put together with the Host header of the client: the path that is
    # checked must be the path that is routed.
    path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
    return guard.RequestHead(request.method, path, query, request.headers)


class PageJson(JSONResponse):
    """A response that every browser can parse, whatever names and texts it has."""

    def render(self, content: Any) -> bytes:
        return sse.encode_json(content)


def error_response(text: str, status: int, **headers: str) -> JSONResponse:
    return PageJson({"error": text}, status, headers)


async def read_json(request: Request) -> Any:
    """The body of a request, which must be a JSON object of limited size."""
    body = bytearray()
    async with asyncio.timeout(CHANGE_S):
        async for part in request.stream():
            body += part
            if len(body) > guard.BODY_BYTES_MAX:
                raise OptionError(f"request too large: at most {guard.BODY_BYTES_MAX:,} bytes")
    try:
        fields = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise OptionError("the request is not JSON") from None
    if not isinstance(fields, dict):
        raise OptionError("the request is not a JSON object")
    return fields


Change = Callable[[Any], Awaitable[Any]]


async def apply(request: Request, change: Change) -> Response:
    """Apply a change with the fields of the request; an error becomes a response with a reason."""
    try:
        async with asyncio.timeout(CHANGE_S):
            return PageJson(await change(await read_json(request)))
    except OptionError as error:
        return error_response(str(error), 400)
    except (PumphouseError, OSError) as error:
        return error_response(str(error), 502)
    except TimeoutError:
        return error_response(
            f"no response within {CHANGE_S:.0f} s; check the state before you retry", 504
        )


class CountedStream(StreamingResponse):
    """A stream that counts towards STREAMS_MAX; refused if that many are open."""

    def __init__(self, page: Dashboard, messages: AsyncGenerator[bytes, None]) -> None:
        super().__init__(messages, media_type="text/event-stream; charset=utf-8")
        self.page, self.messages = page, messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.page.open_stream() as accepted:
            if not accepted:
                await too_many_streams()(scope, receive, send)
                return
            async with aclosing(self.messages):
                await super().__call__(scope, receive, send)


class Handlers:
    """The handlers of all routes."""

    def __init__(self, page: Dashboard) -> None:
        self.page = page
        self.html = (STATIC / "index.html").read_text("utf-8")

    async def document(self, request: Request) -> Response:
        # No redirect to an address without the token, because the cookie is for our own site only:
        # the browser does not send it with a redirect if the link was on another site. Instead the
        # page itself removes the token from the address.
        launched = guard.is_launch(head_of(request), self.page.access)
        cookie = {"set-cookie": guard.launch_cookie(self.page.access)} if launched else None
        return HTMLResponse(self.html, headers=cookie)

    async def about(self, request: Request) -> Response:
        # Only our own page can read the token: the browser blocks other sites (CORS), and the guard
        # blocks a foreign Host.
        return PageJson(self.page.about() | {"token": self.page.access.change_token})

    async def alert(self, request: Request) -> Response:
        """One alert, by its id."""
        if self.page.alert_desk is None:
            return no_homes()
        try:
            alert_id = request.query_params.get("id", "")[:TEXT_MAX]
            return PageJson(await self.page.alert_desk.details(alert_id))
        except OptionError as error:
            return error_response(str(error), 404)

    # -- streams ----------------------------------------------------------------------------------

    def stream(self, messages: Any) -> Response:
        return CountedStream(self.page, messages)

    async def fleet(self, request: Request) -> Response:
        page = self.page
        return self.stream(streams.fleet_stream(page.monitors, page.stages, page.updates))

    async def homes(self, request: Request) -> Response:
        page = self.page
        if page.homes_monitor is None:
            return no_homes()
        return self.stream(streams.homes_stream(page.homes_monitor, page.updates))

    async def home(self, request: Request) -> Response:
        page = self.page
        if page.homes_monitor is None:
            return no_homes()
        name = request.path_params["home"]
        home_number = find_home(name, page.homes_monitor.homes.size)
        if home_number is None:
            return error_response(
                f"unknown home {name!r:.20}: use a name such as h000042 or 42", 404
            )
        return self.stream(streams.home_stream(page.homes_monitor, home_number, page.updates))

    async def events(self, request: Request) -> Response:
        page = self.page
        try:
            query = self.tail_query(request)
        except OptionError as error:
            return error_response(str(error), 400)
        return self.stream(streams.tail_stream(Tail(query), page.start_tail, page.updates))

    def tail_query(self, request: Request) -> TailQuery:
        fields = {name: value[:TEXT_MAX] for name, value in request.query_params.items()}
        options = self.page.options
        hub, start = fields.get("hub", ""), fields.get("from") or LAST
        if hub not in options.hubs:
            raise OptionError(f"unknown hub {hub!r}: use one of {', '.join(options.hubs)}")
        return TailQuery(
            hub=hub,
            group=fields.get("group") or options.events_group,
            partition=fields.get("partition", ""),
            position=None if start == LAST else parse_position(start, now_ms(self.page.clock)),
            text=fields.get("text", ""),
        )

    # -- changes ----------------------------------------------------------------------------------

    async def hosts(self, request: Request) -> Response:
        async def change(fields: Any) -> Any:
            fleet = self.find_fleet(fields.get("key"))
            action, name = request.path_params["act"], str(fields.get("name"))
            if action == "add":
                return {"name": await fleet.add()}
            if action == "stop":
                await fleet.stop(name)
            elif action == "kill":
                await fleet.kill(name)
            else:
                raise OptionError(f"unknown action {action!r:.40}: use add, stop or kill")
            return {"name": name}

        return await apply(request, change)

    def find_fleet(self, key: Any) -> Fleet:
        for monitor in self.page.monitors:
            if monitor.key == key and monitor.group.fleet is not None:
                return monitor.group.fleet
        raise OptionError(
            f"the page does not control the hosts of group {key!r:.40}: start it with --fleet"
        )

    async def faults(self, request: Request) -> Response:
        if not self.page.options.write:
            return PageJson({"planned": [], "choices": {}})
        try:
            async with asyncio.timeout(CHANGE_S):
                planned = await self.page.faults.planned()
        except (PumphouseError, OSError, TimeoutError) as error:
            return error_response(str(error) or "timed out", 502)
        choices = {name: text for name, (text, _) in hub_faults.CHOICES.items()}
        return PageJson({"planned": planned, "choices": choices})

    async def change_faults(self, request: Request) -> Response:
        async def change(fields: Any) -> Any:
            self.require_write()
            faults = self.page.faults
            if request.path_params["act"] == "plan":
                return {"id": await faults.plan(**hub_faults.fault_from(fields, self.known_hubs()))}
            fault_id = fields.get("id")
            if request.path_params["act"] != "cancel" or not is_fault_id(fault_id):
                raise OptionError("unknown action: use plan, or cancel with the id of a fault")
            await faults.cancel(fault_id)
            return {"id": fault_id}

        return await apply(request, change)

    def known_hubs(self) -> tuple[str, ...]:
        watched = (monitor.latest_json["hub"] for monitor in self.page.monitors)
        return tuple(dict.fromkeys([*self.page.options.hubs, *watched]))

    async def change_alert(self, request: Request) -> Response:
        async def change(fields: Any) -> Any:
            self.require_write()
            if self.page.alert_desk is None:
                raise OptionError(NO_HOMES)
            return await self.page.alert_desk.mark(request.path_params["act"], fields)

        return await apply(request, change)

    async def send(self, request: Request) -> Response:
        async def change(fields: Any) -> Any:
            self.require_write()
            sample = sample_from(fields, self.page.options.hubs)
            async with self.page.client(sample.hub) as client:
                return {"sent": await send_sample(client, sample)}

        return await apply(request, change)

    def require_write(self) -> None:
        if not self.page.options.write:
            raise OptionError("the page is read-only: start it with --write to allow changes")


def is_fault_id(value: object) -> bool:
    """Whether a value can be the id of a fault; None stands for all."""
    return value is None or (type(value) is int and 0 <= value < 2**63)


def no_homes() -> Response:
    return error_response(NO_HOMES, 404)


def too_many_streams() -> Response:
    return error_response("too many open pages: close one and reload", 503)

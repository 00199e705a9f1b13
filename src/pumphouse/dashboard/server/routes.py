"""What can be asked of the page, and what is answered.

GET /homes, /fleet, /events are one document; /static/... what it needs; /stream/... what is live.
POST /api/... changes something, and only `guard` decides whether it may.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
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
from pumphouse.dashboard.monitors import hub_faults as mishaps
from pumphouse.dashboard.monitors.events import LAST, Tail, TailQuery, sample_from, send_sample
from pumphouse.dashboard.server import guard, streams
from pumphouse.dashboard.views.homes import find_home
from pumphouse.errors import OptionError, PumphouseError
from pumphouse.events import parse_position

if TYPE_CHECKING:
    from pumphouse.dashboard.monitors.host_processes import Fleet
    from pumphouse.dashboard.server.app import Dashboard

STATIC = files("pumphouse.dashboard") / "static"
PAGES = ("homes", "fleet", "events")
ACT_S = 30.0  # what a change may take
TEXT_MAX = 200


def make_app(page: Dashboard) -> ASGIApp:
    views = Handlers(page)
    app = Starlette(
        routes=[
            *(Route(f"/{name}", views.document) for name in ("", *PAGES)),
            Route("/api/about", views.about),
            Route("/api/faults", views.faults),
            Route("/stream/fleet", views.fleet),
            Route("/stream/homes", views.homes),
            Route("/stream/home/{home}", views.home),
            Route("/stream/events", views.events),
            Route("/api/hosts/{act}", views.hosts, methods=["POST"]),
            Route("/api/faults/{act}", views.change_faults, methods=["POST"]),
            Route("/api/send", views.send, methods=["POST"]),
            Mount("/static", StaticFiles(directory=str(STATIC))),
        ]
    )
    return GuardMiddleware(app, page)


class GuardMiddleware:
    """Refuses what `guard` refuses, and puts its headers onto every answer."""

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

        request = Request(scope)
        refused = guard.refusal(
            request.method, request.headers, self.page.hosts_allowed, self.page.token
        )
        app = self.app if refused is None else sentence(refused[1], refused[0])
        await app(scope, receive, send_guarded)


def sentence(text: str, status: int) -> JSONResponse:
    return JSONResponse({"error": text}, status)


async def read_json(request: Request) -> Any:
    """The body of a request; it has a bound, and must be an object."""
    parts = bytearray()
    async with asyncio.timeout(ACT_S):
        async for part in request.stream():
            parts += part
            if len(parts) > guard.BODY_BYTES_MAX:
                raise OptionError(f"a request may have {guard.BODY_BYTES_MAX:,} bytes at most")
    try:
        found = json.loads(bytes(parts))
    except ValueError:
        raise OptionError("the request is not JSON") from None
    if not isinstance(found, dict):
        raise OptionError("the request is not a JSON object")
    return found


Act = Callable[[Any], Awaitable[Any]]


async def answered(request: Request, act: Act) -> Response:
    """Do something with what was posted; what cannot be done is said in a sentence."""
    try:
        async with asyncio.timeout(ACT_S):
            return JSONResponse(await act(await read_json(request)))
    except OptionError as wrong:
        return sentence(str(wrong), 400)
    except (PumphouseError, OSError) as failed:
        return sentence(str(failed), 502)
    except TimeoutError:
        return sentence(f"there was no answer within {ACT_S:.0f} s; look before you try again", 504)


class Handlers:
    """The answers."""

    def __init__(self, page: Dashboard) -> None:
        self.page = page
        self.html = (STATIC / "index.html").read_text("utf-8")

    async def document(self, request: Request) -> Response:
        return HTMLResponse(self.html)

    async def about(self, request: Request) -> Response:
        # Only our own page can read this: another site's is kept from it by the browser (CORS), and
        # one that pretends to be us has another Host.
        return JSONResponse(self.page.about() | {"token": self.page.token})

    # -- streams ----------------------------------------------------------------------------------

    def stream(self, messages: Any) -> Response:
        return StreamingResponse(
            self.page.counted(messages), media_type="text/event-stream; charset=utf-8"
        )

    async def fleet(self, request: Request) -> Response:
        page = self.page
        if page.full:
            return too_many()
        return self.stream(streams.fleet_stream(page.monitors, page.stages, page.updates))

    async def homes(self, request: Request) -> Response:
        page = self.page
        if page.homes_monitor is None:
            return sentence("this page was started without homes", 404)
        if page.full:
            return too_many()
        return self.stream(streams.homes_stream(page.homes_monitor, page.updates))

    async def home(self, request: Request) -> Response:
        page = self.page
        if page.homes_monitor is None:
            return sentence("this page was started without homes", 404)
        number = find_home(request.path_params["home"], page.homes_monitor.homes.size)
        if number is None:
            return sentence("there is no such home; write h000042 or 42", 404)
        if page.full:
            return too_many()
        return self.stream(streams.home_stream(page.homes_monitor, number, page.updates))

    async def events(self, request: Request) -> Response:
        page = self.page
        if page.full:
            return too_many()
        try:
            wanted = self.wanted(request)
        except OptionError as wrong:
            return sentence(str(wrong), 400)
        return self.stream(streams.tail_stream(Tail(wanted), page.start_tail, page.updates))

    def wanted(self, request: Request) -> TailQuery:
        asked = {name: value[:TEXT_MAX] for name, value in request.query_params.items()}
        options = self.page.options
        hub, start = asked.get("hub", ""), asked.get("from") or LAST
        if hub not in options.hubs:
            raise OptionError(f"there is no hub {hub!r} here; choose one of {options.hubs}")
        return TailQuery(
            hub=hub,
            group=asked.get("group") or options.events_group,
            partition=asked.get("partition", ""),
            position=None if start == LAST else parse_position(start, now_ms(self.page.clock)),
            text=asked.get("text", ""),
        )

    # -- changes ----------------------------------------------------------------------------------

    async def hosts(self, request: Request) -> Response:
        async def act(asked: Any) -> Any:
            fleet = self.find_fleet(asked.get("key"))
            word, name = request.path_params["act"], str(asked.get("name"))
            if word == "add":
                return {"name": await fleet.add()}
            if word == "stop":
                await fleet.stop(name)
            elif word == "kill":
                await fleet.kill(name)
            else:
                raise OptionError("a host can be added, stopped or killed")
            return {"name": name}

        return await answered(request, act)

    def find_fleet(self, key: Any) -> Fleet:
        for monitor in self.page.monitors:
            if monitor.key == key and monitor.group.fleet is not None:
                return monitor.group.fleet
        raise OptionError("this group has no hosts that the page may start or stop")

    async def faults(self, request: Request) -> Response:
        if not self.page.options.write:
            return JSONResponse({"planned": [], "choices": {}})
        try:
            async with asyncio.timeout(ACT_S):
                planned = await self.page.faults.planned()
        except (PumphouseError, OSError, TimeoutError) as failed:
            return sentence(str(failed) or "no answer", 502)
        choices = {name: text for name, (text, _) in mishaps.CHOICES.items()}
        return JSONResponse({"planned": planned, "choices": choices})

    async def change_faults(self, request: Request) -> Response:
        async def act(asked: Any) -> Any:
            self.need_write()
            faults = self.page.faults
            if request.path_params["act"] == "plan":
                return {"id": await faults.plan(**mishaps.fault_from(asked, self.known_hubs()))}
            number = asked.get("id")
            if request.path_params["act"] != "cancel" or not isinstance(number, int | None):
                raise OptionError("a fault can be planned, or cancelled by its number")
            await faults.cancel(number)
            return {"id": number}

        return await answered(request, act)

    def known_hubs(self) -> tuple[str, ...]:
        watched = (monitor.shown["hub"] for monitor in self.page.monitors)
        return tuple(dict.fromkeys([*self.page.options.hubs, *watched]))

    async def send(self, request: Request) -> Response:
        async def act(asked: Any) -> Any:
            self.need_write()
            sample = sample_from(asked, self.page.options.hubs)
            async with self.page.client(sample.hub) as client:
                return {"sent": await send_sample(client, sample)}

        return await answered(request, act)

    def need_write(self) -> None:
        if not self.page.options.write:
            raise OptionError("this page is read-only: start it with --write to allow that")


def too_many() -> Response:
    return sentence("too many pages are open; close one and reload", 503)

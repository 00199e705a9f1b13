"""One AMQP connection without a socket, for either side.

It takes received bytes and returns events, and it collects the bytes to send. The caller must

* handle every event of `receive(data)`, then send all of `data_to_send()`;
* after a `RemoteProtocolError` still send `data_to_send()` (it ends with a close that names the
  error), then drop the connection;
* send `data_to_send()` after every call that writes: `start`, `close`, `begin`, `link.send`, ...

    socket bytes -> ByteReader -> performatives -> Session, Link -> events
    socket bytes <- data_to_send <- encode_frame <-------------------- your calls
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pumphouse.amqp import sasl, states
from pumphouse.amqp.columnar.repeated_transfers import TransferTemplates, take_run
from pumphouse.amqp.composites import (
    Composite,
    decode_performative,
)
from pumphouse.amqp.events import Closed, Event, Opened
from pumphouse.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    MIN_MAX_FRAME,
    SASL_FRAME,
    SASL_HEADER,
    ByteReader,
    Frame,
    check_fits,
    encode_frame,
)
from pumphouse.amqp.performatives import (
    Begin,
    Close,
    Error,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from pumphouse.amqp.session import Session
from pumphouse.errors import AuthError, RemoteProtocolError

CLIENT, SERVER = "client", "server"

ERROR_ROOM = 160  # upper bound of what a frame adds to the description of an error


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection. The first two are announced to the peer, the others enforced."""

    max_frame_size: int = 65536  # as the service; at 1 MiB the official client sends slower
    channel_max: int = 4999
    links_max: int = 4096  # on all sessions together
    held_bytes_max: int = 16 * 1024 * 1024  # of incomplete deliveries


@dataclass(frozen=True, slots=True)
class Login:
    """The SASL mechanism and response of a client."""

    mechanism: str = sasl.ANONYMOUS
    response: bytes = b""


class Connection:
    """The connection, its sessions, and the bytes to send."""

    def __init__(
        self,
        role: str,
        opening: Open,
        *,
        limits: Limits | None = None,
        login: Login | None = None,
        authenticate: Callable[[SaslInit], None] | None = None,
    ) -> None:
        self.role = role
        self.opening = opening
        self.limits = limits or Limits()
        self.login = login or Login()
        self.authenticate = authenticate  # raises AuthError to refuse a login
        self.state = "START"
        self.layer = "header"  # then "sasl" or "amqp"
        self.logged_in = False  # SASL succeeded
        self.silent = False  # our close is sent
        self.remote: Open | None = None
        self.remote_frame_max = MIN_MAX_FRAME
        self.sessions: dict[int, Session] = {}  # by the peer's channel
        self.requested: dict[int, Session] = {}  # by our channel: begins without a response
        self.ended: set[int] = set()  # channels on which late frames are ignored
        self.held_bytes = 0
        self._reader = ByteReader(self.limits.max_frame_size)
        self._more: tuple[bytes, Transfer] | None = None  # the last transfer with more to follow
        self._templates: TransferTemplates | None = None  # kept only if a link takes runs
        self._events: deque[Event] = deque()
        self._out: list[bytes | bytearray] = []

    def __repr__(self) -> str:
        return f"<Connection {self.role} {self.state} {len(self.sessions)} sessions>"

    # -- sending ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Send the first header of a client."""
        self.write(SASL_HEADER)

    def begin(self) -> Session:
        """Request a session. It can be used at once."""
        taken = self.requested.keys() | {session.channel for session in self.sessions.values()}
        channel = next(number for number in range(len(taken) + 1) if number not in taken)
        session = Session(self, channel)
        self.requested[channel] = session
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Send a close, once. Nothing is sent after it."""
        if self.state in ("OPENED", "OPEN_SENT", "OPEN_PIPE", "CLOSE_RCVD"):
            for session in self.sessions.values():
                session.flush()
            self.step("send close")
            self.send(Close(error=self.cut(error)))
            self.silent = True

    def heartbeat(self) -> None:
        """Send an empty frame, so that the idle timeout of the peer does not expire."""
        if self.state == "OPENED":
            self.write(EMPTY_FRAME)

    def data_to_send(self) -> list[bytes | bytearray]:
        """Return all bytes to send, in order, and clear them."""
        for session in self.sessions.values():
            session.flush()
        out, self._out = self._out, []
        return out

    # -- for sessions and links -------------------------------------------------------------------

    def step(self, action: str) -> None:
        self.state = states.step(states.CONNECTION, "connection", self.state, action)

    def emit(self, event: Event) -> None:
        self._events.append(event)

    def write(self, data: bytes | bytearray) -> None:
        if not self.silent:
            self._out.append(data)

    def send(self, performative: Composite, channel: int = 0) -> None:
        frame = encode_frame(performative, channel)
        self.write(check_fits(frame, self.remote_frame_max))

    def cut(self, error: Error | None) -> Error | None:
        """The error with its description shortened to the frame size of the peer."""
        text = ((error and error.description) or "").encode()
        room = self.remote_frame_max - ERROR_ROOM
        if error is None or len(text) <= room:
            return error
        return replace(error, description=text[:room].decode("utf-8", "ignore"))

    def hold(self, amount: int) -> None:
        """Count the bytes of incomplete deliveries, over all links."""
        self.held_bytes += amount
        if self.held_bytes > self.limits.held_bytes_max:
            raise RemoteProtocolError(
                f"unfinished deliveries hold {self.held_bytes} bytes, "
                f"the limit is {self.limits.held_bytes_max} on one connection",
                "amqp:resource-limit-exceeded",
            )

    def check_room(self) -> None:
        """Raise if the peer may not attach another link."""
        if sum(len(s.links) for s in self.sessions.values()) >= self.limits.links_max:
            raise RemoteProtocolError(
                f"more than {self.limits.links_max} links on one connection",
                "amqp:resource-limit-exceeded",
            )

    def learn_templates(self) -> None:
        """Keep transfer templates, because a link takes runs."""
        self._templates = self._templates or TransferTemplates()

    def forget(self, session: Session) -> None:
        if session.remote_channel is not None:
            self.sessions.pop(session.remote_channel, None)
            self.ended.add(session.remote_channel)

    # -- receiving --------------------------------------------------------------------------------

    def receive(self, data: bytes) -> Iterator[Event]:
        """Take received bytes and yield events. The caller must consume all events.

        A frame is decoded only after the events of the frames before it are handled. So an attach
        is answered before the credit after it is counted, and events before a protocol error are
        yielded before the error is raised.
        """
        if self.state != "END":
            self._reader.feed(data)
        try:
            while self._events or self.take():
                if self._events:
                    yield self._events.popleft()
        except RemoteProtocolError as wrong:
            self.close_for(wrong)
            raise
        except AuthError:
            self.state = "END"
            raise

    def close_for(self, wrong: RemoteProtocolError) -> None:
        """Report a protocol error to the peer, in the current protocol layer."""
        if self.role == SERVER and self.layer == "header":
            self.write(AMQP_HEADER if self.logged_in else SASL_HEADER)
        if self.role == SERVER and self.state in ("HDR_EXCH", "OPEN_RCVD"):
            self.open()
        self.close(Error(condition=wrong.condition, description=str(wrong)[:1000]))
        self.state = "END"

    def take(self) -> bool:
        """Consume the next header or frame; False if more bytes must arrive first."""
        if self.state == "END":
            return False
        if self.layer == "header":
            return self.take_header()
        if self._templates is not None and self.take_run(self._templates):
            return True
        frame = self._reader.frame()
        if frame is None:
            return False
        if self.layer == "sasl":
            self.on_sasl(frame)
        else:
            self.on_frame(frame)
        return True

    def take_run(self, templates: TransferTemplates) -> bool:
        """Consume a run of transfers that match a template; False if the next does not."""
        data, pos = self._reader.rest
        template = templates.find(data, pos)
        session = self.sessions.get(template.channel) if template is not None else None
        if template is None or session is None or self.silent:
            return False
        link = session.run_link(template.handle)
        if link is None:
            return False
        payloads, pos = take_run(data, pos, template, self.limits.max_frame_size)
        if not payloads:
            return False
        self._reader.consume(pos)
        session.received_frames(len(payloads))
        link.on_run(payloads)
        return True

    def take_header(self) -> bool:
        header = self._reader.header()
        if header is None:
            return False
        if header == SASL_HEADER and not self.logged_in:
            self.on_sasl_header()
        # A client may omit the login; a server that omits it did not understand our header.
        elif header == AMQP_HEADER and (self.logged_in or self.role == SERVER):
            self.on_amqp_header()
        else:
            raise RemoteProtocolError(f"protocol header {header!r} is not supported")
        return True

    def on_sasl_header(self) -> None:
        self.layer = "sasl"
        if self.role == SERVER:
            self.write(SASL_HEADER)
            self.send_sasl(SaslMechanisms(mechanisms=sasl.MECHANISMS))

    def on_amqp_header(self) -> None:
        self.layer = "amqp"
        self.step("receive header")
        if self.role == SERVER:
            self.step("send header")
            self.write(AMQP_HEADER)

    def on_sasl(self, frame: Frame) -> None:
        if frame.kind != SASL_FRAME:
            raise RemoteProtocolError(f"frame type {frame.kind} during the SASL login, expected 1")
        performative, _ = decode_performative(frame.data, frame.start, frame.end)
        match performative:
            case SaslInit() if self.role == SERVER:
                self.on_sasl_init(performative)
            case SaslMechanisms() if self.role == CLIENT:
                sasl.choose(performative, self.login.mechanism)
                self.send_sasl(
                    SaslInit(
                        mechanism=self.login.mechanism,
                        initial_response=self.login.response,
                        hostname=self.opening.hostname,
                    )
                )
            case SaslOutcome() if self.role == CLIENT:
                sasl.check_outcome(performative)
                self.layer, self.logged_in = "header", True
                self.step("send header")
                self.write(AMQP_HEADER)
                self.open()
            case _:
                raise RemoteProtocolError(
                    f"{performative.NAME} is not expected during the SASL login"
                )

    def on_sasl_init(self, init: SaslInit) -> None:
        try:
            sasl.mechanism_of(init)
            if self.authenticate is not None:
                self.authenticate(init)
        except AuthError as refused:
            self.send_sasl(SaslOutcome(code=sasl.AUTH_FAILED))
            self.state = "END"
            raise RemoteProtocolError(str(refused), "amqp:unauthorized-access") from None
        self.send_sasl(SaslOutcome(code=sasl.OK))
        self.layer, self.logged_in = "header", True

    def send_sasl(self, performative: Composite) -> None:
        self.write(encode_frame(performative, kind=SASL_FRAME))

    def open(self) -> None:
        self.step("send open")
        self.send(self.opening)

    def on_frame(self, frame: Frame) -> None:
        if frame.kind != AMQP_FRAME:
            raise RemoteProtocolError(f"frame type {frame.kind}, expected 0 (AMQP)")
        if frame.start == frame.end:
            return  # a heartbeat
        performative, after = self.decode(frame)
        if self.silent and not isinstance(performative, Open | Close):
            return  # sent before the peer received our close
        session = self.sessions.get(frame.channel)
        if session is not None and not isinstance(performative, Open | Close | Begin):
            payload = b""
            if isinstance(performative, Transfer):
                payload = frame.data[after : frame.end]
                if self._templates is not None:
                    self._templates.learn(frame, performative, after)
            session.on_frame(performative, payload)
        else:
            self.on_connection_frame(frame.channel, performative)

    def decode(self, frame: Frame) -> tuple[Composite, int]:
        """The performative of a frame, and the start of its payload."""
        # All frames of a large delivery have the same performative: it is decoded once.
        if self._more and frame.data.startswith(self._more[0], frame.start, frame.end):
            return self._more[1], frame.start + len(self._more[0])
        performative, after = decode_performative(frame.data, frame.start, frame.end)
        if isinstance(performative, Transfer) and performative.more:
            self._more = frame.data[frame.start : after], performative
        return performative, after

    def on_connection_frame(self, channel: int, performative: Composite) -> None:
        match performative:
            case Open():
                self.on_open(performative)
            case Close():
                self.on_close(performative)
            case Begin() if self.state == "OPENED":
                self.on_begin(channel, performative)
            case _ if channel in self.ended:
                pass  # the official client detaches links after ending their session
            case _:
                raise RemoteProtocolError(
                    f"{performative.NAME} on channel {channel}, where no session has begun",
                    "amqp:illegal-state",
                )

    def on_open(self, opening: Open) -> None:
        self.step("receive open")
        if opening.max_frame_size < MIN_MAX_FRAME:
            raise RemoteProtocolError(
                f"open.max-frame-size is {opening.max_frame_size}, the least is {MIN_MAX_FRAME}",
                "amqp:invalid-field",
            )
        self.remote = opening
        self.remote_frame_max = opening.max_frame_size
        if self.state == "OPEN_RCVD":
            self.open()
        self.emit(Opened(opening))

    def on_close(self, close: Close) -> None:
        self.step("receive close")
        self.close()
        self.emit(Closed(close.error))

    def on_begin(self, channel: int, begin: Begin) -> None:
        if channel in self.sessions or channel > self.limits.channel_max:
            raise RemoteProtocolError(f"begin on channel {channel}, which is in use or too high")
        self.ended.discard(channel)
        if begin.remote_channel is None:
            session = Session(self, channel)
        else:
            answered = self.requested.pop(begin.remote_channel, None)
            if answered is None:
                raise RemoteProtocolError(
                    f"begin responds to channel {begin.remote_channel}, which was not requested"
                )
            session = answered
        session.remote_channel = channel
        self.sessions[channel] = session
        session.on_begin(begin)

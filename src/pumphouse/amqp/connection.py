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

from pumphouse.amqp import sasl, states
from pumphouse.amqp.columnar.repeated_transfers import TransferTemplates
from pumphouse.amqp.columnar.transfer_shapes import TransferShapes
from pumphouse.amqp.composites import Composite, decode_performative
from pumphouse.amqp.credit import RESOURCE_LIMIT, Budget, Limits
from pumphouse.amqp.events import FRAMES_HANDLED, Closed, Event, Opened
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
    shorten,
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
from pumphouse.amqp.sasl import Login as Login
from pumphouse.amqp.session import SESSION_BYTES, Session, check_name
from pumphouse.errors import AuthError, RemoteProtocolError

CLIENT, SERVER = "client", "server"

# The performative of a transfer is kept for the next frame of its delivery only up to this size.
# Official clients need 40 bytes; a larger one could keep many decoded values alive.
MORE_BYTES_MAX = 256
# After this many frames without an event the caller gets one, so that other connections can run.
QUIET_FRAMES = 128


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
        budget: Budget | None = None,
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
        self.budget = budget or Budget(self.limits.held_bytes_max)
        self.held_bytes = 0  # of incomplete deliveries
        self.frame_bytes = 0  # of the frame that is being handled
        self.unsent_bytes = 0  # of `data_to_send`
        self.link_count = 0  # on all sessions
        self.unflushed: dict[Session, None] = {}  # sessions with a pending disposition
        self._reader = ByteReader(self.limits.max_frame_size)
        # The last transfer with `more` set: its encoded performative, and the decoded one.
        self._more: tuple[bytes, Transfer] | None = None
        self._templates: TransferTemplates | None = None  # kept only if a link takes runs
        self._shapes = TransferShapes()
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
            self.flush()
            self.step("send close")
            self.send(Close(error=self.shorten(error)))
            self.silent = True

    def heartbeat(self) -> None:
        """Send an empty frame, so that the idle timeout of the peer does not expire."""
        if self.state == "OPENED":
            self.write(EMPTY_FRAME)

    def data_to_send(self) -> list[bytes | bytearray]:
        """Return all bytes to send, in order, and clear them."""
        self.flush()
        out, self._out = self._out, []
        self.unsent_bytes = 0
        return out

    def discard(self) -> None:
        """Drop all sessions and links after the end, so that no reference cycle keeps them."""
        self.state = "END"
        for session in (*self.sessions.values(), *self.requested.values()):
            session.discard()
        self.sessions.clear()
        self.requested.clear()
        self.unflushed.clear()
        self._events.clear()
        self._out.clear()
        self._reader = ByteReader(self.limits.max_frame_size)
        self._more = self._templates = self.authenticate = None
        self._shapes = TransferShapes()

    def flush(self) -> None:
        """Send the pending dispositions of all sessions."""
        for session in [*self.unflushed]:
            session.flush()

    # -- for sessions and links -------------------------------------------------------------------

    def step(self, action: str) -> None:
        self.state = states.step(states.CONNECTION, "connection", None, self.state, action)

    def emit(self, event: Event) -> None:
        self._events.append(event)

    def write(self, data: bytes | bytearray) -> None:
        if not self.silent:
            self._out.append(data)
            self.unsent_bytes += len(data)

    def send(self, performative: Composite, channel: int = 0) -> None:
        frame = encode_frame(performative, channel)
        self.write(check_fits(frame, self.remote_frame_max))

    def shorten(self, error: Error | None) -> Error | None:
        return shorten(error, self.remote_frame_max)

    def hold(self, amount: int) -> None:
        """Count bytes that are held for the peer; raises beyond the limit of the connection."""
        self.budget.hold(amount)
        if amount > 0:
            self.budget.check()

    def hold_piece(self, amount: int) -> None:
        """Count bytes of incomplete deliveries, over all links; raises beyond the limit."""
        self.held_bytes += amount
        self.hold(amount)

    def check_room(self) -> None:
        """Raise if the peer may not attach another link."""
        if self.link_count >= self.limits.links_max:
            raise RemoteProtocolError(
                f"more than {self.limits.links_max} links on one connection", RESOURCE_LIMIT
            )

    def learn_templates(self, numbered: bool) -> None:
        """Keep transfer templates from now on, because a link takes runs."""
        self._templates = self._templates or TransferTemplates(numbered)

    def forget(self, session: Session) -> None:
        if session.remote_channel is not None:
            self.sessions.pop(session.remote_channel, None)
            self.hold(-SESSION_BYTES)
            self.ended.add(session.remote_channel)

    @property
    def pending_bytes(self) -> int:
        """The number of received bytes of the incomplete frame."""
        return self._reader.pending

    # -- receiving --------------------------------------------------------------------------------

    def receive(self, data: bytes) -> Iterator[Event]:
        """Take received bytes and yield events. The caller must consume all events.

        A frame is decoded only after the caller has handled the events of all earlier frames. So
        the caller responds to an attach before a flow that follows it is counted, and it gets all
        events that precede a protocol error before the error is raised.
        """
        if self.state != "END":
            self._reader.feed(data)
        try:
            quiet_frames = 0
            while self._events or self.take():
                if self._events:
                    yield self._events.popleft()
                    continue
                quiet_frames += 1
                if quiet_frames % QUIET_FRAMES == 0:
                    yield FRAMES_HANDLED
            self._reader.release()
        except RemoteProtocolError as error:
            self.close_after(error)
            raise
        except AuthError:
            self.state = "END"
            raise

    def close_after(self, error: RemoteProtocolError) -> None:
        """Report a protocol error to the peer, in the current protocol layer."""
        if self.role == SERVER and self.layer == "header":
            self.write(AMQP_HEADER if self.logged_in else SASL_HEADER)
        if self.role == SERVER and self.state in ("HDR_EXCH", "OPEN_RCVD"):
            self.open()
        self.close(Error(condition=error.condition, description=str(error)[:1000]))
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
        """Consume a run of transfers that match a template; False if there is none."""
        data, pos = self._reader.rest
        template = templates.find(data, pos)
        session = self.sessions.get(template.channel) if template is not None else None
        if template is None or session is None or self.silent:
            return False
        end = session.take_run(template, data, pos)
        if end > pos:
            self._reader.consume(end)
        return end > pos

    def take_header(self) -> bool:
        header = self._reader.header()
        if header is None:
            return False
        if header == SASL_HEADER and not self.logged_in:
            self.on_sasl_header()
        # A client may omit the SASL login. A server may not: our first header requested SASL.
        elif header == AMQP_HEADER and (self.logged_in or self.role == SERVER):
            self.on_amqp_header()
        else:
            expected = AMQP_HEADER if self.logged_in else SASL_HEADER
            raise RemoteProtocolError(
                f"protocol header {header!r} is not supported, expected {expected!r}"
            )
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
                sasl.check_offered(performative, self.login.mechanism)
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
        performative, payload_start = self.decode(frame)
        self.frame_bytes = frame.end - frame.start
        if self.silent and not isinstance(performative, Open | Close):
            return  # sent before the peer received our close
        session = self.sessions.get(frame.channel)
        if session is not None and not isinstance(performative, Open | Close | Begin):
            payload = b""
            if isinstance(performative, Transfer):
                payload = frame.data[payload_start : frame.end]
                if self._templates is not None:
                    self._templates.learn(frame, performative, payload_start)
            session.on_frame(performative, payload)
        else:
            self.on_connection_frame(frame.channel, performative)

    def decode(self, frame: Frame) -> tuple[Composite, int]:
        """The performative of a frame, and the start of its payload."""
        # All frames of a large delivery have the same performative: it is decoded once.
        if self._more and frame.data.startswith(self._more[0], frame.start, frame.end):
            return self._more[1], frame.start + len(self._more[0])
        performative, payload_start = self._shapes.decode(frame.data, frame.start, frame.end)
        size = payload_start - frame.start
        if isinstance(performative, Transfer) and performative.more and size <= MORE_BYTES_MAX:
            self._more = frame.data[frame.start : payload_start], performative
        return performative, payload_start

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
                f"open.max-frame-size is {opening.max_frame_size}, the minimum is {MIN_MAX_FRAME}",
                "amqp:invalid-field",
            )
        check_name("open.container-id", opening.container_id)
        check_name("open.hostname", opening.hostname or "")
        self.hold(self.frame_bytes)
        # The rest is not used, and its maps and lists may be large.
        self.remote = Open(
            container_id=opening.container_id,
            max_frame_size=opening.max_frame_size,
            channel_max=opening.channel_max,
            idle_time_out=opening.idle_time_out,
        )
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
            raise RemoteProtocolError(
                f"begin on channel {channel}, which is in use or above {self.limits.channel_max}"
            )
        self.ended.discard(channel)
        if begin.remote_channel is None:
            session = Session(self, channel)
        else:
            requested = self.requested.pop(begin.remote_channel, None)
            if requested is None:
                raise RemoteProtocolError(
                    f"begin.remote-channel is {begin.remote_channel}, where no begin was sent"
                )
            session = requested
        session.remote_channel = channel
        self.sessions[channel] = session
        session.on_begin(begin)

"""One AMQP connection without a socket, for either side.

Feed it bytes and it answers with what happened; ask it for the bytes to send. The obligations:

* handle every event that `receive(data)` gives, then send all of `data_to_send()`;
* after a `RemoteProtocolError`, still send `data_to_send()` (it ends in a close that tells the peer
  why), then drop the connection;
* `data_to_send()` after any call that speaks: `start`, `close`, `begin`, `link.send`, ...

    socket bytes -> ByteReader -> performatives -> Session, Link -> events
    socket bytes <- data_to_send <- encode_frame <-------------------- your calls
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pumphouse.amqp import sasl, states
from pumphouse.amqp.columnar.runs import Likenesses, take_run
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

ERROR_ROOM = 160  # what a frame needs around the description of an error, generously


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may ask of us. The first two are announced, the others enforced."""

    max_frame_size: int = 65536  # as the service; at 1 MiB the official client sends slower
    channel_max: int = 4999
    links_max: int = 4096  # on all sessions together
    held_bytes_max: int = 16 * 1024 * 1024  # deliveries of which some frames have arrived


@dataclass(frozen=True, slots=True)
class Login:
    """How a client introduces itself to SASL."""

    mechanism: str = sasl.ANONYMOUS
    response: bytes = b""


class Connection:
    """The connection, its sessions, and the bytes waiting to be sent."""

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
        self.authenticate = authenticate  # raises AuthError to say no
        self.state = "START"
        self.layer = "header"  # then "sasl" or "amqp"
        self.logged_in = False  # SASL has come to a good end
        self.silent = False  # we have said our last word
        self.remote: Open | None = None
        self.remote_frame_max = MIN_MAX_FRAME
        self.sessions: dict[int, Session] = {}  # by the peer's channel
        self.asked: dict[int, Session] = {}  # by our channel: begins that the peer has not answered
        self.ended: set[int] = set()  # channels on which late frames are ignored
        self.held_bytes = 0
        self._reader = ByteReader(self.limits.max_frame_size)
        self._more: tuple[bytes, Transfer] | None = None  # the last transfer with more to follow
        self._likenesses: Likenesses | None = None  # kept only if a link wants runs
        self._events: deque[Event] = deque()
        self._out: list[bytes | bytearray] = []

    def __repr__(self) -> str:
        return f"<Connection {self.role} {self.state} {len(self.sessions)} sessions>"

    # -- speaking ---------------------------------------------------------------------------------

    def start(self) -> None:
        """A client's first words."""
        self.write(SASL_HEADER)

    def begin(self) -> Session:
        """Ask for a session; it may be used at once."""
        taken = self.asked.keys() | {session.channel for session in self.sessions.values()}
        channel = next(number for number in range(len(taken) + 1) if number not in taken)
        session = Session(self, channel)
        self.asked[channel] = session
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Say good-bye, once. Whatever is said after it goes unsent."""
        if self.state in ("OPENED", "OPEN_SENT", "OPEN_PIPE", "CLOSE_RCVD"):
            for session in self.sessions.values():
                session.flush()
            self.step("send close")
            self.send(Close(error=self.cut(error)))
            self.silent = True

    def heartbeat(self) -> None:
        """An empty frame, so that the peer does not take us for dead."""
        if self.state == "OPENED":
            self.write(EMPTY_FRAME)

    def data_to_send(self) -> list[bytes | bytearray]:
        """All bytes to send, in order; the connection forgets them."""
        for session in self.sessions.values():
            session.flush()
        out, self._out = self._out, []
        return out

    # -- what sessions and links use --------------------------------------------------------------

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
        """The error, its description cut to what the peer's frames hold: it may quote the peer."""
        text = ((error and error.description) or "").encode()
        room = self.remote_frame_max - ERROR_ROOM
        if error is None or len(text) <= room:
            return error
        return replace(error, description=text[:room].decode("utf-8", "ignore"))

    def hold(self, amount: int) -> None:
        """Count the bytes of half-arrived deliveries, over all links."""
        self.held_bytes += amount
        if self.held_bytes > self.limits.held_bytes_max:
            raise RemoteProtocolError(
                f"unfinished deliveries hold {self.held_bytes} bytes, "
                f"the limit is {self.limits.held_bytes_max} on one connection",
                "amqp:resource-limit-exceeded",
            )

    def check_room(self) -> None:
        """May the peer attach one more link?"""
        if sum(len(s.links) for s in self.sessions.values()) >= self.limits.links_max:
            raise RemoteProtocolError(
                f"more than {self.limits.links_max} links on one connection",
                "amqp:resource-limit-exceeded",
            )

    def learn_likenesses(self) -> None:
        """A link wants its deliveries by the run."""
        self._likenesses = self._likenesses or Likenesses()

    def forget(self, session: Session) -> None:
        if session.remote_channel is not None:
            self.sessions.pop(session.remote_channel, None)
            self.ended.add(session.remote_channel)

    # -- listening --------------------------------------------------------------------------------

    def receive(self, data: bytes) -> Iterator[Event]:
        """Take in bytes; what happened comes out as it is asked for, and must all be asked for.

        A frame is looked at only once the events of those before it have been handled. So an attach
        is answered before the credit that came right behind it is counted, and what happened before
        the peer broke the rules is known before the error.
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
        """Tell the peer what it did wrong, in the language we had come to."""
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
        if self._likenesses is not None and self.take_run(self._likenesses):
            return True
        frame = self._reader.frame()
        if frame is None:
            return False
        if self.layer == "sasl":
            self.on_sasl(frame)
        else:
            self.on_frame(frame)
        return True

    def take_run(self, likenesses: Likenesses) -> bool:
        """Consume transfers that look like one seen before; False if the next is none of them."""
        data, pos = self._reader.rest
        like = likenesses.find(data, pos)
        session = self.sessions.get(like.channel) if like is not None else None
        if like is None or session is None or self.silent:
            return False
        link = session.run_link(like.handle)
        if link is None:
            return False
        payloads, pos = take_run(data, pos, like, self.limits.max_frame_size)
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
        # A client may leave out the login; a server that does has not understood our header.
        elif header == AMQP_HEADER and (self.logged_in or self.role == SERVER):
            self.on_amqp_header()
        else:
            raise RemoteProtocolError(f"protocol header {header!r} is not spoken here")
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
        said, _ = decode_performative(frame.data, frame.start, frame.end)
        match said:
            case SaslInit() if self.role == SERVER:
                self.on_sasl_init(said)
            case SaslMechanisms() if self.role == CLIENT:
                sasl.choose(said, self.login.mechanism)
                self.send_sasl(
                    SaslInit(
                        mechanism=self.login.mechanism,
                        initial_response=self.login.response,
                        hostname=self.opening.hostname,
                    )
                )
            case SaslOutcome() if self.role == CLIENT:
                sasl.check_outcome(said)
                self.layer, self.logged_in = "header", True
                self.step("send header")
                self.write(AMQP_HEADER)
                self.open()
            case _:
                raise RemoteProtocolError(f"{said.NAME} is not expected during the SASL login")

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

    def send_sasl(self, said: Composite) -> None:
        self.write(encode_frame(said, kind=SASL_FRAME))

    def open(self) -> None:
        self.step("send open")
        self.send(self.opening)

    def on_frame(self, frame: Frame) -> None:
        if frame.kind != AMQP_FRAME:
            raise RemoteProtocolError(f"frame type {frame.kind}, expected 0 (AMQP)")
        if frame.start == frame.end:
            return  # a heartbeat
        said, after = self.decode(frame)
        if self.silent and not isinstance(said, Open | Close):
            return  # it was under way when we said good-bye
        session = self.sessions.get(frame.channel)
        if session is not None and not isinstance(said, Open | Close | Begin):
            payload = b""
            if isinstance(said, Transfer):
                payload = frame.data[after : frame.end]
                if self._likenesses is not None:
                    self._likenesses.learn(frame, said, after)
            session.on_frame(said, payload)
        else:
            self.on_connection_frame(frame.channel, said)

    def decode(self, frame: Frame) -> tuple[Composite, int]:
        """What a frame says, and where its payload starts."""
        # The frames of a large delivery all say the same, to the byte: that is decoded once.
        if self._more and frame.data.startswith(self._more[0], frame.start, frame.end):
            return self._more[1], frame.start + len(self._more[0])
        said, after = decode_performative(frame.data, frame.start, frame.end)
        if isinstance(said, Transfer) and said.more:
            self._more = frame.data[frame.start : after], said
        return said, after

    def on_connection_frame(self, channel: int, said: Composite) -> None:
        match said:
            case Open():
                self.on_open(said)
            case Close():
                self.on_close(said)
            case Begin() if self.state == "OPENED":
                self.on_begin(channel, said)
            case _ if channel in self.ended:
                pass  # the official client detaches links after it has ended their session
            case _:
                raise RemoteProtocolError(
                    f"{said.NAME} on channel {channel}, where no session has begun",
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
            answered = self.asked.pop(begin.remote_channel, None)
            if answered is None:
                raise RemoteProtocolError(
                    f"begin answers channel {begin.remote_channel}: not asked"
                )
            session = answered
        session.remote_channel = channel
        self.sessions[channel] = session
        session.on_begin(begin)

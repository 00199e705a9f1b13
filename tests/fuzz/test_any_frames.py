"""Frames that are well formed and make no sense, and bytes that are neither; by hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pumphouse.amqp.composites import INT_MAX, MAP, SYMBOLS, Composite, encode_performative, specs
from pumphouse.amqp.connection import CLIENT, SERVER, Connection
from pumphouse.amqp.events import AttachAsked
from pumphouse.amqp.frames import AMQP_HEADER, HEAD, SASL_HEADER, encode_frame
from pumphouse.amqp.messages import decode_message
from pumphouse.amqp.performatives import (
    SELECTOR_FILTER,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from pumphouse.amqp.types import Described, Symbol
from pumphouse.errors import AmqpError, AuthError, MalformedBytes, RemoteProtocolError
from pumphouse.hub.access.auth import AccessRule, verify_sas
from pumphouse.hub.annotations import parse_payload
from pumphouse.hub.filters import parse_selector
from tests.fuzz.conversation import HUB, Wiretap
from tests.fuzz.corpus import BATCHES, MESSAGES, WORDS

PLACES = [HUB, f"{HUB}/ConsumerGroups/$Default/Partitions/1", "$cbs", "$management", "nowhere", ""]
NUMBERS = [0, 1, 2, 3, 5, 9, 100, 2**16, 2**31 - 1, 2**31, 2**32 - 1]

many = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.uuids()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Described, scalars, inner)
    ),
    max_leaves=5,
)
symbols = st.sampled_from(
    [
        "com.microsoft:epoch",
        "com.microsoft:enable-receiver-runtime-metric",
        SELECTOR_FILTER,
        "x",
        "",
    ]
)
maps = st.dictionaries(symbols.map(Symbol) | st.text(max_size=3), values, max_size=3)
selectors = st.sampled_from(WORDS).map(
    lambda text: {SELECTOR_FILTER: Described(SELECTOR_FILTER, text)}
)


def of_kind(kind: Any) -> st.SearchStrategy[Any]:
    """Something that a field of this kind may hold."""
    if kind in INT_MAX:
        return st.sampled_from([n for n in NUMBERS if n <= INT_MAX[kind]])
    if kind is SYMBOLS:
        return st.lists(symbols, max_size=2).map(tuple)
    simple = {
        bool: st.booleans(),
        str: st.sampled_from(PLACES) | st.text(max_size=5),
        Symbol: symbols,
        bytes: st.binary(max_size=4),
        MAP: maps | selectors,
        Error: st.builds(Error, condition=symbols),
    }
    return simple.get(kind, st.sampled_from(PLACES) | values | st.deferred(lambda: nested))


def some(cls: type[Composite]) -> st.SearchStrategy[Any]:
    """Any instance of a composite, nonsense included."""
    return st.builds(
        cls,
        **{
            spec.name: of_kind(spec.kind)
            if spec.required
            else (st.just(()) if spec.kind is SYMBOLS else st.none()) | of_kind(spec.kind)
            for spec in specs(cls)
            if not (spec.kind is bool and not spec.required)
        },
    )


nested = st.one_of([some(cls) for cls in (Source, Target, Accepted, Rejected, Modified, Received)])
performatives = st.one_of(
    [
        some(cls)
        for cls in (Attach, Attach, Flow, Flow, Transfer, Transfer, Detach, Disposition, Begin, End)
    ]
    + [some(cls) for cls in (Open, Close, SaslInit, Accepted)]
)
payloads = st.sampled_from([*MESSAGES, *BATCHES]) | st.binary(max_size=50)
frames = st.builds(
    lambda said, channel, payload: encode_frame(
        said, channel, payload if isinstance(said, Transfer) else b""
    ),
    performatives,
    st.sampled_from([0, 0, 0, 0, 1, 4999, 5000, 65535]),
    payloads,
)


@many
@given(st.lists(frames, min_size=1, max_size=15))
def test_any_frames_to_a_hub(said: list[bytes]) -> None:
    Wiretap().play(Wiretap.ATTACHED, b"".join(said))


@many
@given(st.binary(max_size=300))
def test_any_bytes_to_a_hub(data: bytes) -> None:
    Wiretap().play(b"", data)
    Wiretap().play(Wiretap.ATTACHED, data)


@many
@given(st.lists(st.binary(min_size=1, max_size=60), max_size=5))
def test_any_frame_bodies_to_a_hub(bodies: list[bytes]) -> None:
    framed = b"".join(HEAD.pack(8 + len(body), 2, 0, 0) + body for body in bodies)
    Wiretap().play(Wiretap.ATTACHED, framed)


def feed(connection: Connection, data: bytes) -> None:
    """Let a bare connection take in bytes, answering attaches as a user would."""
    try:
        for event in connection.receive(data):
            if isinstance(event, AttachAsked):
                answer = Attach(name="x", handle=event.link.handle, role=event.link.role)
                event.link.answer(answer)
    except (RemoteProtocolError, AuthError):
        assert connection.state == "END"
    written = b"".join(connection.data_to_send())
    assert len(written) <= 100 * len(data) + 1000
    assert connection._reader.pending <= connection.limits.max_frame_size


@many
@given(st.lists(frames | st.binary(max_size=30), max_size=10), st.booleans())
def test_anything_to_a_server_connection(pieces: list[bytes], opened: bool) -> None:
    server = Connection(SERVER, Open(container_id="s"))
    start = AMQP_HEADER + encode_frame(Open(container_id="c", max_frame_size=4096))
    feed(server, (start if opened else b"") + b"".join(pieces))


@many
@given(st.lists(frames | st.binary(max_size=30), max_size=10), st.booleans())
def test_anything_to_a_client_connection(pieces: list[bytes], opened: bool) -> None:
    client = Connection(CLIENT, Open(container_id="c"))
    client.start()
    login = SaslMechanisms(mechanisms=("ANONYMOUS",)), SaslOutcome(code=0)
    start = SASL_HEADER + b"".join(encode_frame(said, kind=1) for said in login)
    start += AMQP_HEADER + encode_frame(Open(container_id="s", max_frame_size=4096))
    if opened:
        feed(client, start)
        client.begin()
        start = encode_frame(
            Begin(remote_channel=0, next_outgoing_id=0, incoming_window=9, outgoing_window=9)
        )
        feed(client, start)
    feed(client, b"".join(pieces))


# -- the parsers alone ----------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    for start in (b"", b"\x00\x53\x75", b"\x00\x53\x72\xc1", b"\x00\x53\x73\xc0"):
        try:
            decode_message(start + data)
        except MalformedBytes:
            continue


@given(st.binary(max_size=200), st.sampled_from([0, 0x80013700, 1]))
def test_any_bytes_are_events_or_refused(data: bytes, message_format: int) -> None:
    for start in (b"", b"\x00\x53\x75\xa0", b"\x00\x53\x72\xc1\x05\x02"):
        try:
            parse_payload(start + data, message_format)
        except (MalformedBytes, AmqpError):
            continue


@given(st.text() | st.text("amqp.notix-os>='@lte0123456789 \"", max_size=60))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    for start in ("", "amqp.annotation.x-opt-offset ", "amqp.annotation.x-opt-offset > '"):
        try:
            parse_selector(start + text)
        except AmqpError:
            continue


@given(st.text(), st.text())
def test_any_text_is_a_token_or_refused(token: str, audience: str) -> None:
    rules = [AccessRule("rule", "key")]
    for text in (token, f"SharedAccessSignature {token}", f"SharedAccessSignature sr=&sig={token}"):
        try:
            verify_sas(f"{text}&se=9999999999&skn=rule", audience, rules, now=0.0)
        except AuthError:
            continue
        raise AssertionError("nobody signed this")


@given(nested)
def test_what_was_made_up_can_be_written(said: Composite) -> None:
    """The strategy above is no good if it makes what no peer could send."""
    assert encode_performative(said)

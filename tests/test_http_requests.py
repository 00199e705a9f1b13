"""Requests that are refused: of ambiguous length, or expensive to parse."""

from __future__ import annotations

import h11
import pytest

from pumphouse.http_requests import BLANKS_MAX, HEADERS_MAX, LINE_BYTES_MAX, RequestParser
from tests.growth import assert_linear

SEVERAL = [
    b"Content-Length: 2\r\nContent-Length: 2",
    b"content-length:2\r\nA: b\r\nCONTENT-LENGTH: 2",
    b"Content-Length: 2\nContent-Length: 2",
    b"Content-Length: 2, 2",
    b"Content-Length: 2,2",
    b"Content-Length: 2,\r\n 2",
    b"Content-Length: 2\r\n , 2",
    b"Content-Length: 2\r\nContent-Length: 2, 2",
]
ONE = [
    b"Content-Length: 2",
    b"content-length:2",
    b"CONTENT-LENGTH:  2 \t",
    b"A: Content-Length: 3\r\nContent-Length: 2\r\nX-Content-Length: 3\r\nContent-Length-X: 3",
]


def parse(parser: RequestParser, data: bytes) -> list[object]:
    """The events of some bytes."""
    parser.receive_data(data)
    events: list[object] = []
    while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        events.append(event)
    return events


def request(head: bytes) -> bytes:
    return b"PUT / HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n{}"


@pytest.mark.parametrize("head", SEVERAL)
def test_several_lengths_are_refused(head: bytes) -> None:
    with pytest.raises(h11.RemoteProtocolError, match="more than one Content-Length") as refused:
        parse(RequestParser(1000), request(head))
    assert refused.value.error_status_hint == 400


@pytest.mark.parametrize("head", SEVERAL)
def test_several_lengths_are_refused_if_they_arrive_byte_by_byte(head: bytes) -> None:
    parser = RequestParser(1000)
    *numbers, last = request(head).removesuffix(b"{}")
    for number in numbers:
        assert parse(parser, bytes([number])) == []
    with pytest.raises(h11.RemoteProtocolError, match="more than one Content-Length"):
        parse(parser, bytes([last]))


@pytest.mark.parametrize("head", ONE)
def test_one_length_is_accepted(head: bytes) -> None:
    head_event, data, end = parse(RequestParser(1000), request(head))
    assert isinstance(head_event, h11.Request)
    assert isinstance(data, h11.Data)
    assert isinstance(end, h11.EndOfMessage)


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_many_headers_are_refused_before_they_are_parsed(end: bytes) -> None:
    few = request(b"\r\n".join([b"a:"] * (HEADERS_MAX - 1)))  # and Host
    assert isinstance(parse(RequestParser(16_000), few)[0], h11.Request)
    many = b"PUT / HTTP/1.1\r\nHost: a\r\n" + b"\r\n".join([b"a:"] * (HEADERS_MAX + 2)) + end
    with pytest.raises(h11.RemoteProtocolError, match="more than 100 headers") as refused:
        parse(RequestParser(16_000), many)
    assert refused.value.error_status_hint == 431


def test_many_lines_after_the_head_are_accepted() -> None:
    body = b"\n" * 1000
    head = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert len(parse(RequestParser(1000), head + body)) == 3


def test_chunks_are_refused_if_the_server_does_not_accept_them() -> None:
    chunked = b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert len(parse(RequestParser(1000), chunked)) == 2
    parser = RequestParser(1000, accept_chunks=False)
    with pytest.raises(h11.RemoteProtocolError, match="send a Content-Length") as refused:
        parse(parser, chunked)
    assert refused.value.error_status_hint == 411
    assert "send a Content-Length" in parser.refused_because


def test_the_next_request_of_a_connection_does_not_count() -> None:
    parser = RequestParser(1000)
    first, *_ = parse(parser, request(b"Content-Length: 2") * 2)
    assert isinstance(first, h11.Request)
    parser.send(h11.Response(status_code=204, headers=[]))
    parser.send(h11.EndOfMessage())
    parser.start_next_cycle()
    assert isinstance(parser.next_event(), h11.Request)


def test_a_request_in_a_body_does_not_count() -> None:
    inner = request(b"Content-Length: 2\r\nContent-Length: 2")
    head = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(inner)
    _, data, _ = parse(RequestParser(1000), head + inner)
    assert isinstance(data, h11.Data)
    assert bytes(data.data) == inner


CHUNKED = b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nA:", b"\0\r\n\r\n"),
        (CHUNKED + b"1;", b"\nx\r\na\r\n"),
    ],
    ids=["header", "chunk"],
)
def test_the_time_for_blanks_grows_linearly(start: bytes, end: bytes) -> None:
    assert_linear(
        lambda data: parse(RequestParser(1 << 20), data),
        lambda blanks: start + b" " * blanks + end,
        5000,
        h11.RemoteProtocolError,
    )


def test_a_few_blanks_are_accepted() -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\nA:%sb\r\n\r\n"
    assert len(parse(RequestParser(1000), head % (b" " * BLANKS_MAX))) == 2
    with pytest.raises(h11.RemoteProtocolError, match="blanks") as refused:
        parse(RequestParser(1000), head % (b" " * (BLANKS_MAX + 1)))
    assert refused.value.error_status_hint == 400


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_a_large_head_is_refused_before_it_is_parsed(end: bytes) -> None:
    with pytest.raises(h11.RemoteProtocolError, match="more than 1000 bytes") as refused:
        parse(RequestParser(1000), b"A" * 1001 + b" / HTTP/1.1\r\nHost: a" + end)
    assert refused.value.error_status_hint == 431


@pytest.mark.parametrize(
    "body",
    [
        b"2;" + b"a" * 2 * LINE_BYTES_MAX,
        b"2;" + b"a" * 2 * LINE_BYTES_MAX + b"\r\n{}\r\n0\r\n\r\n",
        b"0\r\n" + b"a: b\r\n" * LINE_BYTES_MAX + b"\r\n",
    ],
)
def test_long_lines_between_chunks_are_refused(body: bytes) -> None:
    with pytest.raises(h11.RemoteProtocolError, match="is too long") as refused:
        parse(RequestParser(16_000), CHUNKED + body)
    assert refused.value.error_status_hint == 400


@pytest.mark.parametrize("size", [1, 7, 300, 1 << 20])
def test_requests_are_the_same_in_pieces_of_any_size(size: int) -> None:
    """Among them bodies in chunks, after which the next request follows without a pause."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (n, b"x" * n) for n in (1, 500, 20)) + b"0\r\n\r\n"
    requests = [CHUNKED + chunks, request(b"Content-Length: 2"), CHUNKED + chunks] * 2
    data, parser, bodies = b"".join(requests), RequestParser(1000), []
    for start in range(0, len(data), size):
        parser.receive_data(data[start : start + size])
        while (event := parser.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Request):
                bodies.append(b"")
            elif isinstance(event, h11.Data):
                bodies[-1] += bytes(event.data)
            else:
                assert isinstance(event, h11.EndOfMessage)
                parser.send(h11.Response(status_code=204, headers=[]))
                parser.send(h11.EndOfMessage())
                parser.start_next_cycle()
    assert bodies == [b"x" * 521, b"{}", b"x" * 521] * 2


@pytest.mark.parametrize(
    "unit",
    [b"a", b" " * BLANKS_MAX + b"a", b"a:" + b"b" * 250 + b"\r\n"],
    ids=["letters", "blanks", "headers"],
)
def test_the_time_for_a_head_byte_by_byte_grows_linearly(unit: bytes) -> None:
    """Each read examines only the new bytes, and copies none of the others."""

    def read(data: bytes) -> None:
        parser = RequestParser(1 << 20)
        for number in data:
            parser.receive_data(bytes((number,)))
            parser.next_event()

    assert_linear(read, lambda size: (b"GET / HTTP/1.1\r\n" + unit * size)[:size], 4000)

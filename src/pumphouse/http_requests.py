"""HTTP/1.1 requests, parsed by h11, with more rules: small heads, and an unambiguous length.

h11 accepts `Content-Length: 5` twice, and `Content-Length: 5, 5`, and shows the number once. RFC
9112 (6.3) allows that and a refusal. We refuse: a proxy in front of us could read another length,
and so see other requests than we do.
"""

from __future__ import annotations

import re
from typing import NoReturn

import h11

LENGTH = re.compile(rb"\ncontent-length:", re.IGNORECASE)
# One number in one line: the next line does not continue it.
ONE_LENGTH = re.compile(rb"\ncontent-length:[ \t]*[0-9]+[ \t]*\r?\n(?![ \t])", re.IGNORECASE)
HEAD_END = re.compile(rb"\n\r?\n")

HEADERS_MAX = 100  # a browser sends 20; h11 needs 2 µs for each
# Blanks in a row in a head. The time of h11's regular expression grows with their square: 16,000
# blanks take half a second.
BLANKS_MAX = 64
MANY_BLANKS = re.compile(rb"[ \t]{%d}" % (BLANKS_MAX + 1))
LINE_BYTES_MAX = 256  # of the line before a chunk, and of all lines after the last chunk


class RequestParser(h11.Connection):
    """The server's side of a connection.

    h11 gets received bytes only when they have passed our checks: a head as a whole, a body up to
    its end, and a body in chunks in small pieces.
    """

    def __init__(self, head_bytes_max: int, accept_chunks: bool = True) -> None:
        super().__init__(h11.SERVER, head_bytes_max)
        self.head_bytes_max = head_bytes_max
        self.accept_chunks = accept_chunks
        self.refused_because = ""  # for servers that do not show the text of an error
        self._received = b""  # of it, h11 has got what is before `_given`
        self._given = 0
        self._ended = False  # the client sends nothing more
        self._chunked = False
        self._body_left = 0  # bytes of a body that is not in chunks

    def receive_data(self, data: bytes) -> None:
        self._received = self._received[self._given :] + data
        self._given = 0
        self._ended = self._ended or not data

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        """What has arrived after the last event, and whether the client sends nothing more."""
        return super().trailing_data[0] + self._received[self._given :], self._ended

    @property
    def waiting(self) -> int:
        """The number of bytes that h11 has not got yet."""
        return len(self._received) - self._given

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            return self.next_head()
        if self.their_state is h11.DONE and self.waiting:
            return h11.PAUSED
        if self.their_state is h11.SEND_BODY and self._chunked:
            return self.next_piece()
        if self.their_state is h11.SEND_BODY:
            self._body_left -= self.give(self._body_left)
        elif self.their_state is not h11.DONE:
            self.give(self.waiting)  # h11 refuses it
        self.give_end()
        return super().next_event()

    def next_head(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        known = super().trailing_data[0]  # after a body in chunks h11 may have the start of a head
        head = first_head(self._received, self._given)
        if known:
            head = first_head(known + head)
        # h11 refuses a first byte such as that of a TLS handshake at once.
        if not (self._ended or HEAD_END.search(head) or head[:1] < b"!"):
            self.check_head(head)
            return h11.NEED_DATA
        self.check_head(head)
        self.give(max(0, len(head) - len(known)))
        self.give_end()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.begin_body(event, head)
        return event

    def next_piece(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event of a body in chunks."""
        while (event := super().next_event()) is h11.NEED_DATA:
            if len(super().trailing_data[0]) > LINE_BYTES_MAX:
                self.refuse("the line before or after a chunk is too long", 400)
            if not self.give(LINE_BYTES_MAX) and not self.give_end():
                break
        return event

    def give(self, size: int) -> int:
        """Give h11 up to `size` bytes; returns their number."""
        data = self._received[self._given : self._given + size]
        self._given += len(data)
        if data:
            super().receive_data(data)
        return len(data)

    def give_end(self) -> bool:
        """Give h11 the end of the connection, after all bytes, and only once."""
        at_end = self._ended and not self.waiting and not super().trailing_data[1]
        if at_end:
            super().receive_data(b"")
        return at_end

    def check_head(self, head: bytes) -> None:
        if len(head) > self.head_bytes_max:
            self.refuse(f"a head of more than {self.head_bytes_max} bytes", 431)
        if head.count(b"\n") > HEADERS_MAX + 2:  # the request line and the empty line
            self.refuse(f"more than {HEADERS_MAX} headers", 431)
        if MANY_BLANKS.search(head):
            self.refuse(f"more than {BLANKS_MAX} blanks in a row", 400)

    def begin_body(self, request: h11.Request, head: bytes) -> None:
        if has_several_lengths(head):
            self.refuse("more than one Content-Length", 400)
        headers = dict(request.headers)
        self._chunked = b"transfer-encoding" in headers
        self._body_left = int(headers.get(b"content-length", b"0"))
        if self._chunked and not self.accept_chunks:
            self.refuse("a body in chunks is not accepted; send a Content-Length", 411)

    def refuse(self, reason: str, status: int) -> NoReturn:
        self.refused_because = reason
        raise h11.RemoteProtocolError(reason, error_status_hint=status)


def first_head(unread: bytes, start: int = 0) -> bytes:
    """The head of the first request in these bytes, as far as it has arrived."""
    end = HEAD_END.search(unread, start)
    return unread[start:] if end is None else unread[start : end.end()]


def has_several_lengths(head: bytes) -> bool:
    lengths = len(LENGTH.findall(head))
    return lengths > 1 or lengths != len(ONE_LENGTH.findall(head))

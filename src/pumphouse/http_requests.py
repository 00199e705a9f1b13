"""HTTP/1.1 requests, parsed by h11, with more rules: small heads, and an unambiguous length.

h11 accepts `Content-Length: 5` twice, and `Content-Length: 5, 5`, and shows the number once. RFC
9112 (6.3) allows that and a refusal. We refuse: a proxy in front of us could read another length,
and so see other requests than we do.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NoReturn

import h11

HEADERS_MAX = 100  # a browser sends 20; h11 needs 2 µs for each
# Blanks in a row in a head. The time of h11's regular expression grows with their square: 16,000
# blanks take half a second.
BLANKS, BLANKS_MAX = b" \t", 64
LINE_BYTES_MAX = 256  # of the line before a chunk, and of all lines after the last chunk


class HeadRefused(Exception):
    """A head is refused before h11 gets it: the reason, and the status of the response."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class Head:
    """The head of a request, as far as it has arrived. Each byte is examined one time."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.data = bytearray()
        self.lines = 0
        self.is_complete = False

    def add(self, data: bytes | bytearray) -> int:
        """Add the bytes that belong to the head; returns their number."""
        old = len(self.data)
        self.data += data[: self.bytes_max + 1 - old]
        end = head_end(self.data, max(0, old - 2))
        self.is_complete = end > 0
        if self.is_complete:
            del self.data[end:]
        self.check(old)
        return len(self.data) - old

    def check(self, old: int) -> None:
        """Check the bytes that were added to the old ones."""
        if len(self.data) > self.bytes_max:
            raise HeadRefused(f"a head of more than {self.bytes_max} bytes", 431)
        self.lines += self.data.count(b"\n", old)
        if self.lines > HEADERS_MAX + 2:  # the request line and the empty line
            raise HeadRefused(f"more than {HEADERS_MAX} headers", 431)
        if has_blanks(self.data[max(0, old - BLANKS_MAX) :], BLANKS_MAX + 1):
            raise HeadRefused(f"more than {BLANKS_MAX} blanks in a row", 400)


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
        self._received = bytearray()  # what is before `_taken` is in the head, or h11 has got it
        self._taken = 0
        self._ended = False  # the client sends nothing more
        self._head = Head(head_bytes_max)
        self._known = 0  # bytes of the head that h11 has got before
        self._chunked = False
        self._body_left = 0  # bytes of a body that is not in chunks
        self._is_head_request = False

    def receive_data(self, data: bytes) -> None:
        del self._received[: self._taken]
        self._taken = 0
        self._received += data
        self._ended = self._ended or not data

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        """What has arrived after the last event, and whether the client sends nothing more."""
        known = super().trailing_data[0]
        head = self._head.data[self._known :]
        return known + head + self._received[self._taken :], self._ended

    @property
    def waiting(self) -> int:
        """The number of bytes that are neither in the head nor given to h11."""
        return len(self._received) - self._taken

    @property
    def has_part_of_a_head(self) -> bool:
        return self.their_state is h11.IDLE and bool(self._head.data or self.trailing_data[0])

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
        self._is_head_request = False
        try:
            self.add_to_head()
        except HeadRefused as refusal:
            self.refuse(str(refusal), refusal.status)
        # h11 refuses a first byte such as that of a TLS handshake at once.
        if not (self._head.is_complete or self._ended or self._head.data[:1] < b"!"):
            return h11.NEED_DATA
        head = bytes(self._head.data)
        if len(head) > self._known:
            super().receive_data(head[self._known :])
        self._head, self._known = Head(self.head_bytes_max), 0
        self.give_end()
        event = super().next_event()
        self._is_head_request = isinstance(event, h11.Request) and event.method == b"HEAD"
        if isinstance(event, h11.Request):
            self.begin_body(event, head)
        return event

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        """The bytes of an event. The body of a response to HEAD is left out.

        h11 raises for such a body. A request can be refused before its handler knows the method.
        """
        if self._is_head_request and isinstance(event, h11.Data):
            return b""
        return super().send(event)

    def add_to_head(self) -> None:
        if not self._head.data:  # after a body in chunks h11 may have the start of a head
            self._known = self._head.add(super().trailing_data[0])
        if not self._head.is_complete:
            end = self._taken + self.head_bytes_max + 1
            self._taken += self._head.add(self._received[self._taken : end])

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
        data = bytes(self._received[self._taken : self._taken + size])
        self._taken += len(data)
        if data:
            super().receive_data(data)
        return len(data)

    def give_end(self) -> bool:
        """Give h11 the end of the connection, after all bytes, and only once."""
        at_end = self._ended and not self.waiting and not super().trailing_data[1]
        if at_end:
            super().receive_data(b"")
        return at_end

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


def head_end(data: bytearray, start: int) -> int:
    """Where the first empty line from this position on ends; 0 if there is none."""
    with_return = data.find(b"\n\r\n", start)
    without = data.find(b"\n\n", start, len(data) if with_return < 0 else with_return + 1)
    return without + 2 if without >= 0 else with_return + 3 if with_return >= 0 else 0


def has_blanks(text: bytearray, count: int) -> bool:
    """Whether there are so many blanks in a row. One of them is then at a multiple of `count`."""
    for position in range(0, len(text), count):
        if text[position] in BLANKS:
            before, after = (
                text[max(0, position - count) : position],
                text[position : position + count],
            )
            row = len(before) - len(before.rstrip(BLANKS)) + len(after) - len(after.lstrip(BLANKS))
            if row >= count:
                return True
    return False


def has_several_lengths(head: bytes) -> bool:
    """Whether there is more than one Content-Length, or one that is not a number in one line."""
    lines = head.lower().split(b"\n")[1:]
    lengths = [pair for pair in pairwise(lines) if pair[0].startswith(b"content-length:")]
    return len(lengths) > 1 or not all(is_one_length(line, after) for line, after in lengths)


def is_one_length(line: bytes, after: bytes) -> bool:
    number = line.partition(b":")[2].removesuffix(b"\r").strip(BLANKS)
    return number.isdigit() and after[:1] not in (b" ", b"\t")

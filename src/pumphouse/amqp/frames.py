"""Frames: the units into which AMQP divides a byte stream.

         0       1       2       3
      +-------------------------------+
    0 |             size              |  of the whole frame, these eight bytes included
      +-------+-------+---------------+
    4 | doff  | type  |    channel    |  doff: start of the body, in words of four bytes
      +-------+-------+---------------+
    8 | extended header, then body ...

A stream begins with a protocol header of eight bytes ("AMQP", id, 1.0.0). Frames follow. With SASL
there are two headers: one before the SASL frames, one after them. `ByteReader` holds the bytes that
are received and not yet consumed: at most one incomplete frame besides the bytes of the last
`feed`.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import NamedTuple

from pumphouse.amqp.composites import (
    Composite,
    encode_performative,
)
from pumphouse.amqp.performatives import Error
from pumphouse.errors import LocalProtocolError, RemoteProtocolError

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
TLS_HEADER = b"AMQP\x02\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

AMQP_FRAME, SASL_FRAME = 0, 1
MIN_MAX_FRAME = 512  # the smallest limit that a peer may announce
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"  # a heartbeat

APART_MIN = 16 * 1024  # received bytes after a frame; fewer are joined with it

ERROR_ROOM = 160  # upper bound of what a frame adds to the description of an error

HEAD = struct.Struct(">IBBH")


class Frame(NamedTuple):
    """One frame within the buffer of the reader. The body is `data[start:end]`."""

    kind: int
    channel: int
    data: bytes
    start: int
    end: int


class ByteReader:
    """Splits received bytes into protocol headers and frames."""

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self._data = b""
        self._pos = 0
        self._consumed = 0  # bytes of the stream before _data, for the positions in errors
        # Bytes after _data, while an incomplete frame needs more. They are joined only once: a peer
        # may send a frame of 64 KiB byte by byte.
        self._late = bytearray()
        self._missing = 0
        # The received bytes after _data, if that is one frame whose end arrived with them: only
        # this frame is joined, and the others are read where they are.
        self._next = b""
        self._next_pos = 0

    def feed(self, data: bytes) -> None:
        if len(self._late) + len(data) < self._missing:
            self._late += data
            return
        if self._next:
            self._data, self._next = self._data + self._next[self._next_pos :], b""
        self._consumed += self._pos
        rest = self._data[self._pos :] + self._late
        missing = self._missing - len(self._late)
        if missing > 0 and len(data) - missing >= APART_MIN:
            self._data = b"".join((rest, memoryview(data)[:missing]))
            self._next, self._next_pos = data, missing
        else:
            self._data = bytes(rest) + data if rest else data
        self._pos = self._missing = 0
        self._late.clear()

    def advance(self) -> None:
        """Continue with the bytes after a frame that was joined and is consumed."""
        if self._next and self._pos == len(self._data):
            self._consumed += self._pos - self._next_pos
            self._data, self._pos = self._next, self._next_pos
            self._next = b""

    def release(self) -> None:
        """Drop the consumed bytes: an idle connection holds at most one incomplete frame."""
        self.advance()
        self._consumed += self._pos
        self._data = self._data[self._pos :]
        self._pos = 0

    @property
    def pending(self) -> int:
        """The number of received bytes that are not consumed."""
        later = len(self._next) - self._next_pos if self._next else 0
        return len(self._data) - self._pos + later + len(self._late)

    def header(self) -> bytes | None:
        """Consume the next protocol header; None if it is incomplete."""
        header = self._data[self._pos : self._pos + 8]
        if not b"AMQP".startswith(header[:4]):
            raise self.error(f"expected a protocol header 'AMQP...', found {bytes(header)!r}")
        if len(header) < 8:
            return None
        self._pos += 8
        return bytes(header)

    def frame(self) -> Frame | None:
        """Consume the next frame; None if it is incomplete."""
        self.advance()
        data, pos = self._data, self._pos
        if len(data) - pos < 8:
            return None
        size, doff, kind, channel = HEAD.unpack_from(data, pos)
        if size > self.max_frame_size or size < 8 or not 8 <= doff * 4 <= size:
            raise self.head_error(size, doff)
        end = pos + size
        if end > len(data):
            self._missing = end - len(data)
            return None
        self._pos = end
        return Frame(kind, channel, data, pos + doff * 4, end)

    @property
    def rest(self) -> tuple[bytes, int]:
        """The buffer, and the position of its first byte that is not consumed."""
        self.advance()
        return self._data, self._pos

    def consume(self, until: int) -> None:
        """Continue at a position of `rest`; the bytes before it are consumed."""
        self._pos = until

    def head_error(self, size: int, doff: int) -> RemoteProtocolError:
        if size > self.max_frame_size:
            return self.error(f"frame of {size} bytes, the limit is {self.max_frame_size}")
        if size < 8:
            return self.error(f"frame of {size} bytes, the header alone has 8")
        return self.error(
            f"data offset of {doff} words does not lie within the frame of {size} bytes"
        )

    def error(self, problem: str) -> RemoteProtocolError:
        position = self._consumed + self._pos
        return RemoteProtocolError(
            f"at byte {position} of the stream: {problem}", "amqp:connection:framing-error"
        )


def encode_frame(
    performative: Composite, channel: int = 0, payload: bytes = b"", kind: int = AMQP_FRAME
) -> bytes:
    """A complete frame: header, performative, payload."""
    body = encode_performative(performative)
    return HEAD.pack(8 + len(body) + len(payload), 2, kind, channel) + body + payload


def check_fits(frame: bytes, max_frame_size: int) -> bytes:
    """The frame; LocalProtocolError if it exceeds the frame size limit of the peer."""
    if len(frame) > max_frame_size:
        raise LocalProtocolError(
            f"frame of {len(frame)} bytes, the limit of the peer is {max_frame_size}"
        )
    return frame


def check_response_fits(frame: bytes, max_frame_size: int, request: str) -> bytes:
    """The frame; RemoteProtocolError if the response exceeds the frame size limit of the peer."""
    if len(frame) > max_frame_size:
        raise RemoteProtocolError(
            f"the response to {request} needs a frame of {len(frame)} bytes, but "
            f"open.max-frame-size is {max_frame_size}; announce a larger one, or use shorter names",
            "amqp:frame-size-too-small",
        )
    return frame


def shorten(error: Error | None, max_frame_size: int) -> Error | None:
    """The error with its description shortened to the frame size limit of the peer."""
    text = ((error and error.description) or "").encode()
    room = max_frame_size - ERROR_ROOM
    if error is None or len(text) <= room:
        return error
    return replace(error, description=text[:room].decode("utf-8", "ignore"))

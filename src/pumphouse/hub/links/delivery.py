"""Turns a run of stored frames into transfer frames for one link.

A stored frame lacks three numbers that depend on the link: channel, handle and delivery id. numpy
writes them into a copy of a whole run at once, so no Python code runs per event. Two kinds of
event are sent one by one instead: those larger than the reader's frame limit, and those for a
reader that asks for the partition's last sequence number with each event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pumphouse.amqp.codec import skip
from pumphouse.amqp.messages import DELIVERY_ANNOTATIONS, encode_section
from pumphouse.amqp.types import Symbol, Timestamp
from pumphouse.hub.annotations import map_section
from pumphouse.hub.frames.building import CHANNEL_AT, DELIVERY_AT, HANDLE_AT, MESSAGE_AT
from pumphouse.hub.limits.sections import map_head
from pumphouse.hub.storage.base import Log
from pumphouse.hub.storage.run import Run

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

HEADER_START, DELIVERY_START = b"\x00\x53\x70", b"\x00\x53\x71"
RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"


def address_run(run: Run, channel: int, handle: int, delivery_id: int) -> bytearray:
    """The run's frames, addressed to one link, with deliveries counted from `delivery_id`."""
    import numpy as np  # not needed to start a hub, and slow to import

    frames = np.frombuffer(run.frames, np.uint8)
    starts = run.starts
    ids = np.arange(delivery_id, delivery_id + len(starts), dtype=np.int64).astype(">u4")
    scatter(frames, starts + DELIVERY_AT, ids.view(np.uint8).reshape(-1, 4))
    if handle:
        scatter_constant(frames, starts + HANDLE_AT, handle.to_bytes(4, "big"))
    if channel:
        scatter_constant(frames, starts + CHANNEL_AT, channel.to_bytes(2, "big"))
    return run.frames


def scatter(
    frames: npt.NDArray[np.uint8],
    positions: npt.NDArray[np.intp],
    rows: npt.NDArray[np.uint8],
) -> None:
    """Write each row of bytes at its position."""
    for byte in range(rows.shape[1]):
        frames[positions + byte] = rows[:, byte]


def scatter_constant(
    frames: npt.NDArray[np.uint8],
    positions: npt.NDArray[np.intp],
    value: bytes,
) -> None:
    """Write the same bytes at every position."""
    for offset, byte in enumerate(value):
        if byte:  # stored frames hold zeros here
            frames[positions + offset] = byte


def count_fitting(run: Run, frame_max: int) -> int:
    """The number of events before the first whose stored frame exceeds the frame limit."""
    if len(run.frames) <= frame_max:
        return len(run.starts)
    import numpy as np

    too_large = np.diff(run.starts, append=len(run.frames)) > frame_max
    return int(too_large.argmax()) if too_large.any() else len(run.starts)


def messages(run: Run) -> Iterator[bytes]:
    """The messages in a run, without their frames."""
    starts = run.starts.tolist()
    for start, end in zip(starts, [*starts[1:], len(run.frames)], strict=True):
        yield bytes(run.frames[start + MESSAGE_AT : end])


def with_metric(message: bytes, metric: bytes) -> bytes:
    """A message with the metric in its delivery annotations, after the header.

    A message has one such section, so the producer's own annotations are added to the metric's.
    Their bytes are copied without decoding: there may be a thousand of them, and many readers.
    """
    if not metric:
        return message
    start = skip(message, 3) if message.startswith(HEADER_START) else 0
    if not message.startswith(DELIVERY_START, start):
        return message[:start] + metric + message[start:]
    end = skip(message, start + len(DELIVERY_START))
    added, entries = map_content(metric[len(DELIVERY_START) :])
    count, own_entries = map_content(message[start + len(DELIVERY_START) : end])
    merged = map_section(DELIVERY_ANNOTATIONS, entries + own_entries, added + count)
    return message[:start] + merged + message[end:]


def map_content(encoded: bytes) -> tuple[int, bytes]:
    """The number of keys and values of an encoded map, and their bytes."""
    count, start = map_head(encoded)
    return count, encoded[start:]


def runtime_metric(log: Log, now_ms: int) -> bytes:
    """The delivery annotations that describe the partition's newest event."""
    return encode_section(
        DELIVERY_ANNOTATIONS,
        {
            Symbol("last_enqueued_sequence_number"): log.next_sequence - 1,
            Symbol("last_enqueued_offset"): str(log.last_offset),
            Symbol("last_enqueued_time_utc"): Timestamp(log.last_ms),
            Symbol("runtime_info_retrieval_time_utc"): Timestamp(now_ms),
        },
    )

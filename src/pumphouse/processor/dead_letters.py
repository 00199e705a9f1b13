"""Dead letters: events that the handler could not handle, in a JSON lines file or another hub.

A dead letter has the whole event and the cause, so that it can be inspected and sent again.

    handlers -> DeadLetter -> DeadLetterFile | DeadLetterHub
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pumphouse import logs
from pumphouse.client.base import ConnectionString, HubClient, Sender
from pumphouse.client.factory import open_client
from pumphouse.errors import EventTooLarge, PumphouseError
from pumphouse.events import Event
from pumphouse.logs import text_of
from pumphouse.private_files import private_opener
from pumphouse.processor.checks.parts import check_connect

log = logging.getLogger("pumphouse.processor")

T = TypeVar("T")

BLOCK = 64 * 1024  # bytes that are read at once, from the end of the file
CAUSE_SHORT = 100  # in a dead letter that is too large for its hub
TRUNCATED_TODO = "none if only Pumphouse writes this file: the event is handled again"
CAUSE_MAX = 2000  # characters of an exception's text: it may quote the whole event


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event, and why it could not be handled."""

    event: Event
    partition: str
    group: str
    host: str
    tried: int
    cause: Exception

    @property
    def reason(self) -> str:
        return encodable(f"{type(self.cause).__name__}: {text_of(self.cause)}")[:CAUSE_MAX]


class DeadLetters(Protocol):
    """Stores dead letters. `write` raises PumphouseError unless the letter is certainly stored."""

    async def write(self, letter: DeadLetter) -> None: ...

    async def close(self) -> None: ...


class DeadLetterFile:
    """Appends dead letters to a file, one JSON object per line, each synced to the disk.

    Several hosts may share one object, even from different event loops or threads. Processes of one
    machine may share the file. A line that could not be written as a whole is removed again; a last
    line that only lacks its newline, as some editors leave it, is kept.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<DeadLetterFile {self.path}>"

    async def write(self, letter: DeadLetter) -> None:
        # Not in the event loop's default threads: DNS lookups and token requests use those, and a
        # disk that hangs would block them.
        thread = ThreadPoolExecutor(1, "pumphouse dead letter")
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self._append, as_line(letter))
        except OSError as error:
            raise PumphouseError(
                f"cannot write a dead letter to {self.path}: {error.strerror}"
            ) from error
        finally:
            thread.shutdown(wait=False)

    def _append(self, line: bytes) -> None:
        # A thread lock: after a cancellation the write still runs in its thread.
        with self._lock, open(self.path, "a+b", buffering=0, opener=private_opener) as file:
            lock_for_processes(file.fileno())
            if removed := mend_last_line(file.fileno()):
                self._log_truncated(removed)
            append_whole(file.fileno(), line)

    def _log_truncated(self, removed: int) -> None:
        fields = {"file": str(self.path), "bytes": removed}
        log.warning("%s", logs.line("dead_letter_truncated", **fields, todo=TRUNCATED_TODO))

    async def close(self) -> None:
        """No effect: each write opens and closes the file."""


class DeadLetterHub:
    """Sends dead letters to another hub: the same body, key and properties, and the cause."""

    def __init__(self, connect: str | ConnectionString | Callable[[], HubClient]) -> None:
        check_connect("connect", connect)
        self._connect = connect
        self._opening = asyncio.Lock()
        self._opened = AsyncExitStack()
        self._sender: Sender | None = None

    async def write(self, letter: DeadLetter) -> None:
        """EventTooLarge if even the shortened letter is too large: retrying does not help."""
        sender = self._sender or await self._open()
        try:
            await sender.send([as_event(letter)])
        except EventTooLarge:  # the event itself fitted its hub; the details may not
            await sender.send([as_event(letter, CAUSE_SHORT)])

    async def _open(self) -> Sender:
        """The sender. The first letter opens it; letters written meanwhile wait."""
        async with self._opening:
            return self._sender or await self._connect_sender()

    async def _connect_sender(self) -> Sender:
        client = self._connect() if callable(self._connect) else open_client(self._connect)
        async with AsyncExitStack() as undo:
            await undo.enter_async_context(client)
            self._sender = await client.sender()
            self._opened = undo.pop_all()
        return self._sender

    async def close(self) -> None:
        async with self._opening:
            self._sender = None
            await self._opened.aclose()


def lock_for_processes(descriptor: int) -> None:
    """Keep other processes out until the file is closed, where the file system can."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def mend_last_line(descriptor: int) -> int:
    """End a last line that lacks its newline, or remove it if it is incomplete.

    Returns the number of bytes that were removed. A process that died while it wrote leaves them.
    """
    if not is_file(descriptor):
        return 0
    size, end = os.fstat(descriptor).st_size, end_of_lines(descriptor)
    if size == end:
        return 0
    if is_complete(os.pread(descriptor, size - end, end)):
        write_all(descriptor, b"\n")
        return 0
    os.ftruncate(descriptor, end)
    return size - end


def append_whole(descriptor: int, line: bytes) -> None:
    """Append a line and sync it to the disk. If that fails, nothing of it stays in the file."""
    if not is_file(descriptor):
        return write_all(descriptor, line)
    end = os.fstat(descriptor).st_size
    try:
        write_all(descriptor, line)
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, end)
        raise
    return None


def is_file(descriptor: int) -> bool:
    """Whether this is a regular file, and not a pipe or a terminal."""
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def is_complete(last: bytes) -> bool:
    """Whether a last line without a newline is a whole JSON object."""
    try:
        return isinstance(json.loads(last), dict)
    except (ValueError, RecursionError):
        return False


def write_all(descriptor: int, line: bytes) -> None:
    written = 0
    while written < len(line):
        written += os.write(descriptor, line[written:])


def end_of_lines(descriptor: int) -> int:
    """The size of the file up to its last newline."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - BLOCK)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def as_event(letter: DeadLetter, cause_max: int = CAUSE_MAX) -> Event:
    """The event for a dead-letter hub."""
    event = letter.event
    details = {
        "dead-letter-cause": letter.reason[:cause_max],
        "dead-letter-partition": letter.partition,
        "dead-letter-sequence": -1 if event.sequence is None else event.sequence,
        "dead-letter-group": letter.group,
        "dead-letter-host": letter.host,
        "dead-letter-tried": letter.tried,
    }
    properties = {**event.properties, **details}
    return Event(
        event.body,
        {encodable(name): encodable(value) for name, value in properties.items()},
        encodable(event.partition_key),
    )


def as_line(letter: DeadLetter) -> bytes:
    """The line for a dead-letter file: the body as base64 and, if it is UTF-8, as text."""
    event = letter.event
    fields = {
        "cause": letter.reason,
        "tried": letter.tried,
        "group": letter.group,
        "host": letter.host,
        "partition": letter.partition,
        "sequence": event.sequence,
        "offset": event.offset,
        "enqueued_ms": event.enqueued_ms,
        "partition_key": event.partition_key,
        "properties": in_json(dict(event.properties)),
        "body": base64.b64encode(event.body).decode(),
        "text": as_text(event.body),
    }
    line = json.dumps(fields, default=as_json, ensure_ascii=False, allow_nan=False)
    # UTF-8 cannot encode a lone surrogate. This writes \udcff, the JSON escape.
    return line.encode("utf-8", "backslashreplace") + b"\n"


def as_text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def encodable(value: T) -> T | str:
    """A text with lone surrogates escaped (\\udcff); any other value unchanged."""
    if not isinstance(value, str):
        return value
    escaped = value.encode("utf-8", "backslashreplace").decode()
    return value if escaped == value else escaped  # keeps a subclass of str that needs no escape


def in_json(value: Any) -> Any:
    """The value with types in place of the numbers that JSON does not have: NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else as_json(value)
    if isinstance(value, dict):
        return {name: in_json(item) for name, item in value.items()}
    return [in_json(item) for item in value] if isinstance(value, list | tuple) else value


def as_json(value: Any) -> Any:
    """The JSON form of a value without a JSON type: a property may have any AMQP type."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    return {"type": type(value).__name__, "value": str(value)}

"""Reads the lines of a file or of stdin in a thread, without blocking the event loop.

Blocking reads are the only way that works for terminals, pipes and files alike. The thread is a
daemon: a read that never returns does not keep the program alive.

    file -> thread -> queue (bounded) -> read_lines -> send
                                         ^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import IO, cast

from pumphouse.errors import OptionError

BLOCK_BYTES = 1 << 16
BLOCKS_MAX = 8  # blocks in the queue
LINE_BYTES_MAX = 16 << 20  # many times the largest event; a longer line is not text

Block = list[bytes] | BaseException | None  # None is the end


async def read_lines(file: IO[bytes]) -> AsyncGenerator[list[bytes], None]:
    """The lines of a file in blocks of all lines that are available. Empty lines are skipped."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Block] = asyncio.Queue()
    room = threading.Semaphore(BLOCKS_MAX)

    def put(block: Block) -> None:
        room.acquire()
        loop.call_soon_threadsafe(queue.put_nowait, block)

    threading.Thread(target=read, args=(file, put), name="line reader", daemon=True).start()
    while (block := await queue.get()) is not None:
        room.release()
        if isinstance(block, BaseException):
            raise block
        yield block


def read(file: IO[bytes], put: Callable[[Block], None]) -> None:
    """Read the file and put its blocks; runs in the thread."""
    try:
        try:
            for block in blocks(file):
                put(block)
            put(None)
        except (OSError, OptionError) as error:
            put(error)
    except (RuntimeError, ValueError):
        pass  # the loop or the file was closed: the lines are no longer needed


def blocks(file: IO[bytes]) -> Iterator[list[bytes]]:
    rest = b""
    # read1 returns the available bytes; read would wait for a whole block from a pipe.
    while chunk := cast(io.BufferedReader, file).read1(BLOCK_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise OptionError(
                f"a line has more than {LINE_BYTES_MAX:,} bytes: use one event per line"
            )
        yield [line for line in map(trim, whole) if line]
    if trim(rest):
        yield [trim(rest)]


def trim(line: bytes) -> bytes:
    return line.removesuffix(b"\r")

"""Lines of a file or of stdin, as they come, without holding up the event loop.

A thread reads, because a terminal, a pipe and a file can be read alike only by blocking. It is a
daemon: a read that never returns must not keep the program from ending.

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
BLOCKS_MAX = 8  # read ahead of what has been sent
LINE_BYTES_MAX = 16 << 20  # many times what a hub takes: this is no file of lines

Block = list[bytes] | BaseException | None  # None is the end


async def read_lines(file: IO[bytes]) -> AsyncGenerator[list[bytes], None]:
    """The lines of a file in blocks: as many as there are at once. Empty lines are left out."""
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
    """The thread's work."""
    try:
        try:
            for block in blocks(file):
                put(block)
            put(None)
        except (OSError, OptionError) as failed:
            put(failed)
    except (RuntimeError, ValueError):
        pass  # the loop or the file was closed: nobody wants the lines any more


def blocks(file: IO[bytes]) -> Iterator[list[bytes]]:
    rest = b""
    # read1 returns what is there; read would wait for a whole block from a pipe.
    while chunk := cast(io.BufferedReader, file).read1(BLOCK_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise OptionError(f"a line of more than {LINE_BYTES_MAX} bytes is no event")
        yield [line for line in map(trim, whole) if line]
    if trim(rest):
        yield [trim(rest)]


def trim(line: bytes) -> bytes:
    return line.removesuffix(b"\r")

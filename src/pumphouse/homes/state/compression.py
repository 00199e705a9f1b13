"""Compresses values of state: a value is read and written in every batch.

Each byte of a value costs more outside of these functions than in them: Spark converts the bytes of
a value to text on their way from the JVM to Python, and writes them to RocksDB and to a file.

The columns consist of numbers of 8 bytes that differ little. So all first bytes are stored
together, then all second bytes, and so on, and the result is compressed (LZ4): a quarter remains.

    columns -> compress_state -> Spark -> expand_state -> columns
               ^^^^^^^^^^^^^^             ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import pyarrow as pa

WIDTH: Final = 8
CODEC: Final = "lz4"
# Ends a compressed value; a value of an earlier version does not end so.
MARK: Final = b"\x00shuffled-lz4"
END: Final = struct.Struct(f"<q{len(MARK)}s")  # the number of bytes, and the mark


def compress_state(value: bytes) -> bytes:
    """The bytes to store. The format is part of the checkpoint."""
    padded = value.ljust(-(-len(value) // WIDTH) * WIDTH, b"\0")
    shuffled = np.frombuffer(padded, np.uint8).reshape(-1, WIDTH).T.tobytes()
    compressed: bytes = pa.compress(shuffled, codec=CODEC, asbytes=True)
    return compressed + END.pack(len(value), MARK)


def expand_state(stored: bytes) -> bytes:
    """The value, also of an earlier version, which did not compress."""
    if not stored.endswith(MARK):
        return stored
    length, _ = END.unpack_from(stored, len(stored) - END.size)
    padded = -(-length // WIDTH) * WIDTH
    shuffled = pa.decompress(stored[: -END.size], padded, codec=CODEC, asbytes=True)
    value: bytes = np.frombuffer(shuffled, np.uint8).reshape(WIDTH, -1).T.tobytes()
    return value[:length]

"""Which errors of the operating system come from the disk, and what to do about them."""

from __future__ import annotations

import errno

FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or the user's share of it
# EFBIG: the limit of the process for the size of files (ulimit -f).
FAILED = (*FULL, errno.EFBIG, errno.EIO, errno.EROFS)


def is_full(failure: OSError) -> bool:
    return failure.errno in FULL


def is_disk_failure(failure: OSError) -> bool:
    """Whether the disk failed; otherwise a path or its access rights are wrong."""
    return failure.errno in FAILED


def todo(failure: OSError, otherwise: str = "check the disk") -> str:
    """What to do about a failure."""
    return "free some space on its disk" if is_full(failure) else otherwise

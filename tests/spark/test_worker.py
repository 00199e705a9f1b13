"""A worker process: its garbage collections, and its end when Spark needs no more rows."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyspark.daemon
import pytest

from tests.spark.support.waiting import until

SECRET = "of this test"
FAILS_LOUDLY = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"  # unknown to Spark 4.0
# A worker that writes as that of Spark does: the daemon imports the module of its first argument.
WORKER = """
import sys
from pumphouse.spark.worker import end_quietly_without_consumer
from pyspark.util import handle_worker_exception

def main(infile, outfile):
    if QUIET:
        end_quietly_without_consumer()
    try:
        while True:
            outfile.write(bytes(100_000))
    except BaseException as error:
        handle_worker_exception(error, outfile)
        sys.exit(-1)
"""
SCRIPT = """
import gc
import pyarrow
from pumphouse.spark.worker import freeze_imported_modules
assert gc.get_freeze_count() == 0
freeze_imported_modules()
frozen = gc.get_freeze_count()
later = [[] for _ in range(1000)]
freeze_imported_modules()
print(frozen, gc.get_freeze_count(), len(gc.get_objects()))
import pandas
freeze_imported_modules()
print(gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_imported_modules_are_frozen_after_the_task_that_imports_them() -> None:
    # In a separate process, so that the objects of the test run are not frozen.
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    frozen, frozen_later, examined, with_pandas, examined_later = map(int, result.stdout.split())
    assert frozen > 5_000
    assert frozen_later <= frozen  # later objects were not added
    assert examined < frozen  # the objects that the daemon's collector examines after every task
    assert with_pandas > frozen + 5_000  # a later task has imported more
    assert examined_later < frozen


@contextmanager
def daemon(folder: Path, quiet: bool) -> Iterator[subprocess.Popen[bytes]]:
    """The process of Spark that forks the workers."""
    (folder / "pyspark_writer.py").write_text(f"QUIET = {quiet}\n{WORKER}")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
        "PYTHON_WORKER_FACTORY_SECRET": SECRET,
        FAILS_LOUDLY: "1",  # the default of Spark
    }
    with subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", "pyspark_writer"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield process


def read_int(stream: IO[bytes]) -> int:
    (number,) = struct.unpack("!i", stream.read(4))
    return int(number)


def read_and_close(port: int) -> int:
    """Read from a new worker as Spark does, and close the socket. Returns its process id."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        stream = connection.makefile("rb")
        process = read_int(stream)
        connection.sendall(struct.pack("!i", len(SECRET)) + SECRET.encode())
        assert stream.read(read_int(stream)) == b"ok"
        assert stream.read(1_000_000) == bytes(1_000_000)
        stream.close()
    return process


@pytest.mark.parametrize("quiet", [True, False])
def test_a_worker_that_still_writes_when_spark_has_enough_rows_ends_quietly(
    tmp_path: Path, quiet: bool
) -> None:
    with daemon(tmp_path, quiet) as started:
        assert started.stdout is not None
        worker = read_and_close(read_int(started.stdout))
        until(lambda: not Path(f"/proc/{worker}").exists())
        _, errors = started.communicate(timeout=60)
    # Without our code the daemon prints why its worker could not write.
    is_shown = not quiet and FAILS_LOUDLY in Path(pyspark.daemon.__file__).read_text()
    assert (b"Traceback" in errors) is is_shown
    assert (b"BrokenPipeError" in errors or b"ConnectionResetError" in errors) is is_shown

"""A Spark session set up as Python sources want it.

    from pumphouse.spark import session
    spark = session("my job")

Every setting may be overridden; each has its reason below.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pumphouse.errors import PumphouseError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMOTE = "SPARK_REMOTE"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit has started the JVM, and then us
JAVA_MIN = 17
JAVA_ANSWERS_S = 30.0
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

SETTINGS = {
    # Some 40 ms less per task than over TCP: most of what a small task costs.
    "spark.python.unix.domain.socket.enabled": "true",
    # State larger than memory, and small snapshots.
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    # A task that runs twice at once would evict its own readers.
    "spark.speculation": "false",
    # On a busy machine a worker may need longer than the usual 15 s to start.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
# On one machine, also.
LOCAL_SETTINGS = {
    # The default of 200 is for clusters: with two cores it is all overhead.
    "spark.sql.shuffle.partitions": "8",
    # Names of the machine need not resolve, and nobody else need reach us.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


class JavaMissing(PumphouseError):
    """Spark needs Java, and there is none, or one that is too old."""


def session(
    name: str = "pumphouse",
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A new session, or the one there is; `settings` go before ours.

    Without a `master` it runs where spark-submit or SPARK_REMOTE say, else on this machine.
    """
    given = dict(settings or {})
    if master is None and REMOTE in os.environ:
        return build(name, None, given)  # the server has been set up by whoever started it
    find_java()
    if SUBMITTED not in os.environ:
        master = master or "local[*,4]"  # four tries of a task, as on a cluster; `local[*]` has one
        # Workers are other processes: without this they are whatever `python3` means on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return build(name, master, {**settings_for(master), **given})


def settings_for(master: str | None) -> dict[str, str]:
    """What a session is set up with, by where it runs; None is where spark-submit says."""
    local = master is not None and master.startswith("local")
    return {**SETTINGS, **(LOCAL_SETTINGS if local else {})}


def build(name: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def find_java() -> int:
    """The version of Java that Spark will use; JavaMissing says how to get one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, and there is none" if home else "there is none"
        raise JavaMissing(f"Spark needs Java {JAVA_MIN} or newer: {where}. {how_to_get_it()}")
    version = version_of(java)
    if version is None or version < JAVA_MIN:
        raise JavaMissing(
            f"Spark needs Java {JAVA_MIN} or newer, and {java} is {version or 'unknown'}."
            f" {how_to_get_it()}"
        )
    return version


def version_of(java: str) -> int | None:
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWERS_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(said.stderr)


def parse_version(said: str) -> int | None:
    """The major version: `17.0.15` is 17, and `1.8.0` is 8."""
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def how_to_get_it() -> str:
    return (
        "On Debian or Ubuntu: apt install openjdk-17-jre-headless. Elsewhere install a JDK and set "
        "JAVA_HOME"
    )

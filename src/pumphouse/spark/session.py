"""Makes a Spark session with settings that suit Python data sources.

    from pumphouse.spark import session
    spark = session("my job")

Every setting can be overridden.
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
from weakref import WeakKeyDictionary

from pumphouse.errors import OptionError, PumphouseError
from pumphouse.spark.driver.secrets import RESOLVER_SETTING, RESOLVER_VARIABLE
from pumphouse.spark.options import alias_variable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pumphouse.spark.lag.known_positions import Lag
    from pumphouse.spark.lag.metrics import QueryMetricsListener

CONNECTION_SETTING = re.compile(r"spark\.pumphouse\.(?P<alias>[^.]+)\.connectionString")
REMOTE = "SPARK_REMOTE"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit has started the JVM, and then this process
JAVA_MIN = 17
JAVA_VERSION_S = 30.0
INSTALL_JAVA = (
    "On Debian or Ubuntu: apt install openjdk-17-jre-headless. Elsewhere install a JDK and set "
    "JAVA_HOME"
)
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

SETTINGS = {
    # About 40 ms less per task than TCP: most of the cost of a small task.
    "spark.python.unix.domain.socket.enabled": "true",
    # Spark passes filters to the source, for the option pushFilters.
    "spark.sql.python.filterPushdown.enabled": "true",
    # State larger than memory, and small snapshots.
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    # Two attempts of one task at the same time would evict each other's readers.
    "spark.speculation": "false",
    # On a loaded machine a worker may need longer than the default of 15 s to start.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
# In addition, on one machine.
LOCAL_SETTINGS = {
    # The default of 200 suits clusters: on two cores it is overhead.
    "spark.sql.shuffle.partitions": "8",
    # The name of the machine need not resolve, and no other machine connects.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


# One per session. Spark holds the listener as long as its session.
_LISTENERS: WeakKeyDictionary[SparkSession, QueryMetricsListener] = WeakKeyDictionary()


class JavaMissing(PumphouseError):
    """Java is missing, or older than Spark needs."""


def session(
    name: str = "pumphouse",
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    metrics: bool | None = None,
) -> SparkSession:
    """A new session, or the active one; `settings` override those of this module.

    Without `master`, Spark uses that of spark-submit or SPARK_REMOTE, or else this machine.
    A listener measures the lag of all streaming queries, see `lags`. It records metrics if they can
    be read: after `serve_metrics()`, or with a MeterProvider of the application. `metrics=False`
    leaves it out, and `metrics=True` adds it to a session of Spark Connect too.
    """
    spark = build_session(name, master, dict(settings or {}))
    if metrics or (metrics is None and master_is_here()):
        add_listener(spark)
    return spark


def lags(spark: SparkSession) -> list[Lag]:
    """The last lag of each streaming query in each hub, measured by the listener of `session`."""
    from pumphouse.spark.versions.features import LAG, require

    require(LAG, "lags")
    listener = _LISTENERS.get(spark)
    return [] if listener is None else list(listener.lags.values())


def master_is_here() -> bool:
    """Whether this process is the driver, and not a client of Spark Connect."""
    return REMOTE not in os.environ


def build_session(name: str, master: str | None, given: dict[str, str]) -> SparkSession:
    take_connections(given)
    if master is None and REMOTE in os.environ:
        return build(name, None, given)  # the server has its own settings
    find_java()
    if SUBMITTED not in os.environ:
        # Four attempts for each task, as on a cluster; `local[*]` has one.
        master = master or "local[*,4]"
        # Otherwise worker processes run the first `python3` of the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return build(name, master, {**settings_for(master), **given})


def take_connections(given: dict[str, str]) -> None:
    """Move our settings into the environment, which Spark inherits.

    These are `spark.pumphouse.ALIAS.connectionString` and `spark.pumphouse.secrets`. Spark shows
    its settings on its page and to every job, and does not pass them to a Python source.
    """
    for key, variable in [(key, variable_of(key)) for key in given]:
        if variable is None:
            continue
        value = given.pop(key)
        if os.environ.get(variable) != value and is_spark_running():
            raise OptionError(
                f"{key} has no effect: Spark runs already, with its own environment. Set it in the "
                f"first session of the process, or set {variable} before Spark starts"
            )
        os.environ[variable] = value


def variable_of(setting: str) -> str | None:
    """The environment variable of a setting of ours; None for a setting of Spark."""
    if setting == RESOLVER_SETTING:
        return RESOLVER_VARIABLE
    match = CONNECTION_SETTING.fullmatch(setting)
    return None if match is None else alias_variable(match["alias"])


def is_spark_running() -> bool:
    from pyspark.sql import SparkSession

    return SUBMITTED in os.environ or SparkSession.getActiveSession() is not None


def add_listener(spark: SparkSession) -> None:
    """Measure the streaming queries of this session; at most one listener."""
    from pumphouse.spark.lag.metrics import QueryMetricsListener

    if _LISTENERS.get(spark) is None:
        _LISTENERS[spark] = QueryMetricsListener()
        spark.streams.addListener(_LISTENERS[spark])


def settings_for(master: str | None) -> dict[str, str]:
    """The settings for a master. `master` is None if spark-submit has chosen it."""
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
    """The version of Java that Spark will use; JavaMissing if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"not found in JAVA_HOME={home}" if home else "not found"
        raise JavaMissing(f"Spark needs Java {JAVA_MIN} or newer: {where}. {INSTALL_JAVA}")
    version = version_of(java)
    if version is None or version < JAVA_MIN:
        raise JavaMissing(
            f"Spark needs Java {JAVA_MIN} or newer: {java} has version {version or 'unknown'}."
            f" {INSTALL_JAVA}"
        )
    return version


def version_of(java: str) -> int | None:
    try:
        completed = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(completed.stderr)


def parse_version(output: str) -> int | None:
    """The major version: `17.0.15` is 17, and `1.8.0` is 8."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None

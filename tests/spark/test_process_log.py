"""Log lines of the Python processes that Spark starts, and their end without a consumer."""

from __future__ import annotations

import subprocess
import sys

WARN = """
import logging
from pumphouse.logs import line
from pumphouse.spark.process_log import describe_process
describe_process(query="7f", hub="sensors", group=None)
describe_process(query="8a", hub="sensors", group=None)  # the next task
log = logging.getLogger("pumphouse.spark")
log.warning("%s", line("events_skipped", partition="0", first=3))
log.warning("%s", line("hub_unreachable", hub="sensors"))
log.info("not shown")
"""
CONFIGURED = "import logging; logging.basicConfig(format='mine %(message)s')" + WARN
END = """
import sys, traceback
from pumphouse.spark.worker import end_quietly_without_consumer
sys.modules["pyspark.daemon"] = sys
end_quietly_without_consumer()
for error in (BrokenPipeError("gone"), ValueError("other")):
    try:
        raise error
    except Exception:
        traceback.print_exc()
"""


def errors_of(program: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    return completed.stderr


def test_a_line_has_time_level_query_and_hub() -> None:
    skipped, unreachable = errors_of(WARN).splitlines()
    time, rest = skipped.split(" ", 1)
    assert time.startswith("20")
    assert time.endswith("Z")
    assert rest == (
        "WARNING pumphouse.spark events_skipped partition=0 first=3 query=8a hub=sensors"
    )
    assert unreachable.endswith("hub_unreachable hub=sensors query=8a")


def test_the_logging_of_the_application_is_left_alone() -> None:
    assert errors_of(CONFIGURED).splitlines()[0] == "mine events_skipped partition=0 first=3"


def test_a_worker_without_a_consumer_ends_without_a_traceback() -> None:
    errors = errors_of(END)
    assert "BrokenPipeError" not in errors
    assert "ValueError: other" in errors

"""The form of log lines in the Python processes that Spark starts.

Logging is not configured there: a warning would be printed as a bare text among those of other
queries. So each line gets its time, level and logger, and the query and hub of the process.

    2026-11-18T20:11:47 WARNING pumphouse.spark events_skipped partition=0 … query=… hub=sensors

    read_task, open_driver -> describe_process -> handler of the logger `pumphouse`
                              ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import logging
import time

from pumphouse.logs import line

LOGGER = "pumphouse"
FORMAT, TIME_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%SZ"


class ProcessFormatter(logging.Formatter):
    """Adds what the process works for to every line, unless the line has it."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__(FORMAT, TIME_FORMAT)
        self.fields: dict[str, str] = {}

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        added = {name: value for name, value in self.fields.items() if f" {name}=" not in text}
        return str(line(text, **added)) if added else text


formatter = ProcessFormatter()


def describe_process(**fields: str | None) -> None:
    """Add these fields to the log lines of this process, unless its logging is configured."""
    formatter.fields = {name: value for name, value in fields.items() if value}
    logger = logging.getLogger(LOGGER)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(formatter)
        logger.addHandler(handler)

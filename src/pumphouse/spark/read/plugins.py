"""The function of the user that receives the measurements of each task (metricPlugin).

metricPlugin -> find_plugin, when the query starts -> OptionError
read_task -> call_plugin -> your function(TaskReport)
             ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

from pumphouse.errors import OptionError
from pumphouse.logs import line
from pumphouse.spark.lag.task_reports import TaskReport

log = logging.getLogger("pumphouse.spark")

FIX_PLUGIN = "fix the plugin, or leave metricPlugin out"


def find_plugin(name: str) -> Callable[[TaskReport], Any] | None:
    """The function; OptionError if it cannot be imported or called. None without a name."""
    if not name:
        return None
    module, _, function = name.partition(":")
    try:
        plugin = getattr(importlib.import_module(module), function)
    except Exception as failed:
        raise OptionError(
            f"invalid metricPlugin {name!r}: {type(failed).__name__}: {failed}; the module must be "
            "importable by the driver and by the executors"
        ) from failed
    if not callable(plugin):
        raise OptionError(f"invalid metricPlugin {name!r}: {function} is not callable")
    found: Callable[[TaskReport], Any] = plugin
    return found


def call_plugin(name: str, report: TaskReport) -> None:
    """Call the user's function; its errors are logged and do not fail the task."""
    try:
        plugin = find_plugin(name)
        if plugin is not None:
            plugin(report)
    except Exception as failed:
        event = line(
            "plugin_failed", option="metricPlugin", plugin=name, error=failed, todo=FIX_PLUGIN
        )
        log.warning("%s", event, exc_info=True)

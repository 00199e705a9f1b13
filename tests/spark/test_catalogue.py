"""The catalogue of options agrees with docs/spark.md and with itself."""

from __future__ import annotations

import re

from pumphouse.spark.catalogue import (
    BATCH,
    BY_NAME,
    CATALOGUE,
    FIXED,
    READ,
    REMOVED_BY_NAME,
    STREAM,
    WRITE,
)
from pumphouse.spark.options import EVENTS_PER_PARTITION
from scripts.spark_options import PAGE, write_tables


def test_the_option_tables_of_the_documentation_are_up_to_date() -> None:
    """`.venv/bin/python scripts/spark_options.py` writes them."""
    text = PAGE.read_text()
    assert write_tables(text) == text


def test_options_in_the_examples_of_the_documentation_exist() -> None:
    known = {option.name for option in CATALOGUE} | {"checkpointLocation"}
    assert set(re.findall(r"\.option\(\"([A-Za-z.]+)\"", PAGE.read_text())) <= known


def test_every_option_has_a_help_text_and_known_cases() -> None:
    for option in CATALOGUE:
        assert option.help, option.name
        assert set(option.default_for) <= {STREAM, BATCH, FIXED, READ, WRITE}, option.name
        assert option.default in ("", *option.words) or not option.words, option.name


def test_the_help_text_names_the_default_that_depends_on_the_partitions() -> None:
    (limit,) = (option for option in CATALOGUE if option.name == "maxEventsPerTrigger")
    assert f"{EVENTS_PER_PARTITION:,}" in limit.help


SCALA_OPTIONS = """connectionString consumerGroup startingPosition startingPositions endingPosition
    endingPositions maxEventsPerTrigger maxRatePerPartition maxRatesPerPartition receiverTimeout
    maxSilentTime operationTimeout prefetchCount threadPoolSize useExclusiveReceiver
    useSimulatedClient metricPlugin throttlingStatusPlugin slowPartitionAdjustment
    maxAcceptableBatchReceiveTime useAadAuth aadAuthCallback AadAuthCallbackParams
    partitionPreferredLocationStrategy DynamicPartitionDiscovery"""


def test_every_option_of_the_scala_connector_is_accepted_or_names_its_replacement() -> None:
    section = PAGE.read_text().partition("## From the Scala connector")[2].partition("\n## ")[0]
    for name in SCALA_OPTIONS.split():
        assert (name.lower() in BY_NAME) != (name.lower() in REMOVED_BY_NAME), name
        assert re.search(rf"^\|.*`(eventhubs\.)?{name}`", section, re.MULTILINE), name


def test_the_commands_that_show_what_holds_name_tests() -> None:
    commands = re.findall(r"`pytest (?:-m cluster )?(\S+\.py)(?: -k (\w+))?`", PAGE.read_text())
    assert len(commands) >= 9
    for path, words in commands:
        tests = re.findall(r"^def (test_\w+)", (PAGE.parents[1] / path).read_text(), re.MULTILINE)
        assert any((words or "") in name for name in tests), (path, words)

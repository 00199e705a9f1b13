"""The catalogue of options agrees with docs/spark.md and with itself."""

from __future__ import annotations

import re

from pumphouse.spark.catalogue import BATCH, CATALOGUE, FIXED, READ, STREAM, WRITE
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

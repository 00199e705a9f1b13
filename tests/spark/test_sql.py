"""Every statement of docs/sql.md runs, and what Spark does not pass is refused with advice."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pumphouse.errors import OptionError
from pumphouse.spark.session import take_connections
from tests.spark.conftest import Hub
from tests.spark.queries import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

DOCUMENT = Path(__file__).parents[2] / "docs" / "sql.md"


def statements() -> list[str]:
    blocks = re.findall(r"^```sql\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    return [text.strip() for block in blocks for text in block.split(";") if text.strip()]


def test_every_statement_runs(spark: SparkSession, hub: Hub) -> None:
    hub.embedded.create_hub("activity", 4)
    activity = Hub(hub.embedded, "activity")
    hub.send(*numbered(5, "open "), partition="0")
    hub.send(*numbered(7, "closed "), partition="1")
    results = []
    for statement in statements():
        for alias, of_alias in (("sensors", hub), ("activity", activity)):
            statement = statement.replace(
                f"alias '{alias}'", f"connectionString '{of_alias.connection}'"
            )
        results.append(spark.sql(statement).collect())
    rows = [result for result in results if result]
    assert [(row.partition, row.events) for row in sorted(rows[0])] == [("0", 5), ("1", 7)]
    assert [row.text for row in rows[1]] == numbered(5, "open ")
    assert rows[2][0][0] == 12  # the last 15 minutes
    assert rows[3][0][0] == 5 + 12  # in the copy
    with pytest.raises(Exception, match="a hub cannot be overwritten"):
        spark.sql("INSERT OVERWRITE activity SELECT * FROM sensors")


def test_a_table_without_its_options_is_refused_with_the_form_that_works(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE events USING eventhubs OPTIONS (connectionString '{hub.connection}')")
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT count(*) FROM events").collect()
    finally:
        spark.sql("DROP TABLE events")


def test_a_connection_string_of_a_session_is_moved_to_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable = "PUMPHOUSE_CONNECTION_MY_HUB"
    monkeypatch.setenv(variable, "")
    sessions = sys.modules["pumphouse.spark.session"]
    settings = {"spark.pumphouse.my-hub.connectionString": "secret", "spark.ui.port": "1"}
    monkeypatch.setattr(sessions, "is_spark_running", lambda: True)
    with pytest.raises(OptionError, match=f"Spark runs already.*{variable}"):
        take_connections(dict(settings))
    monkeypatch.setattr(sessions, "is_spark_running", lambda: False)
    take_connections(settings)
    assert settings == {"spark.ui.port": "1"}
    assert os.environ[variable] == "secret"

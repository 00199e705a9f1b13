"""Every statement of docs/sql.md runs, and what Spark does not pass is refused with advice."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pumphouse.errors import OptionError
from pumphouse.spark.session import take_connections
from pumphouse.spark.versions.features import LIMITS
from tests.spark.conftest import Hub
from tests.spark.support.queries import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

DOCUMENT = Path(__file__).parents[3] / "docs" / "sql.md"


def blocks(language: str) -> list[str]:
    fence = rf"^```{language}\n(.*?)^```"
    return re.findall(fence, DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)


def statements() -> list[str]:
    return [text.strip() for block in blocks("sql") for text in block.split(";") if text.strip()]


@pytest.fixture
def hubs(hub: Hub) -> dict[str, Hub]:
    hub.embedded.create_hub("activity", 4)
    return {"sensors": hub, "activity": Hub(hub.embedded, "activity")}


@pytest.fixture
def catalog(spark: SparkSession) -> Iterator[None]:
    """Drops what the page creates, and views that other pages have left in the session."""
    for view in ("sensors", "recent", "activity"):
        spark.catalog.dropTempView(view)
    yield
    spark.sql("DROP VIEW IF EXISTS door_events")
    for table in ("events", "more_events"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def with_connections(text: str, hubs: dict[str, Hub]) -> str:
    """The text with connection strings: Spark runs already, with its own environment."""
    for alias, hub in hubs.items():
        for before, after in (("alias '", "'"), ("alias = '", "'"), ('"alias", "', '"')):
            named = before.replace("alias", "connectionString")
            text = text.replace(f"{before}{alias}{after}", f"{named}{hub.connection}{after}")
    return text


@pytest.mark.needs(LIMITS)
@pytest.mark.usefixtures("catalog", "queries")
def test_every_statement_and_program_runs(
    spark: SparkSession, hubs: dict[str, Hub], tmp_path: Path
) -> None:
    hubs["sensors"].send(*numbered(5, "open "), partition="0")
    hubs["sensors"].send(*numbered(7, "closed "), key="door")
    results = [spark.sql(with_connections(text, hubs)).collect() for text in statements()]
    rows = [result for result in results if result]
    assert sorted(row.events for row in rows[0])[-1] in (7, 12)  # the key may choose partition 0
    assert [row.text for row in rows[1] if row.partitionKey is None] == numbered(5, "open ")
    counts = [row[0][0] for row in rows[2:]]
    # The last 15 minutes twice, those with a key, and the copies.
    assert counts == [12, 12, 7, 5, 5 + 12 + 12 + 1]
    with pytest.raises(Exception, match="a hub cannot be overwritten"):
        spark.sql("INSERT OVERWRITE activity SELECT * FROM sensors")
    (program,) = blocks("py")
    names: dict[str, Any] = {"spark": spark, "folder": str(tmp_path)}
    exec(with_connections(program, hubs), names)
    assert names["doors"].isStreaming
    assert len(hubs["activity"].all_events()) == 30 + 12 + 2


REFUSED = (
    # statement, error; {} has the options of the hub
    ("SELECT count(*) FROM events", r"no hub is given.*WITH \(alias = 'sensors'\)"),
    ("CREATE TABLE copy USING eventhubs OPTIONS ({}) AS SELECT X'00' AS body", "no hub is given"),
    ("INSERT INTO events WITH ({}) (body) VALUES ('text')", "CANNOT_SAFELY_CAST"),
    ("INSERT INTO events (body) WITH ({}) SELECT X'00'", "PARSE_SYNTAX_ERROR"),
    ("SELECT * FROM eventhubs.`sensors`", "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"),
    ("SELECT * FROM eventhubs(alias => 'sensors')", "UNRESOLVABLE_TABLE_VALUED_FUNCTION"),
    ("TRUNCATE TABLE events", "does not support truncates"),
    ("DELETE FROM events", "does not support deletes"),
)


@pytest.mark.needs(LIMITS)
@pytest.mark.usefixtures("catalog", "queries")
def test_what_spark_refuses(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    """As the last table of the page says."""
    options = f"connectionString '{hub.connection}'"
    spark.sql(f"CREATE TABLE events USING eventhubs OPTIONS ({options})")
    for statement, error in REFUSED:
        with pytest.raises(Exception, match=error):
            spark.sql(statement.format(options.replace(" '", " = '"))).collect()
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW batch USING eventhubs OPTIONS ({options})")
    rows = spark.sql("SELECT X'00' AS body")
    given = {"connectionString": hub.connection, "checkpointLocation": str(tmp_path)}
    stream = spark.readStream.format("eventhubs").options(**given).load().select("body")

    def save(mode: str) -> None:
        rows.write.format("eventhubs").options(**given).mode(mode).save()

    to_table = rows.writeTo("events").options(**given)
    for action, error in (
        (lambda: spark.readStream.table("batch"), "is not a temp view of streaming"),
        (lambda: stream.writeStream.options(**given).toTable("batch"), "doesn't support streaming"),
        (lambda: save("errorifexists"), 'cannot be written in the "ErrorIfExists" mode'),
        (lambda: save("ignore"), 'cannot be written in the "Ignore" mode'),
        (to_table.overwritePartitions, "does not support dynamic overwrite|cannot be overwritten"),
    ):
        with pytest.raises(Exception, match=error):
            action()
    assert hub.all_events() == []


@pytest.mark.needs(LIMITS)
@pytest.mark.usefixtures("catalog", "queries")
def test_a_stream_without_a_hub_fails_with_the_form_that_works(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.sql("CREATE TABLE events USING eventhubs")
    stream = spark.readStream.table("events").writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match=r"OptionError: no hub is given.*\.option\(\"alias\""):
        query.awaitTermination(60)


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

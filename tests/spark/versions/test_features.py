"""The features of each version of Spark, and how a missing one is refused."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from pumphouse.spark.source import StreamReader
from pumphouse.spark.versions.features import (
    FEATURES,
    SHARING,
    Feature,
    SparkTooOld,
    has,
    require,
)
from tests.spark.conftest import Hub
from tests.spark.support.readers import SCHEMA, options_for

GUIDE = Path(__file__).parents[3] / "docs" / "spark.md"
NEVER = Feature("flights to the moon", "9.0", "pyspark.sql.datasource:Rocket", "refused")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_feature_is_present_from_its_version_on(feature: Feature) -> None:
    assert has(feature) == (numbers(pyspark.__version__) >= numbers(feature.since))


def test_the_guide_has_the_table_of_features() -> None:
    page = GUIDE.read_text()
    rows = "\n".join(feature.table_row() for feature in FEATURES)
    assert f"|---|---|---|\n{rows}\n\n" in page


def test_a_missing_feature_is_refused_in_one_sentence() -> None:
    with pytest.raises(SparkTooOld) as error:
        require(NEVER, "a flight")
    expected = f"a flight needs Spark 9.0 or newer, and this is Spark {pyspark.__version__}"
    assert str(error.value) == expected


def test_a_present_feature_is_not_refused() -> None:
    for feature in filter(has, FEATURES):
        require(feature, "a query")


@pytest.mark.lacks(SHARING)
def test_a_query_that_shares_its_group_is_refused(hub: Hub) -> None:
    given = options_for(hub, assignment="steady", store="sqlite:leases.db")
    with pytest.raises(SparkTooOld, match=r"assignment=steady needs Spark 4\.2"):
        StreamReader(given, SCHEMA)

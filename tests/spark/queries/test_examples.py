"""The programs and the notebook of examples/ run in the session of the tests, and print what they
promise.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

from pumphouse.spark.versions.features import LIMITS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
    pytest.mark.needs(LIMITS),
]

EXAMPLES = Path(__file__).parents[3] / "examples" / "spark"
PRINTED = {
    "delta_lake.py": "100 rows, last batch 2\n",
    "join_two_hubs.py": "['home-2']\n",
    "stateful_processing.py": "[('home-2', 6.0)]\n",
    "windowed_aggregation.py": "home-1 09:00 2\nhome-1 09:01 1\nhome-2 09:00 1\n",
}


def test_every_example_is_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_an_example_runs(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text = (EXAMPLES / name).read_text()
    assert len(text.splitlines()) < 60
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out == PRINTED[name]
    assert spark.range(1).count() == 1  # the session still runs


@pytest.mark.usefixtures("queries")
def test_the_notebook_runs(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    source = EXAMPLES.with_suffix(".ipynb").read_text()
    notebook: Any = nbformat.reads(source, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    shell: Any = InteractiveShell()  # type: ignore[no-untyped-call]
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        shell.run_cell(cell.source.replace("UPDATES = 10", "UPDATES = 1")).raise_error()
    printed = capsys.readouterr().out
    assert "Figure(" in printed
    assert "eventhubs[hub=sensors" in printed
    assert {*shell.user_ns["table"]["home"]} == {"home-0", "home-1", "home-2"}
    assert spark.range(1).count() == 1

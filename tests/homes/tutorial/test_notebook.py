"""The notebook examples/homes.ipynb runs in a kernel, and shows the chart of a day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from pumphouse.homes.simulator.incidents import KINDS
from pumphouse.spark.versions.features import STATE

pytestmark = [
    pytest.mark.xdist_group("documents"),
    pytest.mark.timeout(600),
    pytest.mark.needs(STATE),
]

NOTEBOOK = Path(__file__).parents[3] / "examples" / "homes.ipynb"
CELL_S = 500


def cells_with_outputs() -> list[Any]:
    notebook: Any = nbformat.reads(NOTEBOOK.read_text(), as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    client: Any = NotebookClient(notebook, timeout=CELL_S)
    client.execute()  # raises if a cell raises
    return list(notebook.cells)


def shown(cell: Any) -> dict[str, str]:
    """What the last expression of a cell shows, by MIME type."""
    (result,) = (output.data for output in cell.outputs if output.output_type == "execute_result")
    return dict(result)


def test_ten_cells_lead_from_nothing_to_a_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cells = cells_with_outputs()
    assert len(cells) == 10
    assert len(shown(cells[7])["image/png"]) > 10_000
    header, *incidents = shown(cells[9])["text/html"].split("<tr")[1:]
    assert "minutes to the alert" in header
    for kind in KINDS:
        assert any(f"<td>{kind}</td>" in row for row in incidents)
    assert not any("NaN" in row for row in incidents)  # every incident has its alert

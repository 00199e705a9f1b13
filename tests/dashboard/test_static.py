"""The static files of the page agree with the server."""

from __future__ import annotations

import re

import pytest

from pumphouse.dashboard.monitors.stages import STAGE_COLUMNS
from pumphouse.dashboard.server.routes import STATIC
from pumphouse.dashboard.views.fleet import COLUMNS
from pumphouse.dashboard.views.table import TableColumn


@pytest.mark.parametrize(
    ("file", "start", "columns"),
    [
        ("ownership_table.js", "  return {\n", COLUMNS),
        ("stages_table.js", "export const STAGE_CELLS = {\n", STAGE_COLUMNS),
    ],
)
def test_every_column_has_a_cell(file: str, start: str, columns: tuple[TableColumn, ...]) -> None:
    text = (STATIC / file).read_text("utf-8").partition(start)[2]
    indent = re.match(" *", text)
    assert indent is not None
    body = text[: text.index(f"\n{indent[0][2:]}}};")]
    cells = re.findall(rf"^{indent[0]}(\w+): ", body, re.MULTILINE)
    assert cells == [column.name for column in columns]


def test_every_stylesheet_and_script_is_used() -> None:
    """A file that neither the document nor another script names is dead."""
    files = [file for file in STATIC.iterdir() if file.is_file()]
    texts = {file.name: file.read_text("utf-8") for file in files if file.name != "favicon.svg"}
    for name in texts:
        others = "".join(text for other, text in texts.items() if other != name)
        assert name == "index.html" or f"/{name}" in others

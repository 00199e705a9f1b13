"""The description of a table column, which the page turns into header, tooltip and cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a table. The page has a function with the same `name` that fills its cells."""

    name: str
    title: str
    meaning: str
    numeric: bool = True


def columns_json(columns: Iterable[TableColumn]) -> list[dict[str, Any]]:
    return [asdict(column) for column in columns]

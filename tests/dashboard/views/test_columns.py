"""Activity bodies as columns."""

from __future__ import annotations

import numpy as np
import pytest

from pumphouse.dashboard.views import home_states as home_states
from pumphouse.dashboard.views.columns import read_columns
from tests.dashboard.views.home_bodies import body


def test_bodies_become_columns() -> None:
    columns = read_columns([body(7, "motion", 1, 3), body(8, "smoke", 0, None, fault="stuck")])
    assert columns.home.tolist() == [7, 8]
    assert columns.kind.tolist() == [0, 4]
    assert columns.value[0] == 3
    assert np.isnan(columns.value[1])
    assert columns.faults == {1: "stuck"}
    assert columns.invalid == 0


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"1,2",
        body(5) + b"," + body(6),
        b"[]",
        b"null",
        b'{"v":1}',
        body().replace(b"h000042", b"x000042"),
        body().replace(b'"door"', b'"roof"'),
        body().replace(b'"at":', b'"at":1e400,"was":'),
        b"\xff\xfe",
        body().replace(b'"at":', b'"at":99999999999999999999,"was":'),
        body().replace(b'"battery":87', b'"battery":[87]'),
    ],
)
def test_an_invalid_body_is_skipped_alone(broken: bytes) -> None:
    columns = read_columns([body(1), broken, body(2)])
    assert columns.home.tolist() == [1, 2]
    assert columns.invalid == 1

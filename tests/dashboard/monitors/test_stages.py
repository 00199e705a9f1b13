"""The status file of the Spark stages, as the page reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pumphouse.dashboard.monitors.stages import read_stages, stages_from

# fmt: off
STAGE = {"state": "running", "restarts": 1, "error": None, "batch": 4, "batch_ms": 812,
         "input_rate": 8333.0, "processed_rate": 21000.0, "rows": 9000, "lag_events": 0,
         "lag_s": None, "state_rows": 5, "state_bytes": 2048,
         "counts": {"malformed": 3, "bad": 3, "x": "y"}}


def test_the_status_file_becomes_a_list_of_stages() -> None:
    result = stages_from(json.dumps({"v": 1, "at": 5000, "stages": {"sift": STAGE}}).encode(), 6000)
    (stage,) = result["stages"]
    assert (stage["name"], stage["state"], stage["lag_events"]) == ("sift", "running", 0)
    assert stage["lag_s"] is None
    assert stage["counts"] == {"malformed": 3, "bad": 3}
    assert stage["counted"] == [("malformed", 3)]
    assert (result["old"], result["why"]) == (False, "")
    assert stages_from(b'{"at": 0, "stages": {}}', 121_000)["old"]


@pytest.mark.parametrize(
    ("taken", "counts", "lag"),
    [
        ({"sensors": 70}, {"sensors": 100}, (30, None)),
        ({"activity": 70, "alerts": 3}, {"activity": 100, "alerts": 4}, (31, None)),
        ({"sensors": 70}, {"sensors": 60}, (0, None)),  # counted before the batch ended
        # Not known to the page: the lag of the file, when the batch was planned.
        ({"activity": 70, "alerts": 3}, {"activity": 100}, (5, 1.5)),
        ({"sensors": 70}, {}, (5, 1.5)),
        ({}, {"sensors": 100}, (5, 1.5)),
        ({"sensors": "x"}, {"sensors": 100}, (5, 1.5)),
        ([7], {"sensors": 100}, (5, 1.5)),
    ],
)
def test_the_lag_of_a_stage_counts_the_batch_that_runs(
    taken: object, counts: dict[str, int], lag: tuple[int, float | None]
) -> None:
    fields = STAGE | {"lag_events": 5, "lag_s": 1.5, "taken": taken}
    text = json.dumps({"v": 1, "at": 5000, "stages": {"sift": fields}}).encode()
    (stage,) = stages_from(text, 6000, counts)["stages"]
    assert (stage["lag_events"], stage["lag_s"]) == lag


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"at":1}', b'{"at":1,"stages":[1]}', b'{"stages":{}}',
     b'{"at":1,"stages":{"a":7}}', b"\xff"],
)  # fmt: skip
def test_an_unknown_status_file_gives_a_reason(text: bytes) -> None:
    result = stages_from(text, 0)
    assert result["stages"] == []
    assert "unknown format" in result["why"]


def test_an_invalid_number_is_unknown() -> None:
    text = b'{"at":1,"stages":{"a":{"batch":"x","lag_s":NaN,"restarts":true}}}'
    (stage,) = stages_from(text, 0)["stages"]
    assert (stage["batch"], stage["lag_s"], stage["restarts"]) == (None, None, None)
    json.dumps(stage, allow_nan=False)


def test_a_missing_status_file_gives_a_reason(tmp_path: Path) -> None:
    assert "yet" in read_stages(tmp_path / "status.json", 0)["why"]
    assert "cannot be read" in read_stages(tmp_path, 0)["why"]

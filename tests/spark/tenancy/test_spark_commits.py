"""Which batches Spark has committed, read from a checkpoint folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.spark.tenancy.spark_commits import is_committed, local_folder


def test_the_newest_committed_batch_is_found(tmp_path: Path) -> None:
    end = {"sensors": {"0": 5}}
    assert not is_committed(tmp_path, end)
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"sensors":{"0":5}}')
    assert not is_committed(tmp_path, end)
    (tmp_path / "commits" / ".0.crc").write_text("")
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    assert is_committed(tmp_path, end)
    assert not is_committed(tmp_path, {"sensors": {"0": 6}})


@pytest.mark.parametrize(
    ("location", "folder"),
    [("/a b/c", "/a b/c"), ("file:///a%20b", "/a b"), ("hdfs://x/y", None), ("", None)],
)
def test_a_checkpoint_location_on_this_machine_is_a_folder(
    location: str, folder: str | None
) -> None:
    assert local_folder(location) == (None if folder is None else Path(folder))

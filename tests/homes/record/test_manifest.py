"""Merges leave few files and rewrite a row only a few times."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from pumphouse.errors import RecordsDamaged
from pumphouse.homes.record import manifest as manifests
from pumphouse.homes.record.manifest import DataFile, Hour, Manifest, RemovedFile, plan_merges
from pumphouse.homes.schema import DAY_MS, HOUR_MS
from tests.homes.record.rows import START_MS

HUB = "activity"


def file(number: int, rows: int = 100, hour: int = 0) -> DataFile:
    return DataFile(f"f{number}", HUB, START_MS + hour * HOUR_MS, rows, rows * 10)


def sizes(plan: tuple[DataFile, ...]) -> list[int]:
    return [file.rows for file in plan]


def test_the_folder_of_a_file_follows_its_event_time() -> None:
    hour = Hour(HUB, START_MS + 7 * HOUR_MS)
    name = manifests.file_name(hour, 42, "k3f9")
    assert name == "activity/date=2026-10-15/hour=09/000000000042-k3f9.parquet"


@pytest.mark.parametrize(
    ("rows", "merged"),
    [
        ([100] * 15, []),  # not enough of them
        ([100] * 16, [[100] * 16]),
        ([100] * 15 + [5000], []),  # of another size
        ([100] * 16 + [5000], [[100] * 16]),
        ([900_000] * 16, [[900_000] * 2]),  # no more than memory should hold
    ],
)
def test_files_of_the_current_hour_are_merged_in_tiers(
    rows: list[int], merged: list[list[int]]
) -> None:
    files = [file(number, size) for number, size in enumerate(rows)]
    assert [sizes(plan) for plan in plan_merges(files)] == merged


@pytest.mark.parametrize(
    ("rows", "merged"),
    [
        ([100, 200, 300], []),
        ([100, 200, 300, 400], [[100, 200, 300, 400]]),
        ([1, 1, 1, 100_000], []),  # three late rows are no reason to write a hundred thousand
        ([1, 1, 1, 1, 100_000], [[1, 1, 1, 1]]),
        ([20_000, 1, 1, 1, 100_000], []),
        ([20_000, 20_000, 20_000, 100_000], [[20_000, 20_000, 20_000, 100_000]]),
    ],
)
def test_files_of_a_past_hour_are_merged_if_it_is_worth_it(
    rows: list[int], merged: list[list[int]]
) -> None:
    files = [file(number, size) for number, size in enumerate(rows)]
    later = file(99, 1, hour=2)
    assert [sizes(plan) for plan in plan_merges([*files, later])] == merged


def test_files_of_different_hours_or_hubs_are_not_merged() -> None:
    files = [file(number, 100, hour=number % 2) for number in range(30)]
    other = [DataFile(f"a{number}", "alerts", START_MS, 100, 1) for number in range(15)]
    assert plan_merges([*files, *other]) == []


def test_a_day_of_batches_ends_in_few_files_with_few_rewrites() -> None:
    random, manifest = Random(7), Manifest()
    rows_in = rows_out = 0
    for batch in range(24 * 120):  # one each half minute
        hour = batch // 120
        late = [file(batch, random.randrange(1, 30), hour - 1)] if hour and batch % 3 == 0 else []
        new = [file(batch, random.randrange(20_000, 60_000), hour), *late]
        files = [
            DataFile(f"{batch}-{number}", file.hub, file.hour_ms, file.rows, file.bytes)
            for number, file in enumerate(new)
        ]
        rows_in += sum(file.rows for file in files)
        manifest = manifest.with_batch(files, {HUB: {"0": rows_in}})
        for plan in plan_merges(manifest.files):
            total = sum(file.rows for file in plan)
            rows_out += total
            name = f"m{manifest.version}"
            merged = DataFile(name, HUB, plan[0].hour_ms, total, total)
            manifest = manifest.with_merge(merged, plan, now_ms=0)
    assert sum(file.rows for file in manifest.files) == rows_in
    by_hour = Counter(file.hour_ms for file in manifest.files)
    assert max(by_hour.values()) < 40
    assert rows_out < 3 * rows_in


def test_a_manifest_is_decoded_as_it_was_encoded() -> None:
    manifest = Manifest(
        7,
        {HUB: {"0": 9}},
        (file(1),),
        {"activity/2026-10-15": "_days/x.json"},
        (RemovedFile("f0", 5),),
    )
    assert manifests.from_bytes(manifests.to_bytes(manifest)) == manifest


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"v":2}'])
def test_an_invalid_manifest_is_an_error(data: bytes) -> None:
    with pytest.raises(RecordsDamaged):
        manifests.from_bytes(data)


def test_past_days_leave_the_manifest() -> None:
    days = [DataFile(f"f{day}", HUB, START_MS + day * DAY_MS, 1, 1) for day in range(4)]
    manifest = Manifest(files=tuple(days))
    assert manifests.days_to_close(manifest) == ["activity/2026-10-15", "activity/2026-10-16"]
    closed = manifest.with_day("activity/2026-10-15", "_days/a", 0)
    again = closed.with_day("activity/2026-10-15", "_days/b", 5)
    assert again.days == {"activity/2026-10-15": "_days/b"}
    assert again.files == tuple(days[1:])
    assert again.gone == (RemovedFile("_days/a", 5),)

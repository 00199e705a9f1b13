"""The long run: seeds cover every combination, and what is written down can be gone on with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pumphouse.simulation import Scenario, simulate
from pumphouse.simulation.adapters import FACES
from pumphouse.simulation.store import SEMANTICS
from tests.simulation import __main__ as long_run
from tests.simulation.diary import BEGIN, END, Line, put_on_page, read, total, version, write
from tests.simulation.mix import LONG_EVERY, STRATEGIES, TIMINGS, options, scenario, timing


def test_360_seeds_have_met_every_strategy_face_and_store_together() -> None:
    met = {(s.strategy, s.face, s.store) for s in map(scenario, range(1, 361))}
    assert len(met) == len(STRATEGIES) * len(FACES) * len(SEMANTICS)
    sizes = {(s.hosts, s.partitions) for s in map(scenario, range(1, 361))}
    assert {(1, 1), (6, 12)} <= sizes
    assert {timing(seed) for seed in range(1, 361)} == set(TIMINGS)
    assert all(options(name).lease_s >= 3 * options(name).interval_s for name in TIMINGS)


def test_10_000_seeds_are_ten_years() -> None:
    hours = sum(scenario(seed).hours for seed in range(1, 10_001))
    assert hours / (365.25 * 24) > 10
    assert sum(scenario(seed).hours > 24 for seed in range(1, 10_001)) == 10_000 // LONG_EVERY


def test_a_diary_tells_what_was_written_and_leaves_out_what_was_cut_short(tmp_path: Path) -> None:
    diary = tmp_path / "build" / "simulate.jsonl"
    assert read(diary) == {}
    one = Line.of(simulate(Scenario(hosts=2, partitions=2, hours=0.1, seed=10)), "abc")
    write(diary, one)
    write(diary, Line(**{**json.loads(diary.read_text()), "seed": 11, "violations": ["I1 at 3"]}))
    with diary.open("a") as more:
        more.write('{"seed": 12, "hou')
    assert sorted(read(diary)) == [10, 11]
    told = total(read(diary).values(), "abc")
    assert (told.seeds, told.long, told.figures["handled"]) == (2, 1, 2 * one.handled)
    assert told.faults.total() == 2 * sum(one.faults.values())
    assert [line.seed for line in told.broken] == [11]
    assert "seed 11: I1 at 3" in "\n".join(told.told())
    page = put_on_page(f"above {BEGIN} old {END} below", told)
    assert page.startswith(f"above {BEGIN}\nRun so far: 2 of")
    assert page.endswith(f"{END} below")
    assert "1 broke a promise" in page
    assert "2 of the seeds were played with the present version of the code\n(`abc`)" in page
    assert "old" not in page


def test_a_run_goes_on_where_it_was_and_plays_what_was_broken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    diary = tmp_path / "simulate.jsonl"
    result = simulate(Scenario(hosts=1, partitions=1, hours=0.05))
    first = Line.of(result, version())
    write(diary, Line(**{**json.loads(_json(first)), "seed": 1}))
    write(diary, Line(**{**json.loads(_json(first)), "seed": 2, "violations": ["I1 at 3"]}))
    write(diary, Line(**{**json.loads(_json(first)), "seed": 3, "code": "of last week"}))
    asked: list[int] = []

    def played(seeds: list[int], jobs: int, until_s: float) -> list[object]:
        asked.extend(seeds)
        return []

    monkeypatch.setattr(long_run, "results", played)
    words = ["simulation", "--seeds", "4", "--diary", str(diary)]
    monkeypatch.setattr(sys, "argv", words)
    assert long_run.main() == 1  # it is broken still
    assert asked == [2, 4, 3]  # what another version came to is played again last of all
    assert "\n2 seeds with the present version" in capsys.readouterr().out
    write(diary, Line(**{**json.loads(_json(first)), "seed": 2}))
    monkeypatch.setattr(sys, "argv", [*words, "--told"])
    assert long_run.main() == 0
    assert capsys.readouterr().out.startswith("3 seeds")


def _json(line: Line) -> str:
    return json.dumps({name: getattr(line, name) for name in Line.__slots__})

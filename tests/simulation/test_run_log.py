"""The long run: seeds cover every combination, and a stopped run continues."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pumphouse import leases
from pumphouse.leases.strategies import STRATEGIES as REGISTERED
from pumphouse.simulation import Scenario, simulate
from pumphouse.simulation.adapters import FACES, PULL
from pumphouse.simulation.store import SEMANTICS
from tests.simulation import __main__ as long_run
from tests.simulation.run_log import (
    BEGIN,
    END,
    SeedResult,
    code_of,
    code_version,
    put_on_page,
    read,
    total,
    write,
)
from tests.simulation.scenarios import (
    LONG_EVERY,
    STRATEGIES,
    TIMINGS,
    options_of,
    scenario_of,
    timing_of,
    with_user_code,
)
from tests.spark.support.waiting import until


def test_1000_seeds_cover_every_strategy_api_and_store_together() -> None:
    scenarios = [scenario_of(seed) for seed in range(1, 1001)]
    covered = {(s.strategy, s.face, s.store) for s in scenarios}
    assert len(covered) == len(STRATEGIES) * len(FACES) * len(SEMANTICS)
    concurrent = [s for s in scenarios if s.concurrency != 1]
    assert 150 < len(concurrent) < 250
    assert {s.face for s in concurrent} == set(FACES) - set(PULL)
    assert {s.face for s in scenarios if s.concurrency == 1} == set(FACES)
    assert {(1, 1), (6, 12)} <= {(s.hosts, s.partitions) for s in scenarios}
    assert {timing_of(seed) for seed in range(1, 361)} == set(TIMINGS)
    user_code = [with_user_code(seed, options_of("default")) for seed in range(1, 361)]
    assert {(each.checkpoints.on, each.poison.then) for each in user_code} == {
        (True, "skip"),
        (True, "stop"),
        (False, "skip"),
        (False, "stop"),
    }
    assert all(options_of(name).lease_s >= 3 * options_of(name).interval_s for name in TIMINGS)
    assert set(STRATEGIES) == set(REGISTERED)


def test_10_000_seeds_are_ten_years() -> None:
    scenarios = [scenario_of(seed) for seed in range(1, 10_001)]
    assert sum(s.hours for s in scenarios) / (365.25 * 24) > 10
    assert sum(s.hours > 24 for s in scenarios) == 10_000 // LONG_EVERY


def test_a_log_is_read_back_without_its_truncated_line(tmp_path: Path) -> None:
    log = tmp_path / "build" / "simulate.jsonl"
    assert read(log) == {}
    first = SeedResult.of(simulate(Scenario(hosts=2, partitions=2, hours=0.1, seed=10)), "abc")
    write(log, first)
    second = {**json.loads(log.read_text()), "seed": 11, "violations": ["I1 at 3"]}
    write(log, SeedResult(**second))
    with log.open("a") as more:
        more.write('{"seed": 12, "hou')
    assert sorted(read(log)) == [10, 11]
    totals = total(read(log).values(), "abc")
    assert (totals.seeds, totals.long, totals.figures["handled"]) == (2, 1, 2 * first.handled)
    assert totals.faults.total() == 2 * sum(first.faults.values())
    assert [result.seed for result in totals.failed] == [11]
    assert "seed 11: I1 at 3" in "\n".join(totals.report())
    page = put_on_page(f"above {BEGIN} old {END} below", totals)
    assert page.startswith(f"above {BEGIN}\nRun so far: 2 of")
    assert page.endswith(f"{END} below")
    assert "1 violated an invariant" in page
    assert "All of them ran with the present version of the code (`abc`)." in page
    assert "old" not in page
    mixed = put_on_page(f"{BEGIN}{END}", total([first, replace(first, code="of last week")], "abc"))
    assert "1 of the seeds ran with the present version of the code\n(`abc`), the others" in mixed


def test_a_stopped_run_continues_and_repeats_failed_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "simulate.jsonl"
    result = simulate(Scenario(hosts=1, partitions=1, hours=0.05))
    first = SeedResult.of(result, code_version())
    write(log, SeedResult(**{**json.loads(_json(first)), "seed": 1}))
    write(log, SeedResult(**{**json.loads(_json(first)), "seed": 2, "violations": ["I1 at 3"]}))
    write(log, SeedResult(**{**json.loads(_json(first)), "seed": 3, "code": "of last week"}))
    requested: list[int] = []

    def no_results(seeds: list[int], jobs: int, until_s: float) -> list[object]:
        requested.extend(seeds)
        return []

    monkeypatch.setattr(long_run, "results", no_results)
    command = ["simulation", "--seeds", "4", "--log", str(log)]
    monkeypatch.setattr(sys, "argv", command)
    assert long_run.main() == 1  # seed 2 still fails
    assert requested == [2, 4, 3]  # seeds of another version run last
    assert "\n2 seeds with the present version" in capsys.readouterr().out
    write(log, SeedResult(**{**json.loads(_json(first)), "seed": 2}))
    monkeypatch.setattr(sys, "argv", [*command, "--report"])
    assert long_run.main() == 0
    assert capsys.readouterr().out.startswith("3 seeds")


def test_a_change_in_a_sub_package_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = code_version()
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores" / "memory.py").write_text("first")
    monkeypatch.setattr(leases, "__path__", [str(tmp_path)])
    first = code_version()
    (tmp_path / "stores" / "memory.py").write_text("second")
    assert len({before, first, code_version()}) == 3


def _json(result: SeedResult) -> str:
    return json.dumps({name: getattr(result, name) for name in SeedResult.__slots__})


def test_comments_and_docstrings_do_not_change_the_version() -> None:
    plain = code_of("def f(x: int) -> int:\n    return x + 1\n")
    documented = 'def f(x: int) -> int:\n    """F."""\n    return x + 1  # why\n'
    reworded = 'def f(x: int) -> int:\n    """Another text."""\n    return x + 1\n'
    assert code_of(documented) == code_of(reworded)
    assert code_of("def f(x: int) -> int:\n    return x + 2\n") != plain


def test_a_short_run_with_worker_processes(tmp_path: Path) -> None:
    """Its workers end with the process that started them, also if that is killed."""
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-m", "tests.simulation", "--jobs", "2", "--log", str(log)]
    completed = subprocess.run(
        [*command, "--seeds", "3"], capture_output=True, text=True, timeout=300, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert len(log.read_text().splitlines()) == 3
    with subprocess.Popen([*command, "--first", "10"], stdout=subprocess.DEVNULL) as runner:
        until(lambda: len(children(runner.pid)) >= 3)  # two workers, and a tracker of resources
        started = set(children(runner.pid))
        runner.kill()
    until(lambda: not started & running())


def children(parent: int) -> list[int]:
    return [pid for pid, (_, its_parent) in processes().items() if its_parent == parent]


def running() -> set[int]:
    return {pid for pid, (state, _) in processes().items() if state != "Z"}


def processes() -> dict[int, tuple[str, int]]:
    """The state and the parent of every process."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            stats.append(path.read_text())
    # The number, the name in parentheses, the state, the number of the parent.
    fields = ((stat.split()[0], stat.rpartition(")")[2].split()) for stat in stats)
    return {int(pid): (rest[0], int(rest[1])) for pid, rest in fields}

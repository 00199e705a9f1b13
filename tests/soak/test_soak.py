"""The short form of a soak: every fault once, with each store, and every promise kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import script
from tests.soak.run import soak


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("store", "seed", "hosts", "partitions"),
    [pytest.param("blob", 7, 5, 16, marks=pytest.mark.soak), ("sqlite", 8, 4, 8)],
)
def test_nothing_is_lost_when_processes_die(
    store: str, seed: int, hosts: int, partitions: int, tmp_path: Path
) -> None:
    """I1 to I6, I8, I13 and I14, with kill -9, SIGSTOP, a hub that dies and a silent store."""
    run, verdict = soak(seed, store, tmp_path, hosts=hosts, partitions=partitions)
    assert verdict.violations == ()
    assert set(run.done) == set(script.BAG)
    assert verdict.events > 500
    assert verdict.clean_moves > 0
    assert verdict.refused > 0, "the host that was stopped came back too late"

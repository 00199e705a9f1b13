"""Short soaks: every fault once, with each store; no invariant is violated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import script
from tests.soak.host import LEASE_S
from tests.soak.run import soak

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    ("store", "seed", "hosts", "partitions", "lease_s"),
    [pytest.param("blob", 7, 5, 16, LEASE_S, marks=pytest.mark.soak), ("sqlite", 8, 4, 8, 3.0)],
)
def test_no_event_is_lost_when_processes_die(
    store: str, seed: int, hosts: int, partitions: int, lease_s: float, tmp_path: Path
) -> None:
    """I1 to I6, I8, I13 and I14, with kill -9, SIGSTOP, a killed hub and a store outage."""
    run, verdict = soak(seed, store, tmp_path, hosts=hosts, partitions=partitions, lease_s=lease_s)
    assert verdict.violations == ()
    assert set(run.done) == set(script.BAG)
    assert verdict.events > 500
    assert verdict.clean_moves > 0
    assert verdict.most_calls > 1, "a host handled several keys at once"
    assert verdict.refused > 0, "the suspended host continued too late"


@pytest.mark.soak
def test_no_event_is_lost_with_fixed_hosts(tmp_path: Path) -> None:
    run, verdict = soak(5, "sqlite", tmp_path, hosts=3, partitions=6, lease_s=3.0, apis=["fixed"])
    assert verdict.violations == ()
    assert set(run.done) == set(script.BAG)
    assert verdict.events > 300
    assert verdict.refused > 0, "the suspended host continued too late"


def test_no_event_is_lost_with_blobs(tmp_path: Path) -> None:
    """The same with blobs, but smaller and with a short lease."""
    run, verdict = soak(
        3, "blob", tmp_path, hosts=2, partitions=4, lease_s=3.0, first=script.SMALL_BAG
    )
    assert verdict.violations == ()
    assert set(run.done) == set(script.SMALL_BAG)
    assert verdict.events > 100
    assert verdict.clean_moves > 0
    assert verdict.refused > 0, "the suspended host continued too late"

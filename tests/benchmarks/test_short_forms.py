"""The benchmarks without Spark, in short. They run in any worker."""

from __future__ import annotations

import pytest

from tests.benchmarks.short_forms import NAMES, WITH_SPARK, run_short_form


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(NAMES - WITH_SPARK))
def test_a_benchmark_runs_in_short(name: str) -> None:
    run_short_form(name)

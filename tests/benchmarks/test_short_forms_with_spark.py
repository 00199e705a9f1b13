"""The benchmarks with Spark, in short: one Spark of this file at a time."""

from __future__ import annotations

import pytest

from tests.benchmarks.short_forms import WITH_SPARK, run_short_form

pytestmark = [pytest.mark.xdist_group("benchmarks"), pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", sorted(WITH_SPARK))
def test_a_benchmark_runs_in_short(name: str) -> None:
    run_short_form(name)

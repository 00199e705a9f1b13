.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-spark conformance check docs bench fuzz soak proof simulate lock clean

help: ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## make .venv from requirements.lock (PYTHON=... chooses the interpreter)
	@scripts/setup

demo: setup ## homes, hub, Spark, processors and the page (DEMO_ARGS=... is handed to it)
	@scripts/java
	@.venv/bin/pumphouse demo $(DEMO_ARGS)

# Four workers, however few the cores: most tests wait for a client most of the time.
test: setup ## everything that must pass (PYTHON=... chooses the interpreter, PYTEST_ARGS=... goes to pytest)
	@scripts/npm-ci
	@scripts/java
	@scripts/chromium >/dev/null
	@scripts/postgres
	@scripts/proton
	@scripts/check
	.venv/bin/python -m pytest -n 4 --dist loadgroup --durations=40 $(PYTEST_ARGS)
	@scripts/pythons
	@scripts/check-wheel

conformance: setup ## the official clients by every variant, all tests by each (make test: one in three)
	@scripts/npm-ci
	@scripts/proton
	.venv/bin/python -m pytest -n 2 --dist loadgroup --every-variant $(PYTEST_ARGS) tests/conformance

test-spark: setup ## Spark on a cluster, by Connect, in pipelines; and killing parts of it
	@scripts/npm-ci
	@scripts/java
	@scripts/postgres
	.venv/bin/python -m pytest -m cluster $(PYTEST_ARGS) tests/spark tests/homes

check: setup ## formatting, lint, types, spelling, documentation
	@scripts/check

docs: setup ## build the documentation as a site in build/site
	@scripts/docs

bench: setup ## run every benchmark in full
	@scripts/bench

fuzz: setup ## a bounded fuzzing run (FUZZ_ARGS=... is handed to it)
	@scripts/fuzz $(FUZZ_ARGS)

soak: setup ## kill, stop and restart a fleet of processes (MINUTES=30 SEED=7 STORE=blob)
	@scripts/npm-ci
	@scripts/soak

proof: setup ## every mutant and seed of the lease code, long histories of every store
	@scripts/npm-ci
	@scripts/proof $(PYTEST_ARGS)

simulate: setup ## ten simulated years of fleets with faults (MINUTES=360 SEEDS=10000)
	@scripts/simulate

lock: ## resolve the lock files anew (UPGRADE=1 takes the newest versions)
	@scripts/lock

clean: ## remove everything that the targets made
	@scripts/clean

.DEFAULT_GOAL := help
.NOTPARALLEL:
# Compiled modules are kept in .venv, whatever the machine is set to: the tests and the demonstration
# start hundreds of processes, and without them each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/pycache
.PHONY: help setup demo test test-spark test-spark-versions conformance check audit check-deploy docs bench fuzz soak proof ledger simulate lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## create .venv from requirements.lock (PYTHON=... chooses the interpreter)
	@scripts/setup

demo: setup ## run the demonstration: hub, homes, Spark, processors and page (DEMO_ARGS=... are its options)
	@scripts/java
	@.venv/bin/pumphouse demo $(DEMO_ARGS)

test: setup ## run all checks and tests (PYTHON=... chooses the interpreter, PYTEST_ARGS=... goes to pytest)
	@scripts/java
	@scripts/chromium >/dev/null
	@scripts/postgres
	@scripts/redis
	@scripts/prometheus >/dev/null
	@scripts/beside scripts/npm-ci scripts/proton -- scripts/spark-archive
	@scripts/beside scripts/check "scripts/spark-versions --short" scripts/pythons scripts/check-wheel \
		-- scripts/run-tests $(PYTEST_ARGS)

conformance: setup ## run the official clients with every variant of the hub (make test runs a share of them)
	@scripts/npm-ci
	@scripts/proton
	.venv/bin/python -m pytest -n 2 --dist loadgroup --every-variant $(PYTEST_ARGS) tests/conformance

test-spark: setup ## run the Spark tests on a cluster, with Spark Connect, and with killed processes
	@scripts/npm-ci
	@scripts/java
	@scripts/postgres
	.venv/bin/python -m pytest -m cluster $(PYTEST_ARGS) tests/spark tests/homes

test-spark-versions: setup ## run the Spark tests on Spark 4.0, 4.1 and 4.2 (VERSIONS="4.0" chooses some)
	@scripts/npm-ci
	@scripts/java
	@scripts/postgres
	@scripts/spark-versions

check: setup ## check formatting, lint, types, spelling and documentation
	@scripts/check

audit: setup ## look for known vulnerabilities of the installed packages (needs the network)
	@scripts/audit

check-deploy: setup ## run the steps of the Dockerfile, and validate the manifests strictly (needs the network)
	@scripts/check-deploy

docs: setup ## build the documentation as a site in build/site
	@scripts/docs

bench: setup ## run all benchmarks, or only those in BENCH="hub reader"
	@scripts/bench $(BENCH)

fuzz: setup ## run the fuzzers for a bounded time (FUZZ_ARGS=...)
	@scripts/fuzz $(FUZZ_ARGS)

soak: setup ## kill, suspend and restart real processes while events flow (MINUTES=30 SEED=7 STORE=blob, sqlite, postgres or redis)
	@scripts/npm-ci
	@scripts/soak

proof: setup ## run the long tests of leases: all mutants, rule mutations, seeds and store histories
	@scripts/npm-ci
	@scripts/proof $(PYTEST_ARGS)

ledger: setup ## test exactly-once transactions: kill hosts at every statement (KILLS=2000)
	@scripts/ledger

simulate: setup ## simulate ten years of processors with faults (MINUTES=360 SEEDS=10000)
	@scripts/simulate

lock: ## resolve the lock files (UPGRADE=1 takes the newest versions)
	@scripts/lock

clean: ## remove everything that the targets create
	@scripts/clean

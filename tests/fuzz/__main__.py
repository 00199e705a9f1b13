"""Fuzz the decoders and the hub: python -m tests.fuzz [--seconds 60] [target ...]

Each target runs in its own process, bounded by time and by runs. atheris runs all but "costs": the
first failure ends the run and names the file with its bytes; `--replay FILE` runs them again.
"costs" measures CPU time, memory and delays, and names seeds (cost_run.py).
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("decode", "message", "payload", "texts", "login", "session")
COSTS = "costs"
ALL_NAMES = (*NAMES, COSTS)
SECONDS, RUNS, BYTES_MAX = 60, 10_000_000, 4096
RUN_S_MAX = 10  # libFuzzer reports a longer run as a hang
MEMORY_MB_MAX = 1024


def main() -> int:
    options = parse(sys.argv[1:])
    if options.replay is not None:
        from tests.fuzz.targets import TARGETS

        for name in options.targets:
            TARGETS[name](options.replay.read_bytes())
        return 0
    if options.worker is not None:
        run_worker(options.targets[0], options)
    for name in options.targets:
        sys.stderr.write(f"fuzz: {name} for {options.seconds} s\n")
        if name == COSTS:
            command = [sys.executable, "-m", "tests.fuzz.cost_run"]
            if subprocess.run(
                [*command, "--seconds", str(options.seconds)], check=False
            ).returncode:
                return 1
            continue
        # libFuzzer ends its process without clean-up, so the parent owns the folder.
        with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as folder:
            command = [sys.executable, "-m", "tests.fuzz", "--worker", folder, name]
            command += ["--seconds", str(options.seconds), "--runs", str(options.runs)]
            code = subprocess.run(command, check=False).returncode
        if code:
            sys.stderr.write(f"fuzz: {name} failed (exit code {code})\n")
            return 1
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="target", help=f"of: {', '.join(ALL_NAMES)}")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="for each target")
    parser.add_argument("--runs", type=int, default=RUNS, help="at most, for each target")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run these bytes once")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.targets = options.targets or ALL_NAMES
    if unknown := set(options.targets) - set(ALL_NAMES):
        parser.error(f"unknown target {', '.join(unknown)}; use {', '.join(ALL_NAMES)}")
    return options


def run_worker(name: str, options: argparse.Namespace) -> None:
    """Fuzz one target; libFuzzer ends the process."""
    import atheris

    # A fuzzed peer violates the protocol in every run: do not log that.
    logging.getLogger("pumphouse.hub").setLevel(logging.CRITICAL)
    with atheris.instrument_imports(include=["pumphouse"]):
        from tests.fuzz.corpus import corpus
        from tests.fuzz.targets import TARGETS
    for number, data in enumerate(corpus()[name]):
        (options.worker / f"valid-{number}").write_bytes(data)
    limits = {
        "max_total_time": options.seconds,
        "runs": options.runs,
        "max_len": BYTES_MAX,
        "timeout": RUN_S_MAX,
        "rss_limit_mb": MEMORY_MB_MAX,
        "artifact_prefix": f"{tempfile.gettempdir()}/fuzz-{name}-",
        "verbosity": 0,
        "print_final_stats": 1,
    }
    flags = [f"-{flag}={value}" for flag, value in limits.items()]
    atheris.Setup([sys.argv[0], *flags, str(options.worker)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())

"""Search for streams that cost a hub too much: python -m tests.fuzz.cost_run [--seconds 60]

Each seed makes two streams: of a client that has authenticated, and of one that has not, or that
uses WebSocket, the HTTP API or the page. `--replay SEED` measures them again, and `--profile SEED`
shows where their time goes. The first failure is printed and the search continues; the exit code is
1 then.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import logging
import pstats
import sys
import time
from itertools import count

from tests.fuzz.costs import Prices, excess_of, prepared
from tests.fuzz.listener_streams import make_listener_stream
from tests.fuzz.probing import ProbedHub
from tests.fuzz.streams import Stream, make_stream

SECONDS = 60
PRICES = Prices()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.cost_run")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--seed", type=int, help="the first seed; the others follow it")
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="measure the streams of one seed"
    )
    parser.add_argument(
        "--profile", type=int, metavar="SEED", help="profile the streams of one seed"
    )
    options = parser.parse_args()
    # A fuzzed peer violates the protocol in every run: do not log that.
    logging.getLogger("pumphouse").setLevel(logging.CRITICAL)
    if options.profile is not None:
        profile(options.profile)
        return 0
    gc.collect()
    gc.freeze()  # the garbage collector then looks at the objects of the hub only
    with ProbedHub() as hub:
        if options.replay is not None:
            return int(bool(report(options.replay, hub)))
        first = int(time.time()) if options.seed is None else options.seed
        return search(first, options.seconds, hub)


def search(first: int, seconds: float, hub: ProbedHub) -> int:
    end, failures, size = time.monotonic() + seconds, 0, 0
    for seed in count(first):
        if time.monotonic() > end:
            break
        failures += bool(report(seed, hub))
        size += sum(stream.size for stream in streams_of(seed))
    sys.stderr.write(
        f"costs: {seed - first} streams from seed {first} on, {size >> 20} MiB, "
        f"{failures} failures\n"
    )
    return int(failures > 0)


def report(seed: int, hub: ProbedHub) -> list[str]:
    """Measure the streams of a seed; prints and returns what is too expensive."""
    return [text for stream in streams_of(seed) for text in report_stream(seed, stream, hub)]


def streams_of(seed: int) -> list[Stream]:
    """A stream of a client that has authenticated, and one of another client or listener."""
    return [make_stream(seed), make_listener_stream(seed)]


def report_stream(seed: int, stream: Stream, hub: ProbedHub) -> list[str]:
    found = excess_of(stream, PRICES)
    delay_s = hub.least_delay_s(stream, PRICES.turn_s)
    if delay_s > PRICES.turn_s:
        found.append(f"another client waits for {delay_s * 1e3:.0f} ms")
    if found:
        sys.stderr.write(
            f"costs: seed {seed} ({stream.kind}, {stream.size} bytes in {len(stream.pieces)} "
            f"reads): {'; '.join(found)}\n"
            f"costs: replay with: python -m tests.fuzz.cost_run --replay {seed}\n"
        )
    return found


def profile(seed: int) -> None:
    for stream in streams_of(seed):
        profile_stream(stream)


def profile_stream(stream: Stream) -> None:
    connection = prepared(stream)
    profiler = cProfile.Profile()
    profiler.runcall(connection.receive_all, stream.pieces)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    sys.exit(main())

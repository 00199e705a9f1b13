"""Every strategy and the official processor's two in every scene, as tables in Markdown.

python -m benchmarks._strategies [--rounds 3] [--watch 1200] [--only WORD] [--side WORD]

Whole hosts in virtual time: ours are real processors, theirs azure-eventhub's own EventProcessor.
Hub, events, handlers, network delays and the moment of the change are the same for both. Figures
are medians of the rounds. The scene with 256 partitions is played once: it takes minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks._ledger import Measured
from benchmarks._stage import SCENES, WATCH_S, Scene, Turn, ours, play
from benchmarks._stage_official import official
from pumphouse.leases.strategies import STRATEGIES
from pumphouse.processor.options import RELAXED, ProcessorOptions

ROUNDS = 3
LARGE = 100  # partitions; from there on one round must do
COLUMNS = (
    "",
    "seconds until even",
    "cycles",
    "moves (over the fewest)",
    "spread at rest",
    "handled again per move",
    "unowned partition-seconds",
    "store calls in {minutes:g} min",
)


def sides() -> Iterator[tuple[str, Turn]]:
    yield "`steady`", ours(STRATEGIES["steady"], ProcessorOptions())
    yield "`steady`, `RELAXED` (30 s)", ours(STRATEGIES["steady"], RELAXED)
    for name in ("greedy", "balanced", "eph", "eph_js"):
        yield f"`{name}`", ours(STRATEGIES[name], ProcessorOptions())
    for kind in ("greedy", "balanced"):
        yield f"azure-eventhub, {kind} (30 s)", official(kind)


def table(scene: Scene, rounds: int, watch_s: float, word: str = "") -> str:
    columns = [column.format(minutes=watch_s / 60) for column in COLUMNS]
    lines = [columns, ["---"] * len(columns)]
    for name, turn in sides():
        if word not in name:
            continue
        found = [play(scene, turn, seed, watch_s) for seed in range(1, rounds + 1)]
        lines.append([name, *cells(scene, turn, found)])
        sys.stderr.write(f"{scene.name}: {name} done\n")
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(scene: Scene, turn: Turn, found: Sequence[Measured]) -> Iterator[str]:
    if missed := sum(each.missed for each in found):
        raise AssertionError(f"{missed} events were never handled in {scene.name}")
    times = [each.seconds for each in found if each.seconds is not None]
    even = len(times) * 2 > len(found)
    yield f"{median(times):.1f}" if even else "never"
    yield f"{median(times) / turn.interval_s:.1f}" if even else "-"
    moves = median(each.moves for each in found)
    yield f"{moves:g} ({moves - scene.fewest:+g})" if even else f"{moves:g}"
    yield f"{median(each.spread for each in found):g}"
    yield again(found)
    yield f"{median(each.unowned_s for each in found):.0f}"
    yield f"{median(each.calls for each in found):,.0f}"


def again(found: Sequence[Measured]) -> str:
    """Events that were handled again, by partitions that changed hands, over all rounds."""
    handed = sum(each.handed for each in found)
    return f"{sum(each.again for each in found) / handed:.2f}" if handed else "-"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks._strategies")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--watch", type=float, default=WATCH_S, help="seconds after the change")
    parser.add_argument("--only", default="", help="scenes with this word")
    parser.add_argument("--side", default="", help="sides with this word")
    asked = parser.parse_args()
    for scene in SCENES:
        if asked.only in scene.name:
            rounds = 1 if scene.partitions >= LARGE else asked.rounds
            print(f"**{scene.name}** (fewest moves: {scene.fewest})\n", flush=True)
            print(f"{table(scene, rounds, asked.watch, asked.side)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

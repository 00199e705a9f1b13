"""Every strategy in every scene, and the official balancer's two, as a table in Markdown.

python -m benchmarks._strategies
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from statistics import median

from benchmarks._fleet import COLD, FAN_OUT, JOIN, Played, Scene, Side, ours, play
from benchmarks._official import KINDS, OFFICIAL, official
from pumphouse.leases.strategies import NAMED

ROUNDS = 25
CYCLES_MAX = 100
SCENES = (JOIN, FAN_OUT, COLD)


def sides() -> Iterator[tuple[str, Callable[[Scene, Random], Side]]]:
    for name, strategy in NAMED.items():
        yield f"`{name}`", partial(ours, strategy)
    for kind in KINDS:
        yield f"{OFFICIAL}, {kind}", partial(official, kind)


def table() -> str:
    lines = [["", *(scene.name for scene in SCENES)], [":--"] * (1 + len(SCENES))]
    for name, side in sides():
        lines.append([name, *(cell(side, scene) for scene in SCENES)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(side: Callable[[Scene, Random], Side], scene: Scene) -> str:
    seeds = range(ROUNDS)
    return tell([play(scene, side(scene, Random(n)), Random(n), CYCLES_MAX) for n in seeds])


def tell(found: Sequence[Played]) -> str:
    cycles = median(each.cycles for each in found)
    moves = median(each.moves for each in found)
    spread = median(each.spread for each in found)
    if cycles >= CYCLES_MAX:
        return f"never even (spread {spread:g}), {moves:g} moves"
    shown = f"{cycles:.1f}" if cycles >= 0.05 else "under 0.1"
    return f"{shown} cycles, {moves:g} moves"


if __name__ == "__main__":
    sys.exit(print(table()))

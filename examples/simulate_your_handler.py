"""Your own handler in a simulated fleet: hosts crash, the store loses answers, hours pass."""

import sys

from pumphouse.simulation import Scenario, parse_faults, simulate


class Balance:
    """By partition, what your code keeps: made safe against events that come twice."""

    def __init__(self):
        self.kept = {}

    async def handle(self, partition, batch):
        at, total = self.kept.get(partition.id, (-1, 0))
        for event in batch:
            if event.sequence > at:  # after a crash the last events come again
                at, total = event.sequence, total + 1
        self.kept[partition.id] = (at, total)


def main(seed=7):
    balance = Balance()
    # Twenty crashes an hour; retention takes nothing, so that every event can be counted.
    faults = parse_faults("default,crash=20,expired=0")
    result = simulate(
        Scenario(hosts=3, partitions=4, hours=2, seed=seed, faults=faults), handler=balance.handle
    )
    print(
        f"{result.simulated_s / 3600:.1f} hours in {result.took_s:.1f} s, faults: {result.faults}"
    )
    print(f"{result.sent} events sent, {result.figures.duplicates} handled twice by the fleet")
    assert result.ok, result.handler_failed or result.violations
    assert all(total == at + 1 for at, total in balance.kept.values())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Your own handler in a simulated fleet: hosts crash, and responses of the store are lost."""

import sys

from pumphouse.simulation import Scenario, parse_faults, simulate


class Balance:
    """A count of events per partition that ignores events delivered twice."""

    def __init__(self):
        self.counts = {}

    async def handle(self, partition, batch):
        at, total = self.counts.get(partition.id, (-1, 0))
        for event in batch:
            if event.sequence > at:  # after a crash the last events are delivered again
                at, total = event.sequence, total + 1
        self.counts[partition.id] = (at, total)


def main(seed=7):
    balance = Balance()
    # Twenty crashes an hour; retention removes nothing, so every event is counted.
    faults = parse_faults("default,crash=20,expired=0")
    result = simulate(
        Scenario(hosts=3, partitions=4, hours=2, seed=seed, faults=faults), handler=balance.handle
    )
    print(
        f"{result.simulated_s / 3600:.1f} hours in {result.took_s:.1f} s, faults: {result.faults}"
    )
    print(f"{result.sent} events sent, {result.figures.duplicates} handled twice by the fleet")
    assert result.ok, result.handler_failed or result.violations
    assert all(total == at + 1 for at, total in balance.counts.values())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

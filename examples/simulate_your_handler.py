"""Your own handler in a simulated fleet: hosts crash, the store loses answers, hours pass."""

from pumphouse.simulation import Scenario, parse_faults, simulate

balance = {}  # by partition: what your code keeps, made safe against events that come twice


async def handle(partition, batch):
    at, total = balance.get(partition.id, (-1, 0))
    for event in batch:
        if event.sequence > at:  # after a crash the last events come again
            at, total = event.sequence, total + 1
    balance[partition.id] = (at, total)


def main() -> None:
    faults = parse_faults("default,crash=20")
    result = simulate(
        Scenario(hosts=3, partitions=4, hours=2, seed=7, faults=faults), handler=handle
    )
    print(
        f"{result.simulated_s / 3600:.1f} hours in {result.took_s:.1f} s, faults: {result.faults}"
    )
    print(f"{result.sent} events sent, {result.figures.duplicates} handled twice by the fleet")
    assert result.ok, result.violations
    assert all(total == at + 1 for at, total in balance.values())


if __name__ == "__main__":
    main()

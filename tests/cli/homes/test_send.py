"""`pumphouse homes send` and `replay`, as a person calls them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pumphouse.cli.homes.send import first_reading_ms, parse_rate, parse_share
from pumphouse.errors import OptionError
from pumphouse.homes.schema import decode_reading
from pumphouse.homes.simulator.incidents import Incidents
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import Call, Program, good, objects, refused
from tests.homes.simulator.read_back import await_events, events_of
from tests.homes.simulator.sensor_network import as_csv, samples

FROM = "2026-06-01T12:00:00Z"
MINUTE = 1_780_315_200 // 60


@pytest.fixture(autouse=True)
def sensors(event_hub: EmbeddedHub) -> None:
    event_hub.create_hub("sensors", 4)


def bodies(hub: EmbeddedHub) -> list[bytes]:
    return [event.body for events in events_of(hub).values() for event in events]


def test_the_same_call_sends_the_same_bytes(call: Call, event_hub: EmbeddedHub) -> None:
    args = "homes send --homes 30 --rate max --minutes 2 --seed 9 --incidents many --from"
    said = good(call(*args.split(), FROM))
    assert said.startswith("sent 3")
    town = HomeSimulator(30, 9, Incidents(100, 50, 100, 100))
    expected = [body for minute in range(2) for body in town.minute(MINUTE + minute).bodies()]
    assert sorted(bodies(event_hub)) == sorted(expected)
    assert f"sent {len(expected)} events of 30 homes in " in said


def test_mishaps_and_a_summary_for_programs(call: Call, event_hub: EmbeddedHub) -> None:
    mishaps = "--late 0.1 --duplicates 0.1 --malformed 0.1 --faults 0.1 --low-battery 0.1"
    args = (
        f"homes send sensors --homes 40 --rate max --minutes 3 --incidents none {mishaps} -o json"
    )
    [said] = objects(good(call(*args.split(), "--from", FROM)))
    assert said.keys() == {
        "sent", "homes", "seconds", "late", "duplicates", "malformed", "behind_s_max"
    }  # fmt: skip
    found = bodies(event_hub)
    assert said["sent"] == len(found)
    assert said["duplicates"] == len(found) - len(set(found))
    town = HomeSimulator(40, 1, reading_faults=ReadingFaults(0.1, 0.1, 0.1, 0.1, 0.1))
    assert sorted(found) == sorted(
        body for minute in range(3) for body in town.minute(MINUTE + minute).bodies()
    )


def test_parts_make_a_whole(call: Call, event_hub: EmbeddedHub) -> None:
    for share in ("1/2", "2/2"):
        args = f"homes send --homes 21 --rate max --minutes 1 --incidents none --share {share}"
        good(call(*args.split(), "--from", FROM))
    assert sorted(bodies(event_hub)) == sorted(HomeSimulator(21).minute(MINUTE).bodies())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_with_a_summary(
    program: Callable[..., Program], event_hub: EmbeddedHub, number: int
) -> None:
    connection = event_hub.connection_string()
    running = program("homes", "send", "--homes", "600", "-o", "json", connection=connection)
    await_events(event_hub)
    running.process.send_signal(number)
    said = json.loads(running.line())
    assert running.wait() == (0, "")
    assert said["sent"] == len(bodies(event_hub))
    now = time.time()
    assert all(now - 600 < decode_reading(body).at / 1000 < now for body in bodies(event_hub))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("--rate fast", "'fast' is no rate; write realtime, max, or a factor such as 60x"),
        ("--homes 0", "--homes"),
        ("--incidents flood=1", "invalid incidents 'flood=1': use none, few, many, or KIND=RATE"),
        ("--incidents fire=2000", "invalid rate 2000 of fire: use 0 to 1000"),
        ("--late 2", "--late"),
        ("--share 3/2", "'3/2' is no share; write 1/4 for the first of four producers"),
        ("--from noon", "invalid position 'time:noon'"),
        ("--minutes 0", "--minutes"),
        ("--from 2020-01-01T00:00:00Z --minutes 1", "2025 began"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Call, args: str, says: str) -> None:
    assert says in refused(call("homes", "send", "--rate", "max", *args.split()), 2)


def test_a_hub_that_is_not_there_is_said_so(call: Call) -> None:
    said = refused(call("homes", "send", "nowhere", "--homes", "1", "--rate", "max"))
    assert "nowhere" in said


def test_nobody_to_talk_to(call: Call) -> None:
    assert "no hub to talk to" in refused(call("homes", "send", connection=None), 2)


def test_rates() -> None:
    assert (parse_rate("realtime"), parse_rate("MAX"), parse_rate("60x")) == (1.0, None, 60.0)
    assert parse_share("2/4") == (1, 4)
    with pytest.raises(OptionError):
        parse_rate("0x")


def test_what_goes_faster_than_life_ends_now() -> None:
    now_ms = time.time() * 1000
    assert abs(first_reading_ms(None, 1.0, 60_000) - now_ms) < 600_000
    assert abs(first_reading_ms(None, None, 3_600_000) - (now_ms - 3_600_000)) < 600_000
    assert abs(first_reading_ms(None, 60.0, None) - (now_ms - 86_400_000)) < 600_000
    assert first_reading_ms(5, 60.0, None) == 5


# -- replay


def test_real_data_on_other_homes(call: Call, event_hub: EmbeddedHub, tmp_path: Path) -> None:
    few = samples()[2300:2500]  # somebody held a hot kettle to the first mote about then
    file = tmp_path / "motes.csv"
    file.write_text("\n".join(as_csv(few)))
    args = ("homes", "replay", str(file), "--homes", "3", "--rate", "max", "-o", "json")
    [said] = objects(good(call(*args, "--from", FROM)))
    assert said["sent"] == 3 * 2 * len(few)
    found = [decode_reading(body) for body in bodies(event_hub)]
    assert len({reading.identity for reading in found}) == len(found)
    first = [r for r in found if r.home == "h000000" and r.sensor == "temperature"]
    first.sort(key=lambda reading: reading.at)
    assert [reading.value for reading in first] == [sample.temperature for sample in few]
    assert first[0].at == MINUTE * 60_000


def test_a_bad_line_of_a_file_is_named(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("time,sensor,value\n12,M1,ON\n13,M1,maybe\n")
    said = refused(call("homes", "replay", str(file), "--sensor", "M1=motion"))
    assert said.startswith(f"{file}, line 3: invalid value 'maybe': use a number, or ON")
    assert "line 2: invalid sensor 'M1'" in refused(call("homes", "replay", str(file)))
    kitchen = ("homes", "replay", str(file), "--sensor", "M1=kitchen")
    assert "sensor M1 is 'kitchen'; write one of motion, door" in refused(call(*kitchen), 2)
    file.write_bytes(b"time,sensor,value\n12,\xff,ON\n")
    assert "not text in UTF-8" in refused(call("homes", "replay", str(file)))

"""`pumphouse homes send` and `pumphouse homes replay`."""

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


def test_the_same_command_sends_the_same_bytes(call: Call, event_hub: EmbeddedHub) -> None:
    args = "homes send --homes 30 --rate max --minutes 2 --seed 9 --incidents many --from"
    result = good(call(*args.split(), FROM))
    assert result.startswith("sent 3")
    simulator = HomeSimulator(30, 9, Incidents(100, 50, 100, 100))
    expected = [body for minute in range(2) for body in simulator.minute(MINUTE + minute).bodies()]
    assert sorted(bodies(event_hub)) == sorted(expected)
    assert f"sent {len(expected)} events of 30 homes in " in result


def test_reading_faults_and_the_json_summary(call: Call, event_hub: EmbeddedHub) -> None:
    faults = "--late 0.1 --duplicates 0.1 --malformed 0.1 --faults 0.1 --low-battery 0.1"
    args = f"homes send sensors --homes 40 --rate max --minutes 3 --incidents none {faults} -o json"
    [result] = objects(good(call(*args.split(), "--from", FROM)))
    assert result.keys() == {
        "sent", "homes", "seconds", "late", "duplicates", "malformed", "behind_s_max"
    }  # fmt: skip
    readings = bodies(event_hub)
    assert result["sent"] == len(readings)
    assert result["duplicates"] == len(readings) - len(set(readings))
    simulator = HomeSimulator(40, 1, reading_faults=ReadingFaults(0.1, 0.1, 0.1, 0.1, 0.1))
    assert sorted(readings) == sorted(
        body for minute in range(3) for body in simulator.minute(MINUTE + minute).bodies()
    )


def test_all_shares_together_send_all_readings(call: Call, event_hub: EmbeddedHub) -> None:
    for share in ("1/2", "2/2"):
        args = f"homes send --homes 21 --rate max --minutes 1 --incidents none --share {share}"
        good(call(*args.split(), "--from", FROM))
    assert sorted(bodies(event_hub)) == sorted(HomeSimulator(21).minute(MINUTE).bodies())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_a_summary(
    program: Callable[..., Program], event_hub: EmbeddedHub, number: int
) -> None:
    connection = event_hub.connection_string()
    running = program("homes", "send", "--homes", "600", "-o", "json", connection=connection)
    await_events(event_hub)
    running.process.send_signal(number)
    result = json.loads(running.line())
    assert running.wait() == (0, "")
    assert result["sent"] == len(bodies(event_hub))
    now = time.time()
    assert all(now - 600 < decode_reading(body).at / 1000 < now for body in bodies(event_hub))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--rate fast", "invalid rate 'fast': use realtime, max, or a factor such as 60x"),
        ("--homes 0", "--homes"),
        ("--incidents flood=1", "invalid incidents 'flood=1': use none, few, many, or KIND=RATE"),
        ("--incidents fire=2000", "invalid rate 2000 of fire: use 0 to 1000"),
        ("--late 2", "--late"),
        ("--share 3/2", "invalid share '3/2': use 1/4 for the first of four producers"),
        ("--from noon", "invalid position 'time:noon'"),
        ("--minutes 0", "--minutes"),
        ("--from 2020-01-01T00:00:00Z --minutes 1", "the start of 2025"),
    ],
)
def test_invalid_options_are_rejected(call: Call, args: str, message: str) -> None:
    assert message in refused(call("homes", "send", "--rate", "max", *args.split()), 2)


def test_an_unknown_hub_is_reported(call: Call) -> None:
    result = refused(call("homes", "send", "nowhere", "--homes", "1", "--rate", "max"))
    assert "nowhere" in result


def test_a_missing_connection_string_is_reported(call: Call) -> None:
    assert "no connection string" in refused(call("homes", "send", connection=None), 2)


def test_rates() -> None:
    assert (parse_rate("realtime"), parse_rate("MAX"), parse_rate("60x")) == (1.0, None, 60.0)
    assert parse_share("2/4") == (1, 4)
    with pytest.raises(OptionError):
        parse_rate("0x")


def test_an_accelerated_run_ends_now() -> None:
    now_ms = time.time() * 1000
    assert abs(first_reading_ms(None, 1.0, 60_000) - now_ms) < 600_000
    assert abs(first_reading_ms(None, None, 3_600_000) - (now_ms - 3_600_000)) < 600_000
    assert abs(first_reading_ms(None, 60.0, None) - (now_ms - 86_400_000)) < 600_000
    assert first_reading_ms(5, 60.0, None) == 5


# -- replay


def test_a_recording_is_replayed_for_several_homes(
    call: Call, event_hub: EmbeddedHub, tmp_path: Path
) -> None:
    few = samples()[2300:2500]  # the first sensor was heated at that time
    file = tmp_path / "motes.csv"
    file.write_text("\n".join(as_csv(few)))
    args = ("homes", "replay", str(file), "--homes", "3", "--rate", "max", "-o", "json")
    [result] = objects(good(call(*args, "--from", FROM)))
    assert result["sent"] == 3 * 2 * len(few)
    readings = [decode_reading(body) for body in bodies(event_hub)]
    assert len({reading.identity for reading in readings}) == len(readings)
    first = [r for r in readings if r.home == "h000000" and r.sensor == "temperature"]
    first.sort(key=lambda reading: reading.at)
    assert [reading.value for reading in first] == [sample.temperature for sample in few]
    assert first[0].at == MINUTE * 60_000


def test_a_row_that_is_not_understood_is_skipped_and_reported(
    call: Call, event_hub: EmbeddedHub, tmp_path: Path
) -> None:
    file = tmp_path / "log.txt"
    file.write_text("2011-06-15 00:00:12 M1 ON\n2011-06-15 00:00:13 M1 maybe\n")
    columns = ("--column", "time=1+2", "--column", "sensor=3", "--column", "value=4")
    args = ("homes", "replay", str(file), *columns, "--delimiter", "space", "--rate", "max")
    done = call(*args, "--sensor", "M*=motion", "-o", "json")
    [result] = objects(done.stdout)
    assert (result["sent"], result["rows"]) == (1, 2)
    [skipped] = result["not_understood"]
    assert skipped == {"column": "value", "rows": 1, "first_lines": [2], "examples": ["maybe"]}
    assert done.stderr.splitlines() == [
        "1 of 2 rows were not understood",
        "1 rows (line 2): invalid value 'maybe': use a number, or ON, OFF, OPEN or CLOSE",
    ]
    assert [decode_reading(body).sensor for body in bodies(event_hub)] == ["motion"]
    assert "use tab, space, or one character" in refused(call(*args[:3], "--delimiter", "::"), 2)


def test_a_row_that_is_not_utf8_text_is_skipped(
    call: Call, event_hub: EmbeddedHub, tmp_path: Path
) -> None:
    file = tmp_path / "log.csv"
    rows = (b"12,motion,ON,\xfc", b"13,door\xff,ON,", b"14,motion,OFF,", b"15,stove,ON,")
    file.write_bytes(b"\n".join((b"time,sensor,value,comment", *rows)))
    done = call("homes", "replay", str(file), "--rate", "max", "-o", "json")
    [result] = objects(done.stdout)
    assert (result["sent"], result["rows"]) == (2, 4)
    assert done.stderr.splitlines()[:2] == [
        "2 of 4 rows were not understood",
        r"1 rows (line 3): invalid sensor 'door\\xff': use UTF-8 text",
    ]
    assert "1 rows (line 5): invalid sensor 'stove': use one of" in done.stderr


def test_a_file_without_readings_is_refused(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("time,sensor,value\n12,M1,ON\n")
    failed = call("homes", "replay", str(file))
    assert failed.exit_code == 1
    assert f"{file}, no reading: 1 of 1 rows were not understood" in failed.stderr
    assert "1 rows (line 2): invalid sensor 'M1': use one of motion, door" in failed.stderr
    kitchen = ("homes", "replay", str(file), "--sensor", "M1=kitchen")
    assert "invalid kind 'kitchen' of sensor M1: use one of motion, door" in refused(
        call(*kitchen), 2
    )
    file.write_text("time,sensor,value\n12,motion,ON\n", encoding="utf-16")
    assert "line 1: the header is not UTF-8 text" in refused(call("homes", "replay", str(file)))

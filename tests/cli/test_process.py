"""`pumphouse process`: runs a handler of a user."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from pumphouse.cli.process import ProcessReporter, ProcessSettings, counted
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.strategies import choose_strategy
from pumphouse.processor.handling.threads import is_async
from tests.cli.conftest import Call, Program, refused

HANDLERS = """
import asyncio
import os
import time

def plain(partition, batch):
    with open("seen.txt", "a") as file:
        for event in batch:
            file.write(f"{partition.id} {event.body.decode()}\\n")

async def waiting(partition, batch):
    await asyncio.sleep(0)
    plain(partition, batch)

def picky(partition, batch):
    if any(event.body == b"bad" for event in batch):
        raise ValueError("cannot stand it")
    plain(partition, batch)

def hanging(partition, batch):
    plain(partition, batch)
    time.sleep(300)

def until_told(partition, batch):
    plain(partition, batch)
    while not os.path.exists("go.txt"):
        time.sleep(0.01)

async def blocking(partition, batch):
    plain(partition, batch)
    time.sleep(300)

number = 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app_of_a_user.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def send(connection: str, *bodies: str) -> None:
    async def work() -> None:
        async with open_client(connection) as client:
            await (await client.sender("0")).send([Event(body.encode()) for body in bodies])

    asyncio.run(work())


def report_of(process: Program, event: str) -> dict[str, object]:
    """The next report of this event."""
    while line := process.line():
        report: dict[str, object] = json.loads(line)
        if report["event"] == event:
            return report
    raise AssertionError(process.wait())


@pytest.mark.parametrize("handler", ["plain", "waiting"])
def test_events_are_handled_and_checkpointed(
    handler: str, folder: Path, event_hub: EmbeddedHub, program: Callable[..., Program]
) -> None:
    event_hub.create_hub("orders", 2)
    connection = event_hub.connection_string("orders")
    send(connection, "a", "b")
    for sent, bodies, number in (([], ["a", "b"], signal.SIGINT), (["c"], ["c"], signal.SIGTERM)):
        send(connection, *sent)
        process = program(
            "process", f"app_of_a_user:{handler}", "-o", "json", connection=connection
        )
        report_of(process, "started")
        wait_for_text(folder / "seen.txt", f"0 {bodies[-1]}\n", process)
        process.process.send_signal(number)
        # The second process starts after the checkpoint of the first.
        assert report_of(process, "stopped")["events"] == len(bodies)
        assert process.wait()[0] == 0
    assert (folder / "seen.txt").read_text() == "0 a\n0 b\n0 c\n"


def wait_for_text(path: Path, text: str, process: Program) -> None:
    while not (path.exists() and text in path.read_text()):
        assert process.process.poll() is None
        time.sleep(0.01)


def test_a_plain_handler_that_hangs_does_not_keep_the_process_alive(
    folder: Path, event_hub: EmbeddedHub, program: Callable[..., Program]
) -> None:
    event_hub.create_hub("orders", 1)
    connection = event_hub.connection_string("orders")
    send(connection, "a")
    options = ("--lease", "3s", "--stop-timeout", "1s", "-o", "json")
    process = program("process", "app_of_a_user:hanging", *options, connection=connection)
    wait_for_text(folder / "seen.txt", "0 a", process)
    process.process.send_signal(signal.SIGTERM)
    assert str(report_of(process, "error")["error"]).startswith("HandlerStuck: ")
    assert report_of(process, "stopped")["events"] == 0
    assert process.wait()[0] == 0


QUICK = ("--lease", "3s", "--interval", "200ms", "--health-port", "0", "-o", "json")


def health(address: object, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"{address}/{path}", timeout=30) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def wait_for_health(address: object, path: str, status: int, text: str = "") -> None:
    while True:
        found = health(address, path)
        if found[0] == status and text in found[1]:
            return
        time.sleep(0.02)


def test_a_host_is_not_ready_while_its_store_does_not_respond_and_drains_on_sigterm(
    folder: Path, event_hub: EmbeddedHub, program: Callable[..., Program]
) -> None:
    """As Kubernetes does: readiness, SIGTERM, and the time of grace is enough."""
    event_hub.create_hub("orders", 1)
    connection = event_hub.connection_string("orders")
    arguments = ("process", "app_of_a_user:until_told", "--store", "leases.db", *QUICK)
    process = program(*arguments, connection=connection)
    address = report_of(process, "health")["address"]
    wait_for_health(address, "readyz", 200)
    assert health(address, "metrics")[0] == 404
    with closing(sqlite3.connect(folder / "leases.db")) as store:
        store.execute("BEGIN EXCLUSIVE")
        wait_for_health(address, "readyz", 503, "host: the store has not responded for")
        assert health(address, "livez") == (200, "ok\n")
    wait_for_health(address, "readyz", 200)
    send(connection, "a")
    wait_for_text(folder / "seen.txt", "0 a\n", process)
    process.process.send_signal(signal.SIGTERM)
    wait_for_health(address, "readyz", 503, "host: the host stops")
    assert process.process.poll() is None
    (folder / "go.txt").touch()
    assert report_of(process, "stopped")["events"] == 1
    assert process.wait()[0] == 0
    # The next host starts after the checkpoint.
    process = program(*arguments, connection=connection)
    send(connection, "b")
    wait_for_text(folder / "seen.txt", "0 b\n", process)
    assert (folder / "seen.txt").read_text() == "0 a\n0 b\n"


def test_another_host_takes_over_from_one_that_was_killed_after_its_time_of_grace(
    folder: Path, event_hub: EmbeddedHub, program: Callable[..., Program]
) -> None:
    event_hub.create_hub("orders", 1)
    connection = event_hub.connection_string("orders")
    send(connection, "a")
    blocked = program("process", "app_of_a_user:blocking", *QUICK, connection=connection)
    wait_for_text(folder / "seen.txt", "0 a\n", blocked)
    blocked.process.send_signal(signal.SIGTERM)  # the loop is blocked: nothing notices it
    with pytest.raises(subprocess.TimeoutExpired):
        blocked.wait(0.5)
    assert blocked.end(signal.SIGKILL)[0] == -signal.SIGKILL
    process = program("process", "app_of_a_user:plain", *QUICK, connection=connection)
    wait_for_text(folder / "seen.txt", "0 a\n0 a\n", process)


@pytest.mark.parametrize("action", ["report", "cancel", "give-up"])
def test_the_options_of_handlers_reach_the_processor(
    action: str, folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ProcessSettings] = []

    async def run(settings: ProcessSettings, *more: object) -> None:
        made.append(settings)

    monkeypatch.setattr("pumphouse.cli.process.run", run)
    options = ("--handler-threads", "3", "--handler-timeout", "5m", "--stop-timeout", "7s")
    result = call("process", "app_of_a_user:plain", *options, "--on-handler-timeout", action)
    assert result.exit_code == 0, result.output
    used = made[0].options
    assert (used.handler_threads, used.handler_timeout_s, used.stop_s) == (3, 300.0, 7.0)
    assert used.on_handler_timeout == action


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--interval", "60s", "--lease", "10s"), "--interval must be at most --lease (got 60s"),
        (("--lease", "10ms"), "--lease must be at least 1s (got 0.01s)"),
        (("--strategy", "fixed:0"), "a fixed number of partitions must be at least 1 (got 0)"),
    ],
)
def test_times_and_strategies_that_do_not_fit_are_refused(
    arguments: tuple[str, ...], sentence: str, folder: Path, call: Call
) -> None:
    result = call("process", "app_of_a_user:plain", *arguments)
    assert result.exit_code == 2
    assert sentence in result.output


@pytest.mark.parametrize(
    ("arguments", "interval_s", "is_paced", "limit"),
    [
        ((), 10.0, False, None),
        (("--max-partitions", "2"), 10.0, False, 2),
        # As FixedPartitionProcessor: one partition per second.
        (("--strategy", "fixed:3"), 1.25, True, 3),
        (("--strategy", "fixed:3", "--interval", "5s"), 5.0, True, 3),
        (("--strategy", "FIXED:3", "--max-partitions", "2"), 1.25, True, 2),
        (("--strategy", "balanced", "--max-partitions", "2"), 10.0, True, 2),
    ],
)
def test_strategy_and_limit_reach_the_processor(
    arguments: tuple[str, ...],
    interval_s: float,
    is_paced: bool,
    limit: int | None,
    folder: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[ProcessSettings] = []

    async def run(settings: ProcessSettings, *more: object) -> None:
        made.append(settings)

    monkeypatch.setattr("pumphouse.cli.process.run", run)
    result = call("process", "app_of_a_user:plain", *arguments)
    assert result.exit_code == 0, result.output
    used = choose_strategy(made[0].strategy, made[0].options.max_partitions)
    assert (made[0].options.interval_s, used.paced, used.max_partitions) == (
        interval_s,
        is_paced,
        limit,
    )


def test_a_plain_handler_is_passed_on_as_a_plain_function() -> None:
    """The processor then runs it in its own threads, and does not count the wait for a thread."""
    reporter = ProcessReporter("json")
    batch = [Event(b"a"), Event(b"b")]
    handle = counted(lambda partition, batch: None, reporter)
    assert not is_async(handle)
    assert handle(None, batch) is None
    assert reporter.handled == 2


@pytest.mark.parametrize("is_plain", [True, False])
async def test_events_are_counted_when_a_coroutine_has_ended(is_plain: bool) -> None:
    reporter, release = ProcessReporter("json"), asyncio.Event()

    async def wait(partition: object, batch: list[Event]) -> None:
        await release.wait()

    handler = (lambda partition, batch: wait(partition, batch)) if is_plain else wait
    task = asyncio.ensure_future(counted(handler, reporter)(None, [Event(b"a")]))
    await asyncio.sleep(0)
    assert reporter.handled == 0
    release.set()
    await task
    assert reporter.handled == 1


def test_a_failed_event_becomes_a_dead_letter(
    folder: Path, event_hub: EmbeddedHub, program: Callable[..., Program]
) -> None:
    event_hub.create_hub("orders", 1)
    connection = event_hub.connection_string("orders")
    send(connection, "a", "bad", "b")
    options = ("--retries", "0", "--dead-letter", "dead.jsonl", "-o", "json")
    process = program("process", "app_of_a_user:picky", *options, connection=connection)
    report = report_of(process, "error")
    assert report["error"] == "ValueError: cannot stand it"
    wait_for_text(folder / "seen.txt", "0 b", process)
    assert process.end(signal.SIGINT)[0] == 0
    (letter,) = [json.loads(line) for line in (folder / "dead.jsonl").read_text().splitlines()]
    assert (letter["text"], letter["cause"]) == ("bad", "ValueError: cannot stand it")


def test_an_error_is_printed_once_with_its_traceback(
    folder: Path, event_hub: EmbeddedHub, program: Callable[..., Program]
) -> None:
    event_hub.create_hub("orders", 1)
    connection = event_hub.connection_string("orders")
    send(connection, "bad", "b")
    options = ("--retries", "2", "--dead-letter", "dead.jsonl")
    process = program("process", "app_of_a_user:picky", *options, connection=connection)
    wait_for_text(folder / "seen.txt", "0 b", process)
    code, errors = process.end(signal.SIGINT)
    assert code == 0
    assert errors.count("handler_failed") == 1
    assert errors.count("Traceback") == 1
    assert 'raise ValueError("cannot stand it")' in errors
    assert "error  partition 0" not in errors


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["app_of_a_user"], "invalid handler 'app_of_a_user': use MODULE:HANDLER"),
        (
            ["nowhere_at_all:handle"],
            "module 'nowhere_at_all' not found: run the command in the folder",
        ),
        (["app_of_a_user:missing"], "module app_of_a_user has no function 'missing'"),
        (["app_of_a_user:number"], "module app_of_a_user has no function 'number'"),
        (["app_of_a_user:plain", "--strategy", "clever"], "unknown strategy 'clever'"),
        (
            ["app_of_a_user:plain", "--checkpoint-every", "often"],
            "invalid checkpoint interval 'often': use 100, 5s or 100,5s",
        ),
        (["app_of_a_user:plain", "--strategy", "fixed:0"], "must be at least 1 (got 0)"),
        (["app_of_a_user:plain", "--store", "ftp://x"], "unknown store ftp:"),
        (
            ["app_of_a_user:plain", "--dead-letter", "/nonexistent/dead.jsonl"],
            "cannot write dead letters to /nonexistent/dead.jsonl: the folder /nonexistent does",
        ),
        (
            ["app_of_a_user:plain", "--dead-letter", "."],
            "cannot write dead letters to .: it is a folder",
        ),
        (
            ["app_of_a_user:plain", "--store", "bloblease://account/leases", "--lease", "90s"],
            "--lease must be 15 to 60 (got 90.0)",
        ),
    ],
)
def test_invalid_options_are_rejected(
    folder: Path, call: Call, args: list[str], message: str
) -> None:
    assert message in refused(call("process", *args, "--hub", "orders"), code=2)


def test_a_dead_letter_file_without_write_permission_is_rejected(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    args = ("process", "app_of_a_user:plain", "--dead-letter", "dead.jsonl")
    message = "cannot write dead letters to dead.jsonl: permission denied"
    assert refused(call(*args), code=2) == message


def test_metrics_are_served_on_the_given_address(
    folder: Path, program: Callable[..., Program], event_hub: EmbeddedHub
) -> None:
    event_hub.create_hub("orders", 1)
    options = ("--metrics-port", "0", "--metrics-host", "127.0.0.2", "-o", "json")
    connection = event_hub.connection_string("orders")
    process = program("process", "app_of_a_user:plain", *options, connection=connection)
    address = json.loads(process.line())["address"]
    assert address.startswith("http://127.0.0.2:")
    livez = address.replace("/metrics", "/livez")
    assert urlopen(livez, timeout=30).read() == b"ok\n"
    while json.loads(process.line())["event"] != "started":
        pass
    assert process.end(signal.SIGTERM)[0] == 0

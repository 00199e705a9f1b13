"""`pumphouse up`: start, stop, output and options."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from pumphouse.cli import main
from pumphouse.cli.up import checking_hub, choose_key, serve, warn_of_literal
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.telemetry.health import CHECKS, READY
from tests.cli.conftest import NOWHERE, PUMPHOUSE, Program, refused
from tests.hub.peer import eventually
from tests.lag.prometheus_server import promtool
from tests.telemetry.page import parse

Start = Callable[..., Program]


def listed(connection: str) -> str:
    """The output of `pumphouse hubs list` in another process."""
    return subprocess.run(
        [PUMPHOUSE, "hubs", "list", "--connection", connection],
        capture_output=True, text=True, timeout=30, check=True,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_one_json_line_and_stops_cleanly(
    program: Start, number: int, event_hub: EmbeddedHub
) -> None:
    up = program("up", "--hubs", "sensors:16,activity", "--port", "0", "-o", "json")
    ready = json.loads(up.line())
    assert list(ready) == [
        "port", "connection_strings", "namespace_connection_string",
        "tls_port", "ws_port", "http_port", "ca_file", "metrics_port",
    ]  # fmt: skip
    assert sorted(ready["connection_strings"]) == ["activity", "sensors"]
    sensors = parse_connection_string(ready["connection_strings"]["sensors"])
    assert (sensors.address, sensors.hub) == (f"127.0.0.1:{ready['port']}", "sensors")
    assert "sensors   16" in listed(ready["namespace_connection_string"])
    # A reader is connected and waits when the hub stops.
    follower = program("tail", "--follow", connection=ready["connection_strings"]["sensors"])
    assert program(
        "send", "sensors", "x", connection=ready["namespace_connection_string"]
    ).wait() == (0, "")
    assert follower.line().endswith("x\n")
    assert up.end(number, within_s=5.0) == (0, "")
    assert up.line() == "", "exactly one line"
    code, message = follower.wait()
    assert code == 1
    assert f"cannot connect to 127.0.0.1:{ready['port']}" in message


def test_metrics_and_health(program: Start) -> None:
    up = program("up", "doors:2", "--port", "0", "--metrics-port", "0", "-o", "json")
    ready = json.loads(up.line())
    connection = ready["connection_strings"]["doors"]
    assert program("send", "doors", "x", connection=connection).wait() == (0, "")
    address = f"http://127.0.0.1:{ready['metrics_port']}"
    page = urlopen(f"{address}/metrics", timeout=30).read()
    received = [
        value
        for (name, labels), value in parse(page).items()
        if name == "pumphouse_hub_received_events_total" and ("hub", "doors") in labels
    ]
    assert sorted(received) == [0, 1]
    assert urlopen(f"{address}/livez", timeout=30).read() == b"ok\n"
    checked = promtool("check", "metrics", text=page.decode())
    assert (checked.returncode, checked.stdout) == (0, "")
    assert up.end(signal.SIGTERM, within_s=5.0) == (0, "")


class SlowHub(EmbeddedHub):
    """A hub that reads its data until it may start and, at the end, until it may stop."""

    def __init__(self) -> None:
        super().__init__({"doors": 1})
        self.may_start, self.may_stop = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        await self.may_start.wait()
        await super().start()

    async def stop(self) -> None:
        await self.may_stop.wait()
        await super().stop()


async def test_a_hub_is_ready_while_it_listens() -> None:
    hub, listens = SlowHub(), Event()
    announced = asyncio.Event()

    def failures() -> list[str]:
        return list(CHECKS.failures(READY).values())

    with checking_hub(listens):
        serving = asyncio.create_task(serve(hub, lambda hub: announced.set(), listens))
        assert failures() == ["the hub does not listen"]
        hub.may_start.set()
        await asyncio.wait_for(announced.wait(), 20)
        assert failures() == []
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: failures() == ["the hub does not listen"])
        assert not serving.done()
        hub.may_stop.set()
        await asyncio.wait_for(serving, 20)
    assert failures() == []


def test_what_the_first_events_need_is_imported_after_the_start() -> None:
    code = (
        "import sys; from pumphouse.cli.up import import_later;"
        "assert 'numpy' not in sys.modules; import_later().join();"
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def listening_addresses(process: int, port: int) -> set[str]:
    """Where the process listens with this port. Another one may listen with it elsewhere."""
    files = {os.readlink(each) for each in Path(f"/proc/{process}/fd").iterdir()}
    addresses = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        address, _, number = local.partition(":")
        listens = state == "0A" and int(number, 16) == port
        if listens and f"socket:[{inode}]" in files:
            addresses.add(socket.inet_ntoa(bytes.fromhex(address)[::-1]))
    return addresses


def test_metrics_are_served_on_the_given_address_only(program: Start) -> None:
    metrics = ("--metrics-port", "0", "--metrics-host", "127.0.0.2")
    up = program("up", "doors:1", "--port", "0", *metrics, "-o", "json")
    port = json.loads(up.line())["metrics_port"]
    assert urlopen(f"http://127.0.0.2:{port}/readyz", timeout=30).read() == b"ok\n"
    assert listening_addresses(up.process.pid, port) == {"127.0.0.2"}
    assert up.end(signal.SIGTERM, within_s=5.0) == (0, "")


def test_the_output_can_be_pasted_into_a_shell(program: Start) -> None:
    up = program("up", "--port", "0", "doors:1", "--hubs", "windows:3")
    hub, *connects, note = [up.line() for _ in range(4)]
    word, address, storage, *counts = hub.split()
    assert (word, storage) == ("hub", "memory")
    assert " ".join(counts) == "2 hubs, 4 partitions"
    for line, name in zip(connects, ("doors", "windows"), strict=True):
        _, export, assignment = shlex.split(line)
        assert export == "export"
        variable, _, text = assignment.partition("=")
        assert variable == "EVENT_HUB_CONN_STR"
        assert (
            parse_connection_string(text).hub,
            f"sb://{parse_connection_string(text).authority}",
        ) == (name, address)
    assert note == "Ctrl-C stops it. The data is then lost; use --data DIR to keep it.\n"


def test_without_hubs_the_connection_string_has_no_entity_path(program: Start) -> None:
    up = program("up", "--port", "0")
    assert "0 hubs, 0 partitions" in up.line()
    assert "EntityPath" not in up.line()


def test_verbose_logs_to_stderr(program: Start) -> None:
    up = program("up", "--port", "0", "-o", "json", "-v")
    assert json.loads(up.line())
    code, logs = up.end(signal.SIGTERM)
    assert code == 0
    assert "pumphouse.hub  listener_started address=127.0.0.1" in logs


def test_a_port_in_use_is_reported(event_hub: EmbeddedHub) -> None:
    message = refused(CliRunner().invoke(main, ["up", "--port", str(event_hub.port)]))
    assert message.startswith(f"cannot listen on 127.0.0.1:{event_hub.port}: address in use")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--hubs", "a:x"], "invalid hub 'a:x': use NAME or NAME:PARTITIONS"),
        (["--hubs", "a:0"], "hub 'a' needs 1 to 2000 partitions (got 0)"),
        (["--hubs", "-a"], "invalid name '-a' for a hub"),
        (["--hubs", "a b a"], "duplicate hub 'a'"),
        (["--port", "70000"], "70000 is not in the range 0<=x<=65535"),
        (["--retention", "soon"], "invalid duration 'soon'"),
        (["--retention-bytes", "lots"], "invalid size 'lots'"),
        (["--key", "a;b"], "invalid key: it must not be empty, contain a semicolon"),
        (["--key-file", "/nowhere"], "'/nowhere' does not exist"),
        (["--key-file", "/dev/null"], "invalid key: it must not be empty"),
    ],
)
def test_malformed_options(args: list[str], message: str) -> None:
    result = CliRunner(env=NOWHERE).invoke(main, ["up", "--port", "0", *args])
    assert message in refused(result, code=2)


def test_the_key_comes_from_a_file_or_is_random(program: Start, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("SAS_KEY_VALUE\n")
    assert choose_key(None, tmp_path / "key") == "SAS_KEY_VALUE"
    assert choose_key("other", None) == "other"
    # Both start before the first is read: a start takes about a second.
    given = program("up", "--port", "0", "-o", "json", "--key-file", str(tmp_path / "key"))
    random = program("up", "--port", "0", "-o", "json")
    keys = [
        parse_connection_string(json.loads(up.line())["namespace_connection_string"]).key
        for up in (given, random)
    ]
    assert keys[0] == "SAS_KEY_VALUE"
    assert len(keys[1]) == 44


def test_the_connection_string_of_a_wildcard_address_has_localhost(program: Start) -> None:
    up = program("up", "--port", "0", "--host", "0.0.0.0", "-o", "json", "eh")
    ready = json.loads(up.line())
    assert (
        parse_connection_string(ready["connection_strings"]["eh"]).address
        == f"localhost:{ready['port']}"
    )
    assert "eh" in listed(ready["namespace_connection_string"])


@pytest.mark.parametrize(
    ("host", "resolved", "name"),
    [
        ("::1", "::1", "localhost"),
        ("0:0::1", "::1", "localhost"),
        ("::1", None, "a host name that resolves to it"),
        ("fe80::1", "::1", "a host name that resolves to it"),
    ],
)
def test_an_ipv6_address_is_reported(
    host: str,
    resolved: str | None,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Official clients cannot parse one in a connection string."""

    def getaddrinfo(*args: object) -> list[object]:
        if resolved is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (resolved, 0, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    warn_of_literal(host)
    printed = capsys.readouterr()
    assert printed.err == (
        f"WARNING: official clients cannot connect to an IPv6 address such as [{host}]: "
        f"replace [{host}] in the connection string by {name}\n"
    )
    assert printed.out == ""


def test_up_with_an_ipv6_address_prints_the_warning_and_the_json_line(program: Start) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 address ::1")
    up = program("up", "--port", "0", "--host", "::1", "-o", "json", "eh")
    assert "sb://[::1]:" in json.loads(up.line())["connection_strings"]["eh"]
    code, text = up.end(signal.SIGTERM)
    assert (code, text.splitlines()[0][:25]) == (0, "WARNING: official clients")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::", "0.0.0.0"])
def test_other_addresses_are_not_reported(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_literal(host)
    assert capsys.readouterr().err == ""


def test_connections_have_limits(program: Start) -> None:
    up = program(
        "up", "--port", "0", "eh:1", "-o", "json",
        "--connections-per-address-max", "1", "--login-time", "1s",
    )  # fmt: skip
    ready = json.loads(up.line())
    address = ("127.0.0.1", ready["port"])
    with socket.create_connection(address, 30) as first, socket.create_connection(address, 30):
        assert first.recv(1) == b""  # the older anonymous connection makes room
    with socket.create_connection(address, 30) as silent:
        assert silent.recv(1) == b""  # after the login time


def test_retention_removes_old_events(program: Start) -> None:
    up = program("up", "--port", "0", "-o", "json", "eh:1", "--retention-bytes", "2MB")
    connection = json.loads(up.line())["connection_strings"]["eh"]
    send = program("send", "eh", "x" * 10_000, "--count", "500", connection=connection)
    assert send.wait()[0] == 0
    first = program("tail", "--from", "earliest", "-n", "1", connection=connection).line()
    assert int(first.split()[0].partition(":")[2]) > 200

"""The comparison with other brokers: its arithmetic, and how it starts and ends processes."""

import signal
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest

from benchmarks import _report
from benchmarks._brokers import comparing, measuring
from benchmarks._brokers.comparing import Peer
from benchmarks._brokers.hub import BULK, NATIVE, SDK, Hub
from benchmarks._brokers.measuring import CONSUME, PUBLISH, Case, Crash, Rates, Run
from benchmarks._brokers.model import DURABLE, MEMORY, Kind, Launch, stream_name
from benchmarks._brokers.servers import (
    NotReady,
    data_folder,
    free_ports,
    greets,
    responds,
    running,
)
from benchmarks._figures import Figure, compare

PEERS = [Peer("a", "A"), Peer("b", "B"), Peer("c", "C", "run scripts/brokers")]
PYTHON = Path(sys.executable)
TASKS = (PUBLISH, CONSUME)


# -- figures ---------------------------------------------------------------------------------------


def rates(*numbers: float) -> list[Rates]:
    return [Rates(number, number, number) for number in numbers]


def by_name(figures: Sequence[Figure]) -> dict[str, Figure]:
    return {figure.figure: figure for figure in figures}


def test_every_peer_has_a_row_for_broker_client_and_wall_rate() -> None:
    found = {
        Case(NATIVE.name, 1024, PUBLISH): rates(10, 30, 20),
        Case("a", 1024, PUBLISH): rates(10, 10, 10),
        Case("b", 1024, PUBLISH): rates(100, 100),  # failed in the third round
    }
    rows = by_name(list(comparing.task_figures(found, MEMORY, 1024, PUBLISH, PEERS)))
    assert rows["publish 1 KiB, broker vs A"].ratio == 2
    assert (rows["publish 1 KiB, broker vs A"].goal, rows["publish 1 KiB, broker vs B"].met) == (
        comparing.PUBLISH_GOAL,
        False,
    )
    assert rows["publish 1 KiB, wall rate vs B"].rounds == 2
    assert rows["publish 1 KiB, client vs A"].goal is None
    absent = rows["publish 1 KiB, broker vs C: absent (run scripts/brokers)"]
    assert (absent.ours, absent.peer, absent.met) == (20, None, None)


def test_other_clients_of_ours_are_compared_with_the_best_peer() -> None:
    found = {
        Case(NATIVE.name, 100, CONSUME): rates(10),
        Case(BULK.name, 100, CONSUME): rates(60),
        Case(SDK.name, 100, CONSUME): rates(3),
        Case("a", 100, CONSUME): rates(20),
        Case("b", 100, CONSUME): rates(30),
    }
    rows = by_name(list(comparing.task_figures(found, MEMORY, 100, CONSUME, PEERS)))
    assert rows["consume 100 B, bulk client, broker vs the best, B"].ratio == 2
    assert rows["consume 100 B, official SDK, client vs the best, B"].ratio == 0.1


def test_a_peer_that_is_read_in_short_passes_has_no_wall_rate_of_reading() -> None:
    found = {Case(kind, 1024, task): rates(5) for kind in (NATIVE.name, "a") for task in TASKS}
    peers = [Peer("a", "A", reads_walls=False)]
    rows = by_name(list(comparing.cost_figures(found, MEMORY, peers)))
    assert "publish 1 KiB, wall rate vs A" in rows
    assert "consume 1 KiB, wall rate vs A" not in rows


def test_without_any_peer_our_numbers_remain() -> None:
    found = {Case(kind.name, 100, CONSUME): rates(7) for kind in (NATIVE, BULK, SDK)}
    figures = list(comparing.cost_figures(found, MEMORY, [Peer("c", "C", "run scripts/brokers")]))
    assert {figure.ours for figure in figures} == {7}
    assert all(figure.peer is None and figure.met is None for figure in figures)


def test_a_durable_wall_rate_has_a_goal() -> None:
    found = {Case(name, 1024, PUBLISH): rates(5) for name in (NATIVE.name, "a")}
    rows = by_name(list(comparing.cost_figures(found, DURABLE, PEERS[:1])))
    assert rows["publish 1 KiB, wall rate vs A"].goal == comparing.DURABLE_GOAL


def test_a_delay_within_twice_the_peers_meets_the_goal() -> None:
    found = {NATIVE.name: [[2.0] * 200], "a": [[1.1] * 200], "b": [[0.9] * 200]}
    rows = by_name(list(comparing.delay_figures(found, 100, PEERS)))
    assert rows["p99 delay at 100 events/s vs A"].met is True
    assert rows["p99 delay at 100 events/s vs B"].met is False
    assert rows["p50 delay at 100 events/s vs A"].met is None


def test_lost_events_are_counted_even_if_a_peer_lost_none() -> None:
    peer = Crash(acknowledged=50, missing=0, ready_s=1.0)

    def gone(missing: int) -> Figure:
        found = {NATIVE.name: Crash(100, missing, 2.0), "a": peer}
        return next(iter(comparing.crash_figures(found, PEERS)))

    assert (gone(0).met, gone(0).ratio) == (True, None)
    assert gone(3).met is False


def test_each_form_of_the_hub_starts_against_each_peer() -> None:
    figures = list(comparing.start_figures({"x": [2.0], "y": [0.1]}, {"A": [1.0]}))
    assert [(figure.figure, figure.met) for figure in figures] == [
        ("cold start, x vs A", False),
        ("cold start, y vs A", True),
    ]


def test_a_zero_has_no_ratio() -> None:
    figure = compare("lost", "events", [0, 0], [5, 0], goal=0, lower_is_better=True)
    assert (figure.ratio, figure.low, figure.met) == (None, None, True)


# -- amounts ---------------------------------------------------------------------------------------


def test_slow_clients_and_small_brokers_get_fewer_events() -> None:
    slow = Kind("s", "S", PYTHON, share=0.25, durable_share=0.1)
    small = Kind("t", "T", PYTHON, keeps_bytes=11_240)
    assert measuring.amount(slow, 1024, 1000, MEMORY) == 250
    assert measuring.amount(slow, 1024, 1000, DURABLE) == 25
    assert measuring.amount(small, 1024, 1000, MEMORY) == 10
    assert measuring.passes_of(small, 1000, 10, passes=2) == 8  # at most four times as often
    assert measuring.passes_of(Kind("u", "U", PYTHON, rereads=False), 1000, 1000, passes=2) == 1


def test_our_clients_share_a_stream() -> None:
    kinds = [NATIVE, BULK, SDK]
    assert [measuring.shares_stream(kind, kinds) for kind in kinds] == [False, True, True]
    assert stream_name(SDK.name, 100) == stream_name(NATIVE.name, 100)


# -- processes -------------------------------------------------------------------------------------


class Listening:
    """A broker that accepts connections and greets; or one that ends at once."""

    name = "listening"
    kinds = (Kind("listening", "Listening", PYTHON),)

    def __init__(self, program: str) -> None:
        self.program, self.interpreter = program, sys.executable

    def absent(self) -> str:
        return ""

    def launch(self, folder: Path, mode: str) -> Launch:
        (port,) = free_ports(1)
        ready = greets(port, b"hello", b"welcome", str(port))
        return Launch(([self.interpreter, "-c", self.program, str(port)],), {}, ready)


SERVES = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
    while True:
        accepted, _ = listening.accept()
        with accepted:
            accepted.recv(5)
            accepted.sendall(b"welcome")
"""


def test_a_broker_is_ready_when_it_greets_and_ends_with_its_block() -> None:
    with data_folder() as folder, running(Listening(SERVES), folder, MEMORY, 60) as server:
        assert responds(int(server.address), b"hello", b"welcome")
        assert server.start_s > 0
    assert not Path(f"/proc/{server.pid}").exists()
    assert not folder.exists()


def test_a_broker_that_was_killed_is_gone() -> None:
    with data_folder() as folder, running(Listening(SERVES), folder, MEMORY, 60) as server:
        server.end(signal.SIGKILL)
        assert server.process.returncode == -signal.SIGKILL
        assert not responds(int(server.address), b"hello", b"welcome")


@pytest.mark.parametrize(
    ("program", "start_s", "reason"),
    [
        ("raise SystemExit(3)", 60, "it ended with status 3"),
        ("import time; time.sleep(60)", 0.1, "not ready .it had 0.1 s."),
    ],
)
def test_a_broker_that_does_not_start_is_reported(
    program: str, start_s: float, reason: str
) -> None:
    began = time.monotonic()
    with (
        data_folder() as folder,
        pytest.raises(NotReady, match=reason),
        running(Listening(program), folder, MEMORY, start_s),
    ):
        pass
    assert time.monotonic() - began < 60


def test_a_missing_program_is_reported() -> None:
    broker = Listening(SERVES)
    broker.interpreter = "/nonexistent/python"
    with (
        data_folder() as folder,
        pytest.raises(NotReady, match="No such file"),
        running(broker, folder, MEMORY, 60),
    ):
        pass


def test_a_peer_that_fails_is_left_out_with_its_reason() -> None:
    run, broker = Run(1.0), Listening(SERVES)
    with run.tolerating(broker):
        raise NotReady("not ready")
    assert run.absent["listening"] == "not ready"


def test_a_failure_of_ours_is_an_error() -> None:
    with pytest.raises(NotReady), Run(1.0).tolerating(Hub()):
        raise NotReady("not ready")


def test_a_worker_reports_why_it_failed() -> None:
    kind = Listening.kinds[0]  # the worker knows no client of this name
    with (
        data_folder() as folder,
        running(Listening(SERVES), folder, MEMORY, 60) as server,
        pytest.raises(measuring.WorkerFailed, match="failed to publish: KeyError"),
    ):
        measuring.work(server, "publish", kind, "s", MEMORY, server.pid, 1, 1)


# -- the page --------------------------------------------------------------------------------------


def test_a_group_has_a_table_of_its_own() -> None:
    figures = [Figure("one", 1, "s", group="First"), Figure("two", 2, "s", group="Second")]
    text = _report.section("brokers", figures)
    assert text.index("### First") < text.index("| one |") < text.index("### Second")
    assert text.count("| figure |") == 2


def test_only_figures_with_a_goal_of_a_group_are_drawn() -> None:
    figures = [
        Figure("with goal", 1, "s", peer=2, goal=1, group="First"),
        Figure("no goal", 1, "s", peer=2, group="First"),
    ]
    drawn = _report.picture(figures)
    assert "with goal" in drawn
    assert "no goal" not in drawn


def test_a_section_joins_the_page_and_the_others_stay() -> None:
    figures = [Figure("reads", 5, "x/s")]
    first = _report.page({"bulk": figures, "reader": figures}, date(2026, 1, 2))
    page = _report.joined(first, {"hub": [Figure("sends", 7, "x/s")]}, date(2026, 3, 4), 1.6)
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert [title.split()[1] for title in titles] == ["Reading", "CPU", "Reading"]
    assert page.count("| reads | 5 |") == 2
    dated = "Measured on 2026-03-04, at the end with a load average of 2."
    assert f"`python -m benchmarks.hub`\n\n{dated}\n" in page
    again = _report.joined(page, {"hub": [Figure("sends", 8, "x/s")]}, date(2026, 3, 5), 0.1)
    assert (again.count("| sends |"), "2026-03-04" in again) == (1, False)
    assert _report.with_current_texts(again) == again

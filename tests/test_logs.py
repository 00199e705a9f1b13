"""Log lines have one form, and a repeated failure does not fill the log."""

import pytest

from pumphouse.logs import VALUE_CHARS_MAX, LogThrottle, RepeatedFailures, line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("vm-1", "vm-1"),
        (7, "7"),
        (0.25, "0.25"),
        (3.0, "3"),
        ("", '""'),
        ("two words", '"two words"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("a=b", '"a=b"'),
        ("line\nbreak", '"line\\nbreak"'),
        (OSError("disk full"), '"OSError: disk full"'),
        ("\x1b[31mred", '"\\u001b[31mred"'),
        ("\x9b31m", '"\\u009b31m"'),  # the same in one character
        ("\x7f", '"\\u007f"'),
        ("a\u202eb", '"a\\u202eb"'),  # reverses the text after it
        ("a\u2028b", '"a\\u2028b"'),
        ("lone \udcff", '"lone \\\\udcff"'),
    ],
)
def test_a_value_is_one_word_or_quoted(value: object, shown: str) -> None:
    assert str(line("saved", key=value)) == f"saved key={shown}"


def test_a_field_without_a_value_is_left_out() -> None:
    assert str(line("partition_lost", partition="3", owner=None)) == "partition_lost partition=3"


def test_a_long_value_is_cut() -> None:
    assert len(str(line("failed", cause="x" * 10_000))) < VALUE_CHARS_MAX + 20


def test_a_repeated_failure_is_logged_at_powers_of_ten() -> None:
    failures = RepeatedFailures()
    logged = [failures.failed("list", OSError("away")) for _ in range(1000)]
    assert [count for count in logged if count is not None] == [1, 10, 100, 1000]


def test_a_changed_failure_and_one_after_a_success_are_logged() -> None:
    failures = RepeatedFailures()
    assert failures.failed("list", OSError("away")) == 1
    assert failures.failed("list", OSError("away")) is None
    assert failures.failed("list", OSError("refused")) == 3
    assert failures.failed("list", OSError("away")) is None
    assert failures.failed("renew", OSError("refused")) == 1
    assert failures.succeeded("list") == 4
    assert failures.succeeded("list") == 0
    assert failures.failed("list", OSError("refused")) == 1


def test_a_failure_with_another_tracking_id_is_a_repetition() -> None:
    failures = RepeatedFailures()
    texts = [
        f"It failed. TrackingId:{n}-a_G0, SystemTracker:h, Timestamp:2026-01-01T00:00:0{n}"
        for n in range(3)
    ]
    assert [failures.failed("key", text) for text in texts] == [1, None, None]


def test_members_that_fail_together_are_one_run() -> None:
    failures = RepeatedFailures()
    logged = [failures.failed("receive", "gone", 100.0, member) for member in range(16)]
    assert [count for count in logged if count is not None] == [1, 10]
    assert [failures.recovered("receive", member) for member in range(15)] == [None] * 15
    run = failures.recovered("receive", 15)
    assert run is not None
    assert run.log_fields(106.5) == {"failures": 16, "partitions": 16, "after_s": 6.5}
    assert failures.recovered("receive", 15) is None


def test_a_member_that_fails_much_later_is_logged() -> None:
    failures = RepeatedFailures()
    assert failures.failed("receive", "gone", 100.0, "0") == 1
    assert failures.failed("receive", "gone", 150.0, "1") is None
    assert failures.failed("receive", "gone", 300.0, "2") == 3


def test_a_member_that_was_given_up_does_not_keep_a_run_open() -> None:
    failures = RepeatedFailures()
    failures.failed("receive", "gone", 100.0, "0")
    failures.failed("receive", "gone", 100.0, "1")
    failures.forget("1")
    assert failures.recovered("receive", "0") is not None
    failures.failed("receive", "gone", 100.0, "1")
    failures.forget("1")
    assert failures.failed("receive", "gone", 100.0, "0") == 1


def test_texts_that_always_change_are_not_all_logged() -> None:
    failures = RepeatedFailures()
    logged = [failures.failed("list", f"failure {number}") for number in range(100)]
    assert len([count for count in logged if count is not None]) < 30


def test_an_event_is_logged_a_few_times_per_period() -> None:
    throttle = LogThrottle(lines_max=2, period_s=60.0)
    assert [throttle.due("a", now) for now in (0, 1, 2, 3)] == [1, 1, None, None]
    assert throttle.due("b", 3) == 1
    assert throttle.due("a", 60) == 3  # two were counted, and this one
    assert [throttle.due("a", now) for now in (61, 62)] == [1, None]


def test_one_key_may_be_logged_less_often() -> None:
    throttle = LogThrottle(lines_max=10, period_s=60.0)
    assert [throttle.due("a", now, lines=1) for now in (0, 1, 59, 61)] == [1, None, None, 3]

"""Log lines have one form, and a repeated failure does not fill the log."""

import pytest

from pumphouse.logs import VALUE_CHARS_MAX, RepeatedFailures, line


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
    assert failures.failed("list", OSError("refused")) == 1
    assert failures.failed("renew", OSError("refused")) == 1
    assert failures.succeeded("list") == 1
    assert failures.succeeded("list") == 0
    assert failures.failed("list", OSError("refused")) == 1

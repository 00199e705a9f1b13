"""Finding Java before Spark fails to."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.spark.session import JavaMissing, find_java, parse_version


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("command not understood", None),
    ],
)
def test_the_version_of_java(said: str, version: int | None) -> None:
    assert parse_version(said) == version


def test_java_is_found() -> None:
    assert find_java() >= 17


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"there is none\. On Debian or Ubuntu: apt install"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="JAVA_HOME is "):
        find_java()


def test_a_java_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("""#!/bin/sh\necho 'java version "1.8.0_392"' >&2\n""")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"Java 17 or newer, and .* is 8"):
        find_java()

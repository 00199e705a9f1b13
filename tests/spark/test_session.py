"""Java is checked before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.spark.session import JavaMissing, find_java, parse_version


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("command not understood", None),
    ],
)
def test_the_version_of_java_is_parsed(output: str, version: int | None) -> None:
    assert parse_version(output) == version


def test_java_is_found() -> None:
    assert find_java() >= 17


def test_a_missing_java_is_an_error_that_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"not found\. On Debian or Ubuntu: apt install"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="not found in JAVA_HOME="):
        find_java()


def test_an_old_java_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("""#!/bin/sh\necho 'java version "1.8.0_392"' >&2\n""")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"Java 17 or newer: .* has version 8"):
        find_java()

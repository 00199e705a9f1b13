"""Lower bounds of dependencies are above known vulnerabilities, and the lock file keeps them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = re.findall(
    r"^([a-z0-9.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
)

# The first version without the vulnerabilities that pyproject.toml names.
SAFE = {
    "starlette": "1.3.1",
    "aiohttp": "3.14.3",
    "azure-core": "1.38",
    "protobuf": "6.33.5",
    "cryptography": "50",
    "pyarrow": "23.0.1",
    "h11": "0.16",  # CVE-2025-43859: chunked bodies with invalid line ends
}


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    return [Requirement(text) for text in texts if not text.startswith("pumphouse[")]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda each: each.name)
def test_the_lock_file_keeps_the_lower_bounds(requirement: Requirement) -> None:
    versions = [version for name, version in LOCKED if name == requirement.name]
    assert versions, f"{requirement.name} is not locked"
    for version in versions:
        assert requirement.specifier.contains(Version(version)), f"{requirement} has {version}"


@pytest.mark.parametrize(("name", "safe"), SAFE.items())
def test_a_vulnerable_version_is_not_accepted(name: str, safe: str) -> None:
    found = [each for each in requirements() if each.name == name]  # several extras may need it
    assert found
    for requirement in found:
        (bound,) = [each for each in requirement.specifier if each.operator == ">="]
        assert Version(bound.version) >= Version(safe)

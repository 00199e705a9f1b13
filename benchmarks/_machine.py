"""The machine that a benchmark ran on, without anything that identifies its owner."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PEERS = ("azure-eventhub", "numpy", "pyspark", "pyarrow")


def describe() -> dict[str, str]:
    """The properties of the machine that matter for speed, by name."""
    return {
        "CPU": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory_gib():.0f} GiB",
        "OS": f"{os_name()}, {platform.system()} {kernel(platform.release())}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: version_of for name in PEERS if (version_of := installed(name))},
    }


def cpu_model(cpuinfo: str) -> str:
    """The name of the CPU from /proc/cpuinfo; Arm machines have none."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def kernel(release: str) -> str:
    """The kernel version without its suffix, which is often the name of a machine image."""
    return release.partition("-")[0]


def memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def os_name() -> str:
    try:
        release: Mapping[str, str] = platform.freedesktop_os_release()
    except OSError:
        return "unknown system"
    return release.get("PRETTY_NAME", "unknown system")


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

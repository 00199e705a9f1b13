"""What a pipeline refuses before it starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pumphouse.clock import MovableClock
from pumphouse.errors import ConnectionFailed, HubNotFound, OptionError
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.pipeline import (
    HUBS,
    LOCAL_FILES,
    STAGES,
    Pipeline,
    PipelineOptions,
    check_hubs,
    join_all,
    locked_folder,
    spark_settings,
)
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB
from pumphouse.homes.stage_start import check_stores
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.spark.versions.features import STATE, SparkTooOld

PUMPHOUSE = Path(sys.executable).with_name("pumphouse")
KEY = "a2V5IG9mIG5vYm9keQ=="
STORAGE = f"AccountName=x;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:1/x"


def run(connection: str, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PUMPHOUSE, "homes", "run", *map(str, words)],
        env={**os.environ, "PUMPHOUSE_CONNECTION": connection, **more},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_stages_stop_within_one_bound() -> None:
    """A stage that does not end does not extend the time of the others."""
    clock = MovableClock()

    class Stuck(threading.Thread):
        waited_s = 0.0

        def join(self, timeout: float | None = None) -> None:
            assert timeout is not None
            self.waited_s = timeout
            clock.advance(timeout)

    threads = [Stuck() for _ in range(6)]
    join_all(threads, 40.0, clock)
    assert 0 < sum(thread.waited_s for thread in threads) <= 40.0


async def test_check_hubs_raises_for_a_missing_hub(event_hub: EmbeddedHub) -> None:
    for hub in (ACTIVITY_HUB, ALERTS_HUB):
        event_hub.create_hub(hub, 2)
    namespace = HomesNamespace(event_hub.connection_string())
    await check_hubs(namespace, ["record"])
    with pytest.raises(HubNotFound, match="sensors"):
        await check_hubs(namespace, STAGES)


@pytest.mark.lacks(STATE)
def test_a_pipeline_refuses_a_spark_that_is_too_old(tmp_path: Path) -> None:
    gone = HomesNamespace("Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b")
    pipeline = Pipeline(gone, PipelineOptions(tmp_path / "data"))
    with pytest.raises(SparkTooOld, match=r"the homes pipeline .* needs Spark 4\.1 or newer, and"):
        pipeline.run()
    assert not (tmp_path / "data").exists()


async def test_check_hubs_raises_without_a_server() -> None:
    gone = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"
    with pytest.raises(ConnectionFailed):
        await check_hubs(HomesNamespace(gone), STAGES)


def test_the_command_names_the_missing_hub(event_hub: EmbeddedHub, tmp_path: Path) -> None:
    done = run(event_hub.connection_string(), "--data", tmp_path / "data")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pumphouse: ")
    assert "sensors" in done.stderr
    assert not (tmp_path / "data").exists()


def test_the_command_refuses_unknown_stages(tmp_path: Path) -> None:
    done = run("Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b",
               "--stages", "sift,sort", "--data", tmp_path)  # fmt: skip
    assert done.returncode == 2
    assert "use sift, watch, record (got sort)" in done.stderr


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"database": "postgresql://me:hunter2@127.0.0.1:1/x"},
            ConnectionFailed,
            "port 1 failed: Connection",
        ),
        (
            {"database": "mysql://me:hunter2@h/x"},
            OptionError,
            "use sqlite:///PATH or postgresql://",
        ),
        (
            {"storage": "/proc/nowhere"},
            OptionError,
            "/proc/nowhere> cannot be used for records: ",
        ),
        (
            {"storage": f"{STORAGE};Container=c"},
            ConnectionFailed,
            "cannot use the storage at 127.0.0.1:1/x: ",
        ),
    ],
)
def test_an_unusable_store_is_reported_before_the_start(
    tmp_path: Path, options: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)) as raised:
        check_stores(PipelineOptions(tmp_path, ("record",), **options))  # type: ignore[arg-type]
    text = str(raised.value)
    assert len(text.splitlines()) == 1
    assert "hunter2" not in text
    assert KEY not in text


def test_the_command_reports_an_unusable_folder_in_one_line(homes_hub: EmbeddedHub) -> None:
    done = run(homes_hub.connection_string(), "--stages", "record", "--data", "/proc/nowhere")
    assert "/proc/nowhere cannot be used for data: " in done.stderr
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_a_second_pipeline_in_the_same_folder_is_refused(
    homes_hub: EmbeddedHub, tmp_path: Path
) -> None:
    with locked_folder(tmp_path):
        done = run(homes_hub.connection_string(), "--data", tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path} is in use by another pipeline" in done.stderr
    with locked_folder(tmp_path):  # the folder is free after the other pipeline has ended
        assert (tmp_path / ".lock").exists()


def test_without_java_the_error_names_the_package(homes_hub: EmbeddedHub, tmp_path: Path) -> None:
    nowhere = {"JAVA_HOME": str(tmp_path / "nowhere")}
    done = run(homes_hub.connection_string(), "--data", tmp_path / "data", **nowhere)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "pumphouse: Spark needs Java 17 or newer: not found in JAVA_HOME="
    )
    assert "apt install openjdk-17-jre-headless" in done.stderr


@pytest.mark.parametrize("master", ["foo", "spark://head", "local[", "local[2", "yarn:1", ""])
def test_an_invalid_master_is_refused(tmp_path: Path, master: str) -> None:
    with pytest.raises(OptionError, match=r"invalid Spark master .*: use local\[2\], spark://HOST"):
        PipelineOptions(tmp_path, master=master)


@pytest.mark.parametrize(
    "master",
    ["local", "local[2]", "local[*,3]", "local-cluster[2,1,1024]", "spark://a:7077,b:7077", "yarn"],
)
def test_valid_masters_are_accepted(tmp_path: Path, master: str) -> None:
    assert PipelineOptions(tmp_path, master=master).master == master


def test_every_stage_has_its_hubs() -> None:
    assert tuple(HUBS) == STAGES


@pytest.mark.parametrize(
    ("namespace", "here"),
    [(None, True), ("/mnt/checkpoints", True), ("hdfs://head/checkpoints", False)],
)
def test_local_checkpoints_use_a_file_manager_without_processes(
    tmp_path: Path, namespace: str | None, here: bool
) -> None:
    settings = spark_settings(PipelineOptions(tmp_path, checkpoints=namespace))
    assert (settings.items() >= LOCAL_FILES.items()) is here


def test_given_settings_override_the_defaults(tmp_path: Path) -> None:
    given = dict.fromkeys([*LOCAL_FILES, "spark.driver.memory"], "mine")
    assert spark_settings(PipelineOptions(tmp_path, settings=given)).items() >= given.items()

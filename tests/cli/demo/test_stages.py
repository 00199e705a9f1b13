"""What the demonstration tells its processes, they understand."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from pumphouse.cli import main
from pumphouse.cli.demo import stages
from pumphouse.cli.demo.processes import ProcessSpec
from pumphouse.cli.demo.stages import DemoPlan

CONNECTION = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
PLAN = DemoPlan(Path("here"), homes=100)


@pytest.mark.parametrize(
    "spec",
    [stages.spark_process(PLAN, CONNECTION), stages.sender_process(PLAN, CONNECTION, 70)],
    ids=lambda spec: spec.name,
)
def test_every_part_is_a_command_that_is_understood(spec: ProcessSpec) -> None:
    command: click.Command = main
    context, words = click.Context(main, info_name="pumphouse"), [*spec.arguments]
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=found.name)
    command.make_context(spec.name, words, parent=context.parent)


def test_a_connection_string_is_on_no_command_line() -> None:
    for spec in (
        stages.spark_process(PLAN, CONNECTION),
        stages.sender_process(PLAN, CONNECTION, 70),
    ):
        assert "c2VjcmV0" not in " ".join(spec.arguments)
        assert spec.env == {"EVENT_HUB_CONN_STR": CONNECTION}
    assert "c2VjcmV0" not in repr(DemoPlan(Path("here"), 1, azure=CONNECTION))

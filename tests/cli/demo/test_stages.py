"""The commands of the demo processes are valid."""

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
def test_every_process_has_a_valid_command(spec: ProcessSpec) -> None:
    command: click.Command = main
    context, arguments = click.Context(main, info_name="pumphouse"), [*spec.arguments]
    while isinstance(command, click.Group):
        child = command.get_command(context, arguments.pop(0))
        assert child is not None
        command, context = child, click.Context(child, parent=context, info_name=child.name)
    command.make_context(spec.name, arguments, parent=context.parent)


def test_no_command_line_contains_the_connection_string() -> None:
    for spec in (
        stages.spark_process(PLAN, CONNECTION),
        stages.sender_process(PLAN, CONNECTION, 70),
    ):
        assert "c2VjcmV0" not in " ".join(spec.arguments)
        assert spec.env == {"EVENT_HUB_CONN_STR": CONNECTION}
    assert "c2VjcmV0" not in repr(DemoPlan(Path("here"), 1, azure=CONNECTION))

"""What the demonstration tells its players, they understand."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from pumphouse.cli import main
from pumphouse.cli.demo import stages as cast
from pumphouse.cli.demo.processes import Part
from pumphouse.cli.demo.stages import Cast

CONNECTION = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
PLAY = Cast(Path("here"), homes=100)


@pytest.mark.parametrize(
    "part",
    [cast.stages(PLAY, CONNECTION), cast.senders(PLAY, CONNECTION, 70)],
    ids=lambda part: part.name,
)
def test_every_part_is_a_command_that_is_understood(part: Part) -> None:
    command: click.Command = main
    context, words = click.Context(main, info_name="pumphouse"), [*part.words]
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=found.name)
    command.make_context(part.name, words, parent=context.parent)


def test_a_connection_string_is_on_no_command_line() -> None:
    for part in (cast.stages(PLAY, CONNECTION), cast.senders(PLAY, CONNECTION, 70)):
        assert "c2VjcmV0" not in " ".join(part.words)
        assert part.env == {"EVENT_HUB_CONN_STR": CONNECTION}
    assert "c2VjcmV0" not in repr(Cast(Path("here"), 1, azure=CONNECTION))

"""The command line to a hub that speaks TLS."""

from __future__ import annotations

from click.testing import CliRunner

from pumphouse.cli import main
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import NOWHERE, good, refused


def test_tls_with_a_certificate_of_the_hubs_own() -> None:
    with EmbeddedHub({"orders": 1}, tls_port=0) as hub:
        env = {**NOWHERE, "EVENT_HUB_CONN_STR": hub.connection_string(tls=True)}
        runner = CliRunner(env=env)
        stranger = refused(runner.invoke(main, ["send", "orders", "hello"]))
        assert "shows a certificate that is not trusted" in stranger
        trust = ["--ca-file", str(hub.ca_file)]
        assert good(runner.invoke(main, ["send", "orders", "hello", *trust])) == "sent 1 event\n"
        told = CliRunner(env={**env, "PUMPHOUSE_CA_FILE": str(hub.ca_file)})
        assert "hello" in good(told.invoke(main, ["tail", "orders"]))


def test_a_file_that_is_not_there_is_said_at_once() -> None:
    result = CliRunner(env=NOWHERE).invoke(main, ["tail", "orders", "--ca-file", "nowhere.pem"])
    assert result.exit_code == 2
    assert "nowhere.pem" in result.stderr

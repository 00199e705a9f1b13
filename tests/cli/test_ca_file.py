"""The option --ca-file."""

from __future__ import annotations

from click.testing import CliRunner

from pumphouse.cli import main
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import NOWHERE, good, refused


def test_a_self_signed_hub_needs_the_ca_file() -> None:
    with EmbeddedHub({"orders": 1}, tls_port=0) as hub:
        env = {**NOWHERE, "EVENT_HUB_CONN_STR": hub.connection_string(tls=True)}
        runner = CliRunner(env=env)
        message = refused(runner.invoke(main, ["send", "orders", "hello"]))
        assert "has a certificate that is not trusted" in message
        trust = ["--ca-file", str(hub.ca_file)]
        assert good(runner.invoke(main, ["send", "orders", "hello", *trust])) == "sent 1 event\n"
        configured = CliRunner(env={**env, "PUMPHOUSE_CA_FILE": str(hub.ca_file)})
        assert "hello" in good(configured.invoke(main, ["tail", "orders"]))


def test_a_missing_ca_file_is_reported() -> None:
    result = CliRunner(env=NOWHERE).invoke(main, ["tail", "orders", "--ca-file", "nowhere.pem"])
    assert result.exit_code == 2
    assert "nowhere.pem" in result.stderr

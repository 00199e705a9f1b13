"""The command line."""

import click


@click.group()
@click.version_option(package_name="pumphouse")
def main() -> None:
    """Pumphouse: an embedded event hub that speaks AMQP 1.0, and the tools around it."""

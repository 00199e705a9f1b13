"""Options of a hub: as objects, as keywords, and both together."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.errors import OptionError, QuotaExceeded
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import (
    AccessOptions,
    ConfigOptions,
    HubSettings,
    LimitOptions,
    ListenerOptions,
    Retention,
    ServerOptions,
    StorageOptions,
)

OPTIONS = (AccessOptions, StorageOptions, LimitOptions, ListenerOptions, ConfigOptions)


def test_every_field_of_the_options_is_a_keyword() -> None:
    fields = [name for options in OPTIONS for name in options.__dataclass_fields__]
    assert sorted(fields) == sorted(HubSettings.__annotations__)


async def test_a_hub_takes_its_options_as_objects(tmp_path: Path) -> None:
    hub = EmbeddedHub(
        {"eh": 2},
        access=AccessOptions(root_key="key"),
        storage=StorageOptions(data=tmp_path, sync="never", retention=Retention(seconds=60)),
        limits=LimitOptions(tier="basic"),
        listeners=ListenerOptions(http_port=0),
    )
    async with hub:
        assert "SharedAccessKey=key;" in hub.connection_string("eh")
        assert (hub.data, hub.namespace.retention.seconds) == (tmp_path, 60)
        assert hub.http_port
        with pytest.raises(QuotaExceeded, match="the basic tier allows 32 per hub"):
            hub.create_hub("large", 33)


def test_a_keyword_overrides_the_field_of_an_object() -> None:
    limits = LimitOptions(tier="basic", message_bytes_max=1000)
    hub = EmbeddedHub(limits=limits, tier="standard")
    assert hub.namespace.tier is not None
    assert (hub.namespace.tier.name, hub.namespace.message_bytes_max) == ("standard", 1000)


def test_an_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        EmbeddedHub(colour="red")  # type: ignore[call-arg]


def test_an_unknown_sync_mode_is_refused() -> None:
    with pytest.raises(OptionError, match="sync must be one of always, interval, never"):
        EmbeddedHub(sync="sometimes")


def test_no_repr_shows_the_root_key() -> None:
    assert "secret" not in repr(AccessOptions(root_key="secret"))


@pytest.mark.parametrize("name", ["connections_max", "connections_per_address_max", "handshake_s"])
def test_a_limit_of_connections_is_above_zero(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} must be above 0"):
        ServerOptions(**{name: 0})  # type: ignore[arg-type]

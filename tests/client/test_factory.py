"""The choice of the driver, and that both drivers implement HubClient."""

from __future__ import annotations

import pytest

import pumphouse
from pumphouse.client.azure.client import AzureClient
from pumphouse.client.connection_string import read_connection_string
from pumphouse.client.factory import choose_driver, open_client
from pumphouse.client.native.client import NativeClient
from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub

KEY = "SharedAccessKeyName=a;SharedAccessKey=b"
AZURE = f"Endpoint=sb://ns.servicebus.windows.net/;{KEY}"


@pytest.mark.parametrize(
    ("host", "emulator", "driver", "chosen"),
    [
        ("ns.servicebus.windows.net", False, "auto", "azure"),
        ("ns.servicebus.windows.net", False, "native", "native"),
        ("hub.example", True, "auto", "native"),
        ("localhost:5671", False, "auto", "native"),
        ("127.0.0.2:9", False, "auto", "native"),
        ("[::1]:9", False, "auto", "native"),
        ("10.0.0.1", False, "auto", "azure"),
        ("localhost", True, "azure", "azure"),
    ],
)
def test_the_driver_for_an_address(host: str, emulator: bool, driver: str, chosen: str) -> None:
    text = f"Endpoint=sb://{host};{KEY}" + (";UseDevelopmentEmulator=true" if emulator else "")
    assert choose_driver(read_connection_string(text), driver) == chosen


def test_an_unknown_driver_is_refused() -> None:
    with pytest.raises(OptionError, match="driver must be one of auto, native, azure"):
        open_client(AZURE, driver="java")


async def test_open_client_returns_the_chosen_driver() -> None:
    assert isinstance(open_client(AZURE, "eh"), AzureClient)
    native = open_client(AZURE, "eh", driver="native")
    assert isinstance(native, NativeClient)
    assert (native.hub, native.namespace) == ("eh", "ns.servicebus.windows.net")


async def test_open_client_is_public() -> None:
    async with (
        EmbeddedHub({"eh": 1}) as hub,
        pumphouse.open_client(hub.connection_string("eh")) as client,
    ):
        assert await (await client.sender()).send([Event(b"x")]) == 1
        assert client.namespace == f"127.0.0.1:{hub.port}"

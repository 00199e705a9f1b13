"""Opens the hub that a query's options name, with the identity that they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pumphouse.client.base import HubClient, TokenCredential
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError
from pumphouse.spark.options import HubIdentity


def open_hub(identity: HubIdentity) -> HubClient:
    """An asyncio client of the hub."""
    return open_client(
        identity.connection,
        identity.hub,
        driver=identity.driver,
        credential=make_credential(identity),
        transport=identity.transport,
        ca_file=identity.ca_file or None,
        retry=identity.retry,
    )


def make_credential(identity: HubIdentity) -> TokenCredential | None:
    """The azure-identity credential that the options name; None if they give a key."""
    if identity.credential == "none":
        return None
    try:
        import azure.identity as azure
    except ImportError:
        raise OptionError(
            f"credential={identity.credential} needs azure-identity: pip install 'pumphouse[azure]'"
        ) from None
    client_id = identity.client_id or None
    makers: Mapping[str, Callable[[], Any]] = {
        "default": lambda: azure.DefaultAzureCredential(managed_identity_client_id=client_id),
        "managed_identity": lambda: azure.ManagedIdentityCredential(client_id=client_id),
        "environment": azure.EnvironmentCredential,
        "azure_cli": azure.AzureCliCredential,
        "client_secret": lambda: azure.ClientSecretCredential(
            identity.tenant_id, identity.client_id, identity.client_secret
        ),
    }
    credential: TokenCredential = makers[identity.credential]()
    return credential

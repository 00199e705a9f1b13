"""Pumphouse: partitioned event streams in Python. The public names, and nothing else."""

from pumphouse.errors import PumphouseError
from pumphouse.hub.auth import AccessRule, Claim
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.issuer import TokenIssuer
from pumphouse.hub.log import Retention

__all__ = ["AccessRule", "Claim", "EmbeddedHub", "PumphouseError", "Retention", "TokenIssuer"]

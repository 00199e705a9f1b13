"""Shared access signatures: how a holder of a key proves it without sending it.

connection string -> sign -> put-token on $cbs -> hub/access/auth.py verifies
                     ^^^^ this module
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from urllib.parse import quote_plus


def sign(resource: str, rule_name: str, key: str, expiry: int) -> str:
    """A shared access signature for a resource, valid until `expiry` (seconds since 1970)."""
    place = quote_plus(resource)
    digest = hmac.digest(key.encode(), f"{place}\n{expiry}".encode(), hashlib.sha256)
    signature = quote_plus(b64encode(digest))
    return (
        f"SharedAccessSignature sr={place}&sig={signature}&se={expiry}&skn={quote_plus(rule_name)}"
    )

"""Shared access signatures: tokens that prove the possession of a key.

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
    uri = quote_plus(resource)
    digest = hmac.digest(key.encode(), f"{uri}\n{expiry}".encode(), hashlib.sha256)
    signature = quote_plus(b64encode(digest))
    return f"SharedAccessSignature sr={uri}&sig={signature}&se={expiry}&skn={quote_plus(rule_name)}"

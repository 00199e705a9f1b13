"""Responses of Blob Storage, reduced to the four outcomes of a write.

A write took effect, another came first, its outcome is unknown, or the service rejects it
permanently. The official packages raise exceptions of many classes for these; here they become one
of four words. Error texts contain only status, error code and host: the messages of the packages
may contain URLs with signatures.

    Container -> exception -> classify_error -> BlobResponse -> Granted, Refused, Unknown
                              ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pumphouse.errors import StoreError, StoreUnavailable

Outcome = Literal[
    "written",
    "conflict",  # another write came first: the condition, or the lease, did not hold
    "unknown",  # it may have taken effect or not
    "rejected",  # it did not take effect, and will not until the account is changed
]

# Status 409 for other reasons than another write.
NOT_A_CONFLICT = ("ContainerBeingDeleted", "ContainerDisabled", "AccountIsDisabled")
ADVICE = {
    "ContainerNotFound": "create it, or open the store with create_container=True",
    "ContainerBeingDeleted": "wait until it is deleted, or use another one",
    "AuthenticationFailed": "the key or token does not match the account, or has expired",
    "AuthorizationFailure": "the credential does not allow this, or a firewall blocks it",
    "AuthorizationPermissionMismatch": "the role or signature must allow read, write, list, delete",
    "InvalidHeaderValue": "an emulator may need --skipApiVersionCheck",
}


@dataclass(frozen=True, slots=True)
class BlobResponse:
    """The outcome of one request; `code` is the service's error code."""

    outcome: Outcome
    etag: str = ""
    code: str = ""
    why: str = ""


def classify_error(error: BaseException, url: str) -> BlobResponse:
    """The response that an exception of the official package stands for."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    if status is None:
        return BlobResponse(
            _without_status(error), why=f"no response from {url} ({_reason(error)})"
        )
    code = str(getattr(code := getattr(error, "error_code", None), "value", code) or "")
    return BlobResponse(_by_status(status, code), code=code, why=_sentence(url, status, code))


def store_error(response: BlobResponse) -> StoreError:
    """The exception for a request that failed."""
    return (StoreUnavailable if response.outcome == "unknown" else StoreError)(response.why)


def _without_status(error: BaseException) -> Outcome:
    # A credential without a token, or a malformed key: nothing was sent.
    known = ("ClientAuthenticationError", "CredentialUnavailableError", "AzureSigningError")
    return "rejected" if type(error).__name__ in known else "unknown"


def _by_status(status: int, code: str) -> Outcome:
    if status in (408, 429) or status >= 500:
        return "unknown"
    if status == 412 or (status == 409 and code not in NOT_A_CONFLICT):
        return "conflict"
    return "conflict" if status == 404 and code == "BlobNotFound" else "rejected"


def _sentence(url: str, status: int, code: str) -> str:
    advice = ADVICE.get(code, "")
    return f"{url} returned {status} {code}".rstrip() + (f": {advice}" if advice else "")


def _reason(error: BaseException) -> str:
    """The class of the error, and the system's text of the OSError that caused it, if any.

    The message of the error is not used, because it may contain a secret.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return f"{type(error).__name__}: {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__

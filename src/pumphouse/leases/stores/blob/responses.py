"""What does an answer of Blob Storage mean for the write that asked?

A write was done, or somebody else's came first, or nobody knows, or the service will never do it
for us. The official packages tell these apart by exceptions of many classes; here they become one
of four words. What is shown of them is status, error code and host: their own messages may carry
addresses with signatures.

    Container -> exception -> classify_error -> BlobResponse -> Granted, Refused, Unknown
                              ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pumphouse.errors import StoreError, StoreUnavailable

Outcome = Literal[
    "written",
    "contested",  # somebody else wrote first: the condition, or the lease, did not hold
    "unanswered",  # it may be written or not
    "barred",  # it was not written and never will be, until somebody changes the account
]

# A blob in a container that is being deleted is in nobody else's hands.
NOT_A_CONFLICT = ("ContainerBeingDeleted", "ContainerDisabled", "AccountIsDisabled")
ADVICE = {
    "ContainerNotFound": "create it, or open the store with create_container=True",
    "ContainerBeingDeleted": "wait until it is gone, or use another one",
    "AuthenticationFailed": "the key or token does not fit the account, or has run out",
    "AuthorizationFailure": "what we present does not allow this, or a firewall is in the way",
    "AuthorizationPermissionMismatch": "the role or signature must allow read, write, list, delete",
    "InvalidHeaderValue": "an emulator may need --skipApiVersionCheck",
}


@dataclass(frozen=True, slots=True)
class BlobResponse:
    """What came of one request; `code` is the service's own word for a refusal."""

    outcome: Outcome
    etag: str = ""
    code: str = ""
    why: str = ""


def classify_error(error: BaseException, place: str) -> BlobResponse:
    """The answer that an exception of the official package stands for."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    if status is None:
        return BlobResponse(
            _without_status(error), why=f"no answer from {place} ({_reason(error)})"
        )
    code = str(getattr(code := getattr(error, "error_code", None), "value", code) or "")
    return BlobResponse(_by_status(status, code), code=code, why=_sentence(place, status, code))


def store_error(answer: BlobResponse) -> StoreError:
    """The error for a caller that cannot do without."""
    return (StoreUnavailable if answer.outcome == "unanswered" else StoreError)(answer.why)


def _without_status(error: BaseException) -> Outcome:
    # A credential that has no token, or a key that is none: nothing was sent.
    known = ("ClientAuthenticationError", "CredentialUnavailableError", "AzureSigningError")
    return "barred" if type(error).__name__ in known else "unanswered"


def _by_status(status: int, code: str) -> Outcome:
    if status in (408, 429) or status >= 500:
        return "unanswered"
    if status == 412 or (status == 409 and code not in NOT_A_CONFLICT):
        return "contested"
    return "contested" if status == 404 and code == "BlobNotFound" else "barred"


def _sentence(place: str, status: int, code: str) -> str:
    advice = ADVICE.get(code, "")
    return f"{place} answered {status} {code}".rstrip() + (f": {advice}" if advice else "")


def _reason(error: BaseException) -> str:
    """The class of the store_error and what the system says of it; never its message."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return f"{type(error).__name__}: {seen.strerror}"
        seen = seen.__cause__ or seen.__context__
    return type(error).__name__

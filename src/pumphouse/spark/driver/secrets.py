"""Replaces references to secrets in options by the secrets: `secret:NAME`, `secret:file:/path`.

SQL, plans and notebooks contain only the reference. It is resolved in the processes of the driver;
tasks get the secret with the identity of the hub. A name is passed to a function of the user, which
PUMPHOUSE_SECRETS names as module:callable.

    options of a query -> resolve_options -> read_source, read_sink
                          ^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pumphouse.errors import OptionError
from pumphouse.spark.catalogue import BY_NAME
from pumphouse.spark.option_values import PREFIX

REFERENCE, FILE = "secret:", "file:"
RESOLVER_VARIABLE = "PUMPHOUSE_SECRETS"
RESOLVER_SETTING = "spark.pumphouse.secrets"
BYTES_MAX = 64 << 10
KEPT_S = 60.0  # a writer is made for every batch: the vault is not asked each time

_kept: dict[str, tuple[float, str]] = {}


def resolve_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a query, with its secrets in place of references to them."""
    return {
        name: resolve(name, value) if is_secret(name) else value for name, value in given.items()
    }


def is_secret(written: str) -> bool:
    option = BY_NAME.get(written.strip().lower().removeprefix(PREFIX))
    return option is not None and option.kind == "secret"


class Environment(Mapping[str, str]):
    """The environment of this process. Its connection strings may be references, too."""

    def __getitem__(self, name: str) -> str:
        return resolve(name, os.environ[name])

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def resolve(option: str, value: str) -> str:
    """The secret that a value refers to; other values are returned unchanged."""
    text = str(value).strip()
    if not text.startswith(REFERENCE):
        return value
    reference = text.removeprefix(REFERENCE)
    if reference.startswith(FILE):
        return read_secret_file(option, reference.removeprefix(FILE))
    return call_resolver(option, reference)


def read_secret_file(option: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            secret = file.read(BYTES_MAX).decode().strip()
    except (OSError, ValueError) as failed:
        reason = getattr(failed, "strerror", None) or type(failed).__name__
        raise OptionError(
            f"{option}: cannot read the file {path} on the driver: {reason}; check "
            f"{REFERENCE}{FILE}PATH"
        ) from None
    if not secret:
        raise OptionError(f"{option}: the file {path} is empty; write the secret into it")
    return secret


def call_resolver(option: str, name: str) -> str:
    """The secret of this name. No error has the text of another one: it may contain the secret."""
    kept_s, secret = _kept.get(name, (float("-inf"), ""))
    if time.monotonic() - kept_s < KEPT_S:
        return secret
    resolver = os.environ.get(RESOLVER_VARIABLE, "")
    module, colon, function = resolver.partition(":")
    if not (module and colon and function):
        raise OptionError(
            f"{option}={REFERENCE}{name} needs a function that returns the secret: set "
            f"{RESOLVER_VARIABLE}=module:callable before Spark starts, or {RESOLVER_SETTING} in "
            f"session(); or use {REFERENCE}{FILE}/PATH"
        )
    try:
        secret = getattr(importlib.import_module(module), function)(name)
    except Exception as failed:
        raise OptionError(
            f"{option}={REFERENCE}{name}: {resolver} raised {type(failed).__name__}; call it on "
            "the driver to see why"
        ) from None
    if not isinstance(secret, str) or not secret.strip():
        returned = "an empty text" if isinstance(secret, str) else type(secret).__name__
        raise OptionError(
            f"{option}={REFERENCE}{name}: {resolver} returned {returned}; it must return the secret"
        )
    _kept[name] = time.monotonic(), secret
    return secret

"""The log of the Azure SDK: quiet, unless the program asks for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pumphouse.client.azure.client import load_sdk
from pumphouse.leases.store_url import open_store

ACCOUNT = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=YQ==;Container=checkpoints"


@pytest.fixture
def azure() -> Iterator[logging.Logger]:
    logger = logging.getLogger("azure")
    before = logger.level
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.setLevel(before)


@pytest.mark.parametrize("make", [lambda: open_store(ACCOUNT), load_sdk])
def test_the_requests_of_the_sdk_are_not_logged_as_info(
    make: object, azure: logging.Logger
) -> None:
    assert callable(make)
    make()
    requests = logging.getLogger("azure.core.pipeline.policies.http_logging_policy")
    assert not requests.isEnabledFor(logging.INFO)
    assert requests.isEnabledFor(logging.WARNING)


@pytest.mark.parametrize("make", [lambda: open_store(ACCOUNT), load_sdk])
def test_a_level_that_the_program_has_set_stays(make: object, azure: logging.Logger) -> None:
    assert callable(make)
    azure.setLevel(logging.DEBUG)
    make()
    assert azure.level == logging.DEBUG

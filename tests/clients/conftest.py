"""Fixtures of the tests of real clients: a gateway per module and isolation, and no access to the internet."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import gateways
from tests.gateways import Gateway

# Keeps agents' libraries from contacting their vendors' servers; they read these variables when they are imported.
os.environ.update(  # noqa: TID251 - the libraries have no other setting
    HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", DO_NOT_TRACK="1", OTEL_SDK_DISABLED="true"
)


#: a client behaves the same without a container, so the tests with "process" are not part of the gate
ISOLATIONS = [pytest.param("process", marks=pytest.mark.full), pytest.param("docker", marks=pytest.mark.engine)]


@pytest.fixture(scope="module", params=ISOLATIONS)
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with gateways.gateway(request.param) as serving:
        yield serving

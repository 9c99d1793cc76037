"""What the tests of real clients share: a gateway per module and isolation, and no way out of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import gateways
from tests.gateways import Gateway

# What agents' libraries would send home, or fetch from there; they read it when they are imported.
os.environ.update(  # noqa: TID251 - for libraries that know no other way
    HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", DO_NOT_TRACK="1", OTEL_SDK_DISABLED="true"
)


#: what a client does is no other without a sandbox: those tests are not part of the gate
ISOLATIONS = [pytest.param("process", marks=pytest.mark.full), pytest.param("docker", marks=pytest.mark.engine)]


@pytest.fixture(scope="module", params=ISOLATIONS)
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with gateways.gateway(request.param) as serving:
        yield serving

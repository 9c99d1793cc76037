"""Gateways of every isolation, for all benchmarks."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from typing import Any

from tests.gateways import Gateway, gateway

ISOLATIONS = ("process", "runc", "runsc")
IMAGE = "kernel-gateway/python:latest"
#: seconds until warm kernels are there
WARM_TIMEOUT = 60.0


def serving_on(isolation: str, **settings: Any) -> AbstractContextManager[Gateway]:
    """A gateway whose kernels have this isolation; `gateways.gateway` describes the settings."""
    kind, runtime = ("process", "runsc") if isolation == "process" else ("docker", isolation)
    return gateway(kind, runtime=runtime, image=IMAGE, **settings)


def until_warm(serving: Gateway) -> None:
    """Wait for two warm kernels or more: the pool grows when sessions are requested faster."""
    deadline = time.monotonic() + WARM_TIMEOUT
    full = re.compile("^kernel_gateway_warm_kernels [2-9]", re.MULTILINE)
    while not full.search(serving.call("GET", "/metrics", tenant=None).text):
        assert time.monotonic() < deadline, "the pool does not fill"
        time.sleep(0.1)

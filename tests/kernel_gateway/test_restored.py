"""A whole gateway whose kernels are restored from a checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests import gateways
from tests.gateways import Gateway

pytestmark = pytest.mark.engine

#: prints what must be a session's own
OWN = """
import json, os, random, sys, uuid
print(json.dumps({
    "imported": "numpy" in sys.modules, "names": [name for name in globals() if name in ("numpy", "np")],
    "random": random.random(), "numpy": __import__("numpy").random.random(), "uuid4": str(uuid.uuid4()),
    "key": json.load(open("/home/kernel/.connection.json"))["key"], "files": os.listdir("."),
}))
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("docker", golden_images="auto", preload="numpy") as serving:
        deadline = time.monotonic() + gateways.START_TIMEOUT
        while not (told := serving.call("GET", "/readyz", tenant=None).json()["golden_images"])["on"]:
            assert "being made" in told["detail"], told
            assert time.monotonic() < deadline, told
            time.sleep(0.2)
        yield serving


@pytest.mark.gate
def test_sessions_of_one_golden_image_have_everything_imported_and_their_own_keys_and_state(gateway: Gateway) -> None:
    one, two = (json.loads(gateway.text(name, OWN)) for name in ("one", "two"))
    metrics = gateway.call("GET", "/metrics", tenant=None).text
    assert 'kernel_gateway_restores_total{result="restored"} 2.0' in metrics
    assert one["imported"] is two["imported"] is True
    assert one["names"] == two["names"] == []
    assert [name for name in ("random", "numpy", "uuid4", "key") if one[name] == two[name]] == []
    assert one["files"] == two["files"] == []


#: tries to mark a container from inside
MARK = """
import os, sys
try:
    os.makedirs("/run/kernel-gateway/restore")
except OSError as error:
    print(error.strerror)
print("numpy" in sys.modules)
"""


def test_what_a_session_may_set_does_not_make_it_a_restored_one(gateway: Gateway) -> None:
    def make(name: str, **env: str) -> int:
        return gateway.call("POST", "/v1/sessions", json={"name": name, "env": env}).status_code

    assert make("refused", KERNEL_GATEWAY_RESTORE="/") == 400
    assert make("marked", RESTORE="/run/kernel-gateway/restore", LC_ALL="C") == 201
    assert gateway.text("marked", MARK) in {"Permission denied\nFalse\n", "Read-only file system\nFalse\n"}
    # The positive control: only LC_ALL, which a process reads at its start, kept that session from being restored.
    assert make("unmarked", RESTORE="/run/kernel-gateway/restore") == 201
    assert gateway.text("unmarked", MARK).endswith("True\n")

"""E2B's own Python SDK: forks and snapshots of sandboxes, on kernels in gVisor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from e2b.exceptions import InvalidArgumentException, NotFoundException, SandboxException, SandboxNotFoundException
from e2b_code_interpreter import Sandbox

from tests import gateways
from tests.clients.test_e2b import options
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import until

pytestmark = [pytest.mark.timeout(300), pytest.mark.engine]
#: a thread that counts, so that two copies are seen to be of one moment
COUNTS = """
import os, subprocess, threading, time
kept = open('{name}', 'w+')
count = 0
def counts():
    global count
    while True:
        count += 1
        kept.seek(0); kept.write(str(count)); kept.flush()
        time.sleep(0.005)
threading.Thread(target=counts, daemon=True).start()
child = subprocess.Popen(['sleep', '1000'])
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("docker", golden_images="auto", preload="", pool_size="1") as serving:
        serving.wait_for_sleep()
        yield serving
        assert serving.errors() == []


@pytest.fixture
def sandbox(gateway: Gateway) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(timeout=300, envs={"WHO": "me"}, metadata={"a": "b"}, **options(gateway))
    yield sandbox
    sandbox.kill()


@pytest.mark.gate
def test_forks_continue_with_memory_processes_and_files_and_are_independent(
    gateway: Gateway, sandbox: Sandbox
) -> None:
    sandbox.run_code(COUNTS.format(name="home") + "x = 1")
    other = sandbox.create_code_context()
    sandbox.run_code(COUNTS.format(name="/tmp/shared") + "x = 'other'", context=other)
    sandbox.files.write("text", "one")
    sandbox.files.write("/tmp/text", "one")
    forks = sandbox.fork(count=3, timeout=300)
    made = [fork for fork in forks if isinstance(fork, Sandbox)]
    assert len(made) == 3, forks
    assert len({each.sandbox_id for each in (sandbox, *made)}) == 4
    sandbox.files.write("text", "two")
    sandbox.files.write("/tmp/text", "two")
    sandbox.run_code("x = 2")
    for number, fork in enumerate(made):
        assert fork.is_running()
        assert fork.get_info().metadata == {"a": "b"}
        assert fork.run_code("x, child.poll(), os.environ['WHO']").text == "(1, None, 'me')"
        assert fork.files.read("text") == fork.files.read("/tmp/text") == "one"
        (second,) = [each for each in fork.list_code_contexts() if fork.run_code("x", context=each).text == "'other'"]
        before = int(fork.run_code("count", context=second).text or "")
        until(lambda fork=fork, before=before: int(fork.files.read("/tmp/shared") or 0) > before)
        fork.files.write("text", f"fork {number}")
        assert fork.commands.run("cat text /tmp/text; echo $WHO").stdout == f"fork {number}oneme\n"
    assert sandbox.files.read("text") == sandbox.files.read("/tmp/text") == "two"
    assert sandbox.run_code("x").text == "2"
    assert all(fork.kill() for fork in made)
    with pytest.raises(SandboxNotFoundException):
        Sandbox.fork(made[0].sandbox_id, **options(gateway))

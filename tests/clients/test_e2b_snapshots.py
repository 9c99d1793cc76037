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
from tests.gateways import Gateway
from tests.kernel_gateway.calls import until

pytestmark = [pytest.mark.timeout(400), pytest.mark.engine]
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

#: a thread that counts, and finds the longest time in which it did not: when its container was held
ONE_CLOCK = """
import threading, time
counted = [time.time()]
gaps = []
def counts():
    while True:
        now = time.time()
        gaps.append((now - counted[0], counted[0], now))
        del gaps[:-20000]
        counted[0] = now
        time.sleep(0.002)
threading.Thread(target=counts, daemon=True).start()
def hold():
    return max(gaps)[1:]
"""


def control(gateway: Gateway, method: str, path: str, **options: Any) -> requests.Response:
    """Send a request to the control plane, as E2B's SDK does."""
    return gateway.call(method, path, headers={"User-Agent": "e2b-python-sdk/2"}, **options)


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


def wait_for_more(sandbox: Sandbox, count: int) -> None:
    """Wait until the thread of a context has written more than this count to its open file."""
    until(lambda: int(sandbox.files.read("/tmp/shared") or 0) > count)


@pytest.mark.gate
def test_forks_continue_with_memory_processes_and_files_and_are_independent(gateway: Gateway, sandbox: Sandbox) -> None:
    sandbox.run_code(COUNTS.format(name="home") + "x = 1")
    other = sandbox.create_code_context()
    sandbox.run_code(COUNTS.format(name="/tmp/shared") + "x = 'other'", context=other)
    sandbox.files.write("text", "one")
    sandbox.files.write("/tmp/text", "one")
    forks = sandbox.fork(count=3, timeout=300, request_timeout=240)
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
        (second,) = [each for each in fork.list_code_contexts() if fork.run_code("x", context=each).text == "other"]
        before = int(fork.run_code("count", context=second).text or "")
        wait_for_more(fork, before)
        fork.files.write("text", f"fork {number}")
        assert fork.commands.run("cat text /tmp/text; echo $WHO").stdout == f"fork {number}oneme\n"
    assert sandbox.files.read("text") == sandbox.files.read("/tmp/text") == "two"
    assert sandbox.run_code("x").text == "2"
    assert all(fork.kill() for fork in made)
    with pytest.raises(SandboxNotFoundException):
        Sandbox.fork(made[0].sandbox_id, **options(gateway))


def test_a_snapshot_outlives_its_sandbox_and_a_killed_gateway(tmp_path: Path) -> None:
    state_dir = str(tmp_path)
    with gateways.gateway("docker", golden_images="auto", preload="", state_dir=state_dir) as first:
        first.wait_for_sleep()
        own = options(first)
        sandbox = Sandbox.create(timeout=300, **own)
        sandbox.run_code("x = 1; kept = open('kept', 'w')")
        sandbox.files.write("/tmp/text", "one")
        named = sandbox.create_snapshot(name="mine")
        assert (named.snapshot_id, named.names) == ("alice/mine:default", ["alice/mine"])
        plain = Sandbox.create_snapshot(sandbox.sandbox_id, **own)
        assert sandbox.run_code("x").text == "1"
        assert sandbox.kill()
        first.process.kill()
        first.process.wait()
    with gateways.gateway("docker", golden_images="auto", preload="", state_dir=state_dir) as second:
        until(second.ready)
        second.wait_for_sleep()
        own = options(second)
        listed = Sandbox.list_snapshots(**own).next_items()
        assert [each.snapshot_id for each in listed] == [plain.snapshot_id, named.snapshot_id]
        for snapshot in (named, plain):
            made = Sandbox.create(snapshot.snapshot_id, timeout=300, envs={"WHO": "you"}, **own)
            assert made.get_info().template_id == snapshot.snapshot_id
            assert made.run_code("kept.write('kept'); kept.flush(); x + 1").text == "2"
            assert made.commands.run("cat kept /tmp/text; echo $WHO").stdout == "keptoneyou\n"
            assert made.kill()
            assert Sandbox.delete_snapshot(snapshot.snapshot_id, **own)
            assert not Sandbox.delete_snapshot(snapshot.snapshot_id, **own)
            with pytest.raises(SandboxException, match="not found"):
                Sandbox.create(snapshot.snapshot_id, **own)
        assert control(second, "GET", "/snapshots").json() == []


def test_a_snapshot_of_the_files_alone_boots_anew(gateway: Gateway, sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    sandbox.files.write("text", "one")
    told = control(gateway, "POST", f"/sandboxes/{sandbox.sandbox_id}/snapshots", json={"memory": False})
    assert told.status_code == 201
    snapshot = told.json()["snapshotID"]
    made = Sandbox.create(snapshot, timeout=300, **options(gateway))
    assert made.files.read("text") == "one"
    assert made.run_code("'x' in globals()").text == "False"
    assert made.kill()
    assert Sandbox.delete_snapshot(snapshot, **options(gateway))


def test_snapshots_are_listed_page_by_page(gateway: Gateway, sandbox: Sandbox) -> None:
    taken = [sandbox.create_snapshot(name=name).snapshot_id for name in ("one", "two", "three")]
    pages = Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id, limit=2, **options(gateway))
    listed = []
    while pages.has_next:
        listed.append([each.snapshot_id for each in pages.next_items()])
    assert listed == [[taken[2], taken[1]], [taken[0]]]
    assert all(Sandbox.delete_snapshot(each, **options(gateway)) for each in taken)


def test_two_contexts_of_a_snapshot_are_of_one_moment(gateway: Gateway, sandbox: Sandbox) -> None:
    """Each context counts. In the copy, no context has counted on after the other one was held."""
    other = sandbox.create_code_context()
    for context in (None, other):
        sandbox.run_code(ONE_CLOCK, context=context)
    sandbox.run_code("import time; time.sleep(1)")
    snapshot = sandbox.create_snapshot().snapshot_id
    made = Sandbox.create(snapshot, timeout=300, **options(gateway))
    contexts = [each for each in made.list_code_contexts() if each.language == "python"]
    holds = [made.run_code("hold()", context=each).text for each in contexts]
    assert made.kill()
    assert Sandbox.delete_snapshot(snapshot, **options(gateway))
    stops, starts = zip(*(map(float, str(hold).strip("()").split(",")) for hold in holds), strict=True)
    assert len(stops) == 2
    assert max(stops) < min(starts)  # one hold of both: each stood still at some moment at which the other did
    assert max(stops) - min(stops) < min(starts) - max(stops)  # and they stopped together, for what the hold lasted


def test_what_another_tenant_has_is_not_there_and_a_fork_has_its_own_token(gateway: Gateway, sandbox: Sandbox) -> None:
    own, bob = options(gateway), options(gateway, "bob")
    sandbox.files.write("text", "one")
    snapshot = sandbox.create_snapshot(name="secret:v1").snapshot_id
    assert snapshot == "alice/secret:v1"
    for asked in (snapshot, "secret:v1", "../alice/secret:v1", "alice%2Fsecret:v1"):
        with pytest.raises(SandboxException):
            Sandbox.create(asked, **bob)
        assert not Sandbox.delete_snapshot(asked, **bob)
    assert Sandbox.list_snapshots(**bob).next_items() == []
    with pytest.raises(SandboxNotFoundException):
        Sandbox.fork(sandbox.sandbox_id, **bob)
    with pytest.raises((SandboxNotFoundException, NotFoundException)):
        Sandbox.create_snapshot(sandbox.sandbox_id, **bob)
    for name in ("bob/x", "a b", "A/B/C", "x:y:z", "../x", ":v", "x" * 200):
        asked = control(gateway, "POST", f"/sandboxes/{sandbox.sandbox_id}/snapshots", json={"name": name})
        assert asked.status_code == 400, name
    (fork,) = sandbox.fork(timeout=60, request_timeout=240)
    assert isinstance(fork, Sandbox)
    told = control(gateway, "GET", f"/sandboxes/{sandbox.sandbox_id}").json()
    for token, status in ((told["envdAccessToken"], 502), (_token(gateway, fork.sandbox_id), 200)):
        headers = {"X-Access-Token": token, "E2b-Sandbox-Id": fork.sandbox_id, "E2b-Sandbox-Port": "49983"}
        answer = requests.get(f"{gateway.url}/files?path=text", headers=headers, timeout=60)
        assert answer.status_code == status
    assert fork.kill()
    made = Sandbox.create(snapshot, **own)  # positive control: its own tenant has it
    assert made.kill()
    listed = Sandbox.list_snapshots(name="secret", **own).next_items()
    assert [each.snapshot_id for each in listed] == [snapshot]
    deleted = control(gateway, "DELETE", f"/templates/{quote(snapshot, safe='')}")
    assert deleted.status_code == 204


def _token(gateway: Gateway, sandbox: str) -> str:
    return str(control(gateway, "GET", f"/sandboxes/{sandbox}").json()["envdAccessToken"])


def test_what_cannot_be_copied_is_refused_by_name(gateway: Gateway, sandbox: Sandbox) -> None:
    attached = sandbox.commands.run("sleep 1234", background=True)
    with pytest.raises(SandboxException, match="sleep 1234"):
        sandbox.fork()
    attached.kill()
    sandbox.commands.run("sleep 4321 >/dev/null 2>&1 &")
    with pytest.raises(SandboxException, match="sleep 4321"):
        sandbox.create_snapshot()
    path = f"/sandboxes/{sandbox.sandbox_id}"
    for count in (0, 21):
        with pytest.raises((InvalidArgumentException, SandboxException)):
            sandbox.fork(count=count)
        assert control(gateway, "POST", f"{path}/fork", json={"count": count}).status_code == 400
    sandbox.pause()
    assert control(gateway, "POST", f"{path}/fork", json={}).status_code == 409
    assert control(gateway, "POST", f"{path}/snapshots", json={}).status_code == 404


def test_a_branch_of_a_context_is_a_session_with_a_copy_of_all_files(gateway: Gateway, sandbox: Sandbox) -> None:
    context = sandbox.create_code_context()
    sandbox.run_code("x = 1; open('/tmp/text', 'w').write('one'); open('text', 'w').write('one')", context=context)
    path = f"/v1/sessions/{context.id}/branch"
    assert gateway.call("POST", path, json={"as": "branch"}).status_code == 201
    sandbox.files.write("text", "two")
    assert gateway.text("branch", "print(x, open('text').read(), open('/tmp/text').read())") == "1 one one\n"
    assert gateway.call("POST", "/v1/sessions/branch/checkpoints", json={"name": "one"}).status_code == 201
    gateway.execute("branch", "x = 2; open('/tmp/text', 'w').write('two')")
    assert gateway.call("POST", "/v1/sessions/branch/rollback", json={}).status_code == 200
    assert gateway.text("branch", "print(x, open('/tmp/text').read())") == "1 one\n"
    assert gateway.call("DELETE", "/v1/sessions/branch").status_code == 204

"""Programs run where the settings say: over HTTP, while settings change, and by the command for other processes."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any

import orjson
import pytest
import requests

from kernel_gateway.cli import exec_json
from kernel_gateway.client_config import Client
from kernel_gateway.config import Settings
from sessions.programs.program import Ending, Outcome, Returned
from sessions.providers import PROVIDERS
from sessions.providers.forwarding import FORWARDED
from sessions.providers.self_managed import SCHEMA
from sessions.providers.store import ProviderStore
from sessions.store.records import Begin, End
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.accounts import accounts
from tests.kernel_gateway.calls import until
from tests.kernel_gateway.executor import Executor, executor

ADMIN = "the-admins-own-key"
SECRET = "a-very-secret-api-key-0123456789"  # noqa: S105 - not a real one
ECHO = "def main(**given):\n    print('here')\n    return given\n"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("process", admin_key=ADMIN) as serving:
        yield serving


@pytest.fixture
def places() -> Iterator[tuple[Executor, Executor]]:
    with executor() as one, executor() as other:
        yield one, other


def configure(gateway: Gateway, **config: Any) -> None:
    """Configure and activate the self-managed provider."""
    body = {"provider_type": "self_managed", "config": config}
    headers = {"Authorization": f"Bearer {ADMIN}"}
    saved = gateway.call("POST", "/api/admin/sandbox/config", tenant=None, headers=headers, json=body)
    assert saved.status_code == 200, saved.text


def run(gateway: Gateway, code: str = ECHO, *, headers: dict[str, str] | None = None, **arguments: Any) -> Any:
    body = {"code_b64": base64.b64encode(code.encode()).decode(), "arguments": arguments}
    answer = requests.post(
        f"{gateway.url}/run",
        json=body,
        headers={"Authorization": f"Bearer {KEYS['alice']}"} | (headers or {}),
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text
    return answer.json()


# -- over HTTP -------------------------------------------------------------------------------------------------


def test_settings_name_exactly_the_existing_providers() -> None:
    named = Settings.model_json_schema()["properties"]["fallback_provider"]["anyOf"][0]["enum"]
    assert set(named) == set(PROVIDERS)


def test_programs_follow_the_settings_at_once(gateway: Gateway, places: tuple[Executor, Executor]) -> None:
    configure(gateway, endpoint="")
    here = run(gateway, a=1)
    assert (here["status"], here["stdout"], here["result"]["value"]) == ("success", "here\n", {"a": 1})
    for place in places:
        configure(gateway, endpoint=place.url, api_key=SECRET)
        there = run(gateway, a=2)
        assert there["stdout"].startswith(place.url)
        assert (there["status"], there["result"]["value"]) == ("success", {"a": 2})
        headers, body = place.asked[-1]
        assert headers["Authorization"] == f"Bearer {SECRET}"
        assert body["arguments"] == {"a": 2}
    configure(gateway, endpoint="")
    assert run(gateway)["stdout"] == "here\n"


def test_a_program_that_another_gateway_forwards_runs_here(gateway: Gateway, places: tuple[Executor, Executor]) -> None:
    configure(gateway, endpoint=places[0].url)
    assert run(gateway)["stdout"].startswith(places[0].url)
    assert FORWARDED in places[0].asked[-1][0]
    assert run(gateway, headers={FORWARDED: "1"})["stdout"] == "here\n"


def test_a_forwarded_program_is_recorded_in_the_audit(gateway: Gateway, places: tuple[Executor, Executor]) -> None:
    configure(gateway, endpoint=places[0].url)
    code = "def main(): return 'a marker that is written nowhere'"
    run(gateway, code)
    digest = sha256(code.encode()).hexdigest()
    (found,) = (
        records
        for records in accounts(gateway.state_dir).values()
        if isinstance(records[0], Begin) and records[0].code_sha256 == digest
    )
    begin, end = found
    assert isinstance(begin, Begin)
    assert isinstance(end, End)
    assert (begin.tenant, begin.session, begin.language) == ("alice", "self_managed", "python")
    assert (end.outcome, end.error) == ("ok", None)
    assert end.output_bytes


def test_switching_under_load_loses_and_mixes_no_runs(gateway: Gateway, places: tuple[Executor, Executor]) -> None:
    configure(gateway, endpoint=places[0].url)
    stop = Event()

    def client(number: int) -> list[str]:
        seen: list[str] = []
        while not stop.is_set() or not seen:
            told = run(gateway, f"# {number}-{len(seen)}\n", n=number)
            place, _, code = told["stdout"].partition(" ")
            assert (told["status"], code) == ("success", f"# {number}-{len(seen)}\n")
            assert told["result"]["value"] == {"n": number}
            seen.append(place)
        return seen

    with ThreadPoolExecutor(8) as clients:
        running = [clients.submit(client, number) for number in range(8)]
        for turn in range(20):
            configure(gateway, endpoint=places[turn % 2].url)
            until(lambda turn=turn: places[turn % 2].asked)  # type: ignore[misc]
        stop.set()
        seen = Counter(place for each in running for place in each.result())
    assert set(seen) == {place.url for place in places}
    # Each program ran once, on the executor that answered it.
    assert {place.url: len(place.asked) for place in places} == seen
    assert run(gateway)["stdout"].startswith(places[1].url)


def test_a_running_program_stays_with_its_provider(gateway: Gateway, places: tuple[Executor, Executor]) -> None:
    one, other = places
    configure(gateway, endpoint=one.url)
    one.go = Event()
    with ThreadPoolExecutor(1) as client:
        running = client.submit(run, gateway, "# slow\n")
        until(lambda: one.asked)
        configure(gateway, endpoint=other.url)
        assert run(gateway, "# quick\n")["stdout"] == f"{other.url} # quick\n"
        one.go.set()
        assert running.result()["stdout"] == f"{one.url} # slow\n"


def test_an_unreachable_provider_is_reported_as_an_outcome_and_nothing_runs_here(gateway: Gateway) -> None:
    configure(gateway, endpoint="http://127.0.0.1:1", api_key=SECRET, max_retries=0)
    told = run(gateway)
    assert told["status"] == "program_runner_error"
    assert (told["stdout"], told["error_code"]) == ("", "SB003")


def test_a_trial_really_runs_in_kernels_of_this_gateway(gateway: Gateway) -> None:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    tried = gateway.call(
        "POST",
        "/api/v1/admin/sandbox/test",
        tenant=None,
        headers=headers,
        json={"provider_type": "self_managed", "config": {"endpoint": ""}},
    ).json()["data"]
    assert tried["success"] is True, tried
    assert tried["details"]["stdout"] == "TEST_PASSED\n"
    live = gateway.call("GET", "/v1/admin/sessions", tenant=None, headers=headers).json()["sessions"]
    assert [session for session in live if session["tenant"] == "admin"] == []


def test_the_fallback_provider_of_the_settings_takes_over() -> None:
    with gateways.gateway("process", admin_key=ADMIN, fallback_provider="local") as gateway:
        configure(gateway, endpoint="http://127.0.0.1:1", max_retries=0)
        told = run(gateway, a=1)
        assert (told["status"], told["stdout"], told["result"]["value"]) == ("success", "here\n", {"a": 1})
        warned = [entry for entry in gateway.logged() if "takes over" in entry["event"]]
        assert [(entry["provider"], entry["by"]) for entry in warned] == [("self_managed", "local")]


# -- the command -----------------------------------------------------------------------------------------------


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


def command(
    state_dir: Path, asked: object, *, url: str = "http://127.0.0.1:1", **environment: str
) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the answer, which must be the only line on standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "kernel_gateway", "exec-json"],
        input=asked if isinstance(asked, bytes) else json.dumps(asked).encode(),
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ  # noqa: TID251 - a child gets this process's own, plus settings
        | {
            "KERNEL_GATEWAY_STATE_DIR": str(state_dir),
            "KERNEL_GATEWAY_URL": url,
            "KERNEL_GATEWAY_KEY": KEYS["alice"],
        }
        | environment,
    )
    assert done.stdout.endswith(b"\n")
    assert done.stdout.count(b"\n") == 1
    assert b"Traceback" not in done.stderr
    assert SECRET.encode() not in done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer.keys() == {
        "stdout",
        "stderr",
        "exit_code",
        "returned",
        "artifacts",
        "status",
        "error",
        "provider",
    }
    return done.returncode, answer


def test_the_command_uses_the_gateway_of_this_machine(gateway: Gateway, state_dir: Path) -> None:
    code, answer = command(state_dir, {"code": ECHO, "arguments": {"a": [2**70, None]}}, url=gateway.url)
    assert (code, answer["status"], answer["exit_code"], answer["error"]) == (0, "ok", 0, None)
    assert (answer["stdout"], answer["returned"]) == ("here\n", {"present": True, "value": {"a": [2**70, None]}})
    assert answer["provider"] == "self_managed"


def test_a_program_that_fails_is_an_answer_and_no_failure(gateway: Gateway, state_dir: Path) -> None:
    failing = base64.b64encode(b"def main():\n    print('so far')\n    raise ValueError('too bad')\n").decode()
    code, answer = command(state_dir, {"code_b64": failing}, url=gateway.url)
    assert (code, answer["status"], answer["exit_code"]) == (0, "error", 1)
    assert "ValueError: too bad" in answer["stderr"]
    assert answer["returned"] == {"present": False, "value": None}


def test_a_timeout_is_an_answer_and_no_failure(gateway: Gateway, state_dir: Path) -> None:
    asked = {"code": "import time\ndef main():\n    time.sleep(60)\n", "timeout": 1}
    code, answer = command(state_dir, asked, url=gateway.url)
    assert (code, answer["status"], answer["error"]["code"]) == (0, "timeout", "SB005")


def test_the_command_uses_the_provider_of_the_settings(state_dir: Path, places: tuple[Executor, Executor]) -> None:
    store = ProviderStore(state_dir)
    store.put("self_managed", {"endpoint": places[0].url, "api_key": SECRET}, SCHEMA, activate=True)
    store.close()
    code, answer = command(state_dir, {"code": "x"})
    assert (code, answer["stdout"]) == (0, f"{places[0].url} x")
    assert places[0].asked[-1][0]["Authorization"] == f"Bearer {SECRET}"
    code, answer = command(state_dir, {"code": "print('hi')\ndef main(): return 1", "provider": "local"})
    assert (code, answer["stdout"], answer["provider"]) == (0, "hi\n", "local")
    assert answer["returned"]["value"] == 1
    (state_dir / "secrets.key").write_text("00" * 32)
    code, answer = command(state_dir, {"code": "x"})
    assert (code, answer["error"]["code"]) == (1, "SB035")


def test_large_artifacts_become_files(state_dir: Path, tmp_path: Path, places: tuple[Executor, Executor]) -> None:
    def artifact(name: str, content: bytes) -> dict[str, Any]:
        content_b64 = base64.b64encode(content).decode()
        return {"name": name, "mime_type": "text/csv", "size": len(content), "content_b64": content_b64}

    large = b"x" * (1024**2 + 1)
    files = [artifact("a.csv", b"1,2"), artifact("../../large.csv", large), artifact("/etc/no\u0000thing", large)]
    places[0].answer = {"artifacts": files}
    store = ProviderStore(state_dir)
    store.put("self_managed", {"endpoint": places[0].url}, SCHEMA, activate=True)
    store.close()
    handed = tmp_path / "handed"
    handed.mkdir()
    _, answer = command(state_dir, {"code": "x", "artifacts_dir": str(handed)})
    small, first, second = answer["artifacts"]
    assert (small["name"], small["content_b64"], small["path"]) == ("a.csv", "MSwy", None)
    for one in (first, second):
        assert (one["size"], one["content_b64"]) == (len(large), None)
        assert Path(one["path"]).read_bytes() == large
        assert handed in Path(one["path"]).parents
    assert first["path"].endswith(".csv")
    _, answer = command(state_dir, {"code": "x"})
    assert [one["size"] for one in answer["artifacts"]] == [3, len(large), len(large)]
    assert {one["path"] for one in answer["artifacts"]} == {None}
    assert answer["artifacts"][1]["content_b64"] is None


BAD: list[object] = [
    b"",
    b"{",
    b"[]",
    b"\xff",
    {},
    {"code": 1},
    {"code": "1", "code_b64": "MQ=="},
    {"code_b64": "1"},
    {"code_b64": "/w=="},
    {"code": "1", "arguments": []},
    {"code": "1", "timeout": 0},
    {"code": "1", "strange": 1},
    {"code": "1", "artifacts_dir": "/there/is/none"},
    {"code": "1", "provider": "local", "language": "klingon"},
]


def test_bad_input_is_an_answer_and_exit_code_2(state_dir: Path) -> None:
    code, answer = command(state_dir, b"{")
    assert (code, answer["error"]["code"], answer["exit_code"]) == (2, "SB002", None)
    assert answer["error"]["resolution"]


@pytest.mark.parametrize("asked", BAD, ids=str)
def test_every_invalid_input_is_an_answer_and_exit_code_2(state_dir: Path, asked: object) -> None:
    text = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    answer, code = exec_json.answer(Client(state_dir=state_dir), text)
    assert (code, answer["error"]["code"], answer["exit_code"]) == (2, "SB002", None)


def test_large_integers_are_returned_unchanged() -> None:
    told = exec_json._answer_of(Outcome(Ending.OK, "", "", 0, Returned({"n": 2**70})), "self_managed", None)
    assert json.loads(orjson.dumps(told))["returned"] == {"present": True, "value": {"n": 2**70}}


def test_a_program_that_cannot_run_is_an_answer_and_exit_code_1(state_dir: Path) -> None:
    code, answer = command(state_dir, {"code": "1"})
    assert (code, answer["error"]["code"], answer["status"]) == (1, "SB003", None)
    unknown, code = exec_json.answer(Client(state_dir=state_dir), b'{"code": "1", "provider": "nobody"}')
    assert (code, unknown["error"]["code"]) == (1, "SB001")


def test_standard_output_has_only_the_answer(state_dir: Path, places: tuple[Executor, Executor]) -> None:
    """Output of libraries and child processes goes to standard error."""
    script = (
        "import os, sys\nfrom kernel_gateway.cli import exec_json, main\n"
        "real = exec_json.answer\n"
        "def noisy(*given):\n"
        "    print('printed', flush=True); os.system('echo by a child'); os.write(1, b'written')\n"
        "    return real(*given)\n"
        "exec_json.answer = noisy\n"
        "sys.exit(main(['exec-json', '--state-dir', sys.argv[1], '--url', sys.argv[2], '--key', 'k']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(state_dir), places[0].url],
        input=b'{"code": "x"}',
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert json.loads(done.stdout)["stdout"] == f"{places[0].url} x"
    assert all(noise in done.stderr for noise in (b"printed", b"by a child", b"written"))

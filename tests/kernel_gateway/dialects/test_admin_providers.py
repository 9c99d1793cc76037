"""Provider administration over HTTP, in both forms: refused requests, and secrets that are never sent."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import requests

from kernel_gateway.dialects import admin as dialect
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.executor import Executor, executor

ADMIN = "the-admins-own-key"
#: part of every configuration of these tests
SECRET = "a-very-secret-api-key-0123456789"  # noqa: S105 - not a real one
MASKED = "••••6789"
SPECIFIED, RAGFLOW = "/api/admin/sandbox", "/api/v1/admin/sandbox"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway with an admin. At the end, no file of it except the key's own contains the secret."""
    with gateways.gateway("process", admin_key=ADMIN) as serving:
        yield serving
        kept = [path for path in serving.state_dir.iterdir() if path.is_file() and path.name != "secrets.key"]
        assert {"providers.db", "audit.db", "log"} <= {path.name for path in kept}
        for path in kept:
            assert SECRET.encode() not in path.read_bytes(), path.name
        with closing(sqlite3.connect(serving.state_dir / "providers.db")) as database:
            dump = "\n".join(database.iterdump())
        assert "sandbox.self_managed" in dump
        assert SECRET not in dump
        assert not [entry for entry in serving.logged() if entry["level"] in {"error", "critical"}]


@pytest.fixture
def elsewhere() -> Iterator[Executor]:
    with executor() as one:
        yield one


def ask(gateway: Gateway, method: str, path: str, key: str = ADMIN, **options: Any) -> requests.Response:
    """Send a request as an admin. No answer may contain the secret."""
    answer = gateway.call(method, path, tenant=None, headers={"Authorization": f"Bearer {key}"}, **options)
    assert SECRET not in answer.text
    assert "Traceback" not in answer.text
    return answer


def config(place: Executor | str, **more: Any) -> dict[str, Any]:
    url = place if isinstance(place, str) else place.url
    return {"provider_type": "self_managed", "config": {"endpoint": url, "api_key": SECRET}} | more


# -- permissions -----------------------------------------------------------------------------------------------

METHODS = {"providers": "GET", "config": "POST", "test": "POST", "active": "PUT"}


@pytest.mark.parametrize("path", [pattern.replace("([^/]+)", "e2b") for pattern, *_ in dialect.routes(None)])  # type: ignore[arg-type]
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_only_admins_may_administer_providers(gateway: Gateway, elsewhere: Executor, method: str, path: str) -> None:
    body = config(elsewhere) | {"provider": "self_managed"}
    user, nobody = ask(gateway, method, path, KEYS["alice"], json=body), ask(gateway, method, path, "no", json=body)
    assert [user.status_code, nobody.status_code] == [403, 401]
    for answer, code in ((user, "SB026"), (nobody, "SB020")):
        assert answer.json()["error_code"] == code
        if path.startswith(RAGFLOW):
            assert (answer.json()["code"], answer.json()["data"]) == (answer.status_code, None)
    assert elsewhere.asked == []
    assert ask(gateway, method, path, json={}).status_code not in {401, 403}


# -- the specification's form ----------------------------------------------------------------------------------


def test_providers_are_listed_with_their_schemas(gateway: Gateway) -> None:
    listed = {each["id"]: each for each in ask(gateway, "GET", f"{SPECIFIED}/providers").json()["data"]}
    mine = listed["self_managed"]
    assert {"id", "name", "description", "icon", "tags", "supported_languages", "config_schema"} == mine.keys()
    assert "python" in mine["supported_languages"]
    assert mine["config_schema"]["timeout"] | {"description": ""} == {
        "type": "integer",
        "label": "Timeout",
        "description": "",
        "required": False,
        "secret": False,
        "default": 30,
        "min": 5,
        "max": 300,
    }
    assert mine["config_schema"]["api_key"]["secret"] is True


def test_a_saved_configuration_is_masked_and_can_be_sent_back(gateway: Gateway, elsewhere: Executor) -> None:
    saved = ask(gateway, "POST", f"{SPECIFIED}/config", json=config(elsewhere, test_connection=True))
    assert (saved.status_code, saved.json()) == (200, {"message": "Configuration saved"})
    shown = ask(gateway, "GET", f"{SPECIFIED}/config").json()["data"]
    assert shown["active"] == "self_managed"
    assert (shown["self_managed"]["endpoint"], shown["self_managed"]["api_key"]) == (elsewhere.url, MASKED)
    again = {"provider_type": "self_managed", "config": shown["self_managed"] | {"timeout": 60}}
    assert ask(gateway, "POST", f"{SPECIFIED}/config", json=again).status_code == 200
    assert ask(gateway, "POST", f"{SPECIFIED}/test", json=again).json()["success"] is True
    headers, body = elsewhere.asked[-1]
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert body["language"] == "python"
    assert ask(gateway, "GET", f"{SPECIFIED}/config").json()["data"]["self_managed"]["timeout"] == 60


def test_a_trial_reports_its_latency_and_saves_nothing(gateway: Gateway, elsewhere: Executor) -> None:
    before = ask(gateway, "GET", f"{SPECIFIED}/config").json()
    tried = ask(gateway, "POST", f"{SPECIFIED}/test", json=config(elsewhere)).json()
    assert (tried["success"], tried["error_code"]) == (True, None)
    assert tried["latency_ms"] > 0
    assert ask(gateway, "GET", f"{SPECIFIED}/config").json() == before


def test_a_trial_of_an_unavailable_executor_fails(gateway: Gateway, elsewhere: Executor) -> None:
    elsewhere.healthy = False
    tried = ask(gateway, "POST", f"{SPECIFIED}/test", json=config(elsewhere))
    assert (tried.status_code, tried.json()["success"], tried.json()["error_code"]) == (200, False, "SB003")
    refused = ask(gateway, "POST", f"{SPECIFIED}/config", json=config(elsewhere, test_connection=True))
    assert (refused.status_code, refused.json()["error_code"]) == (400, "SB003")


def test_a_trial_with_unexpected_output_fails(gateway: Gateway, elsewhere: Executor) -> None:
    elsewhere.answer = {"stdout": "hello"}
    tried = ask(gateway, "POST", f"{SPECIFIED}/test", json=config(elsewhere)).json()
    assert (tried["success"], tried["error_code"]) == (False, None)


#: a key id that fits into no header
ALIYUN = {"access_key_id": "\u2603", "access_key_secret": "s", "account_id": "1", "data_endpoint": "http://127.0.0.1:1"}
BAD: list[tuple[str, str, Any, str]] = [
    ("POST", "config", {"config": {}}, "provider_type"),
    ("POST", "config", {"provider_type": "nobody", "config": {}}, "provider"),
    ("POST", "config", {"provider_type": "self_managed", "config": []}, "config"),
    ("POST", "config", {"provider_type": "self_managed", "config": {"timeout": "30"}}, "timeout"),
    ("POST", "config", {"provider_type": "self_managed", "config": {"timeout": 4}}, "timeout"),
    ("POST", "config", {"provider_type": "self_managed", "config": {"max_memory": "9g"}}, "max_memory"),
    ("POST", "config", {"provider_type": "self_managed", "config": {"strange": 1}}, "strange"),
    ("POST", "config", {"provider_type": "self_managed", "config": {"endpoint": "ftp://x"}}, "endpoint"),
    ("POST", "config", config("http://127.0.0.1:1\r\nX-More: 1/"), "endpoint must be a URL"),
    ("POST", "config", {"provider_type": "self_managed", "config": {"api_key": "a\r\nX-More: 1"}}, "plain characters"),
    ("POST", "test", config("http://127.0.0.1:1\n"), "endpoint must be a URL"),
    ("POST", "test", {"provider_type": "e2b", "config": {"api_key": "k", "api_url": "http://a\r\n"}}, "must be a URL"),
    ("POST", "test", {"provider_type": "e2b", "config": {"api_key": "k", "domain": "a\r\nb"}}, "domain must be plain"),
    ("POST", "test", {"provider_type": "aliyun_codeinterpreter", "config": ALIYUN}, "access_key_id must be plain"),
    ("POST", "config", config("http://127.0.0.1:1", config={"api_key": MASKED, "endpoint": "http://a"}), "api_key"),
    ("POST", "test", {"provider_type": "nobody", "config": {}}, "provider"),
    ("POST", "test", {"provider_type": "self_managed", "config": {"timeout": 4}}, "timeout"),
]


@pytest.mark.parametrize("form", [SPECIFIED, RAGFLOW])
@pytest.mark.parametrize(("method", "path", "body", "word"), BAD, ids=str)
def test_an_invalid_configuration_is_refused_in_both_forms(  # noqa: PLR0917 - a table
    gateway: Gateway, form: str, method: str, path: str, body: Any, word: str
) -> None:
    before = ask(gateway, "GET", f"{SPECIFIED}/config").json()
    refused = ask(gateway, method, f"{form}/{path}", json=body)
    told = refused.json()
    assert (refused.status_code, told["error_code"]) == (400, "SB002")
    assert word in json.dumps(told)
    if form == RAGFLOW:
        assert (told["code"], told["data"]) == (400, None)
    assert ask(gateway, "GET", f"{SPECIFIED}/config").json() == before


def test_schema_problems_are_reported_for_each_field(gateway: Gateway) -> None:
    wrong = {"provider_type": "self_managed", "config": {"timeout": 4, "max_retries": "many"}}
    told = ask(gateway, "POST", f"{SPECIFIED}/config", json=wrong).json()
    assert {problem["field"] for problem in told["details"]} == {"timeout", "max_retries"}


def test_the_gateways_own_address_is_refused_as_endpoint(gateway: Gateway) -> None:
    port = gateway.url.rpartition(":")[2]
    for name in ("127.0.0.1", "localhost", "127.0.0.2", "[::1]", "0.0.0.0"):  # noqa: S104 - asked for, not listened on
        refused = ask(gateway, "POST", f"{SPECIFIED}/config", json=config(f"http://{name}:{port}/"))
        assert refused.status_code == 400, name
        assert "back to this gateway" in refused.json()["error"]


def test_only_a_known_provider_is_activated(gateway: Gateway, elsewhere: Executor) -> None:
    ask(gateway, "POST", f"{SPECIFIED}/config", json=config(elsewhere, set_active=False))
    done = ask(gateway, "PUT", f"{SPECIFIED}/active", json={"provider": "self_managed"})
    assert (done.status_code, done.json()) == (200, {"message": "Active provider updated"})
    for body in ({"provider": "nobody"}, {}, {"provider": 1}):
        assert ask(gateway, "PUT", f"{SPECIFIED}/active", json=body).status_code == 400


# -- RAGFlow's form --------------------------------------------------------------------------------------------


def test_ragflows_own_calls_have_its_envelope(gateway: Gateway, elsewhere: Executor) -> None:
    def data(method: str, path: str, **options: Any) -> Any:
        answer = ask(gateway, method, f"{RAGFLOW}/{path}", **options)
        told = answer.json()
        assert (answer.status_code, told["code"]) == (200, 0)
        assert isinstance(told["message"], str)
        assert told.keys() == {"code", "message", "data"}
        return told["data"]

    assert "self_managed" in {each["id"] for each in data("GET", "providers")}
    assert data("GET", "providers/self_managed/schema")["timeout"]["max"] == 300
    saved = data("POST", "config", json=config(elsewhere))
    assert saved["provider_type"] == "self_managed"
    assert saved["config"]["api_key"] == MASKED
    assert data("GET", "config") == saved
    tried = data("POST", "test", json=saved)
    assert (tried["success"], tried["details"]["exit_code"]) == (True, 0)
    assert "TEST_PASSED" in tried["details"]["stdout"]
    assert {"execution_time", "stderr"} <= tried["details"].keys()


def test_all_failures_of_ragflows_form_are_http_400(gateway: Gateway) -> None:
    unknown = ask(gateway, "GET", f"{RAGFLOW}/providers/nobody/schema")
    assert (unknown.status_code, unknown.json()["code"], unknown.json()["error_code"]) == (400, 400, "SB002")
    broken = ask(gateway, "POST", f"{RAGFLOW}/config", data=b"{")
    assert (broken.status_code, broken.json()["code"]) == (400, 400)
    wrong = ask(gateway, "DELETE", f"{RAGFLOW}/config")
    assert (wrong.status_code, wrong.json()["code"]) == (400, 400)


# -- unreadable settings ---------------------------------------------------------------------------------------


def test_a_lost_encryption_key_is_reported_and_repaired_by_saving_again(gateway: Gateway, elsewhere: Executor) -> None:
    ask(gateway, "POST", f"{SPECIFIED}/config", json=config(elsewhere))
    key = gateway.state_dir / "secrets.key"
    assert key.stat().st_mode & 0o777 == 0o600
    good = key.read_text()
    try:
        key.write_text("00" * 32)
        shown = ask(gateway, "GET", f"{SPECIFIED}/config").json()
        assert shown["data"]["self_managed"] == {}
        assert shown["errors"]["self_managed"]["code"] == "SB035"
        other = ask(gateway, "GET", f"{RAGFLOW}/config")
        assert (other.status_code, other.json()["code"], other.json()["error_code"]) == (400, 500, "SB035")
        assert ask(gateway, "POST", f"{SPECIFIED}/config", json=config(elsewhere)).status_code == 200
        assert ask(gateway, "GET", f"{SPECIFIED}/config").json()["data"]["self_managed"]["api_key"] == MASKED
    finally:
        key.write_text(good)
        ask(gateway, "POST", f"{SPECIFIED}/config", json=config(elsewhere))

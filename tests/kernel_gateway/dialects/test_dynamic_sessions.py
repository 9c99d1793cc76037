"""Azure's dynamic sessions: code and files in the old and the new shape, and hostile requests.

Source: the REST specification `Microsoft.App.DynamicSessions`, and the requests of the published clients.
"""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import quote

import pytest
import requests

from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import metric, process_only, raw

pytestmark = process_only

POOL = "/dynamic-sessions/default"
OLD, NEW = "2024-02-02-preview", "2024-10-02-preview"


@pytest.fixture
def identifier(gateway: Gateway, session: str) -> str:
    """An identifier that no session has yet; the session is ended after the test."""
    assert gateway.call("GET", f"/v1/sessions/{session}").status_code == 404
    return session


def call(gateway: Gateway, method: str, path: str, identifier: str, version: str = OLD, **options: Any) -> Any:
    """Send a request as the clients do."""
    joined = "&" if "?" in path else "?"
    target = f"{POOL}/{path}{joined}identifier={quote(identifier)}&api-version={version}"
    return gateway.call(method, target, **options)


def run(gateway: Gateway, identifier: str, code: str, **fields: Any) -> dict[str, Any]:
    """Run code in the old shape, and return the properties."""
    body = {"codeInputType": "inline", "executionType": "synchronous", "code": code} | fields
    response = call(gateway, "POST", "code/execute", identifier, json={"properties": body})
    assert response.status_code == 200, response.text
    properties: dict[str, Any] = response.json()["properties"]
    return properties


def upload(gateway: Gateway, identifier: str, name: str, content: bytes = b"abc") -> requests.Response:
    answer: requests.Response = call(gateway, "POST", "files/upload", identifier, files={"file": (name, content)})
    return answer


def told(response: requests.Response) -> tuple[int, str, str]:
    """Return status, code and our own code of a failure."""
    error = response.json()["error"]
    assert response.headers["x-ms-error-code"] == error["code"]
    return response.status_code, error["code"], error["details"][0]["code"]


# -- code -------------------------------------------------------------------------------------------------------


def test_code_runs_and_keeps_its_variables_in_both_shapes(gateway: Gateway, identifier: str) -> None:
    first = run(gateway, identifier, "x = 40\nprint('hello world')\n1 + 1")
    assert (first["status"], first["result"], first["stdout"], first["stderr"]) == ("Success", 2, "hello world\n", "")
    assert first["state"] == "new"
    body = {"codeInputType": "InlineBase64", "executionType": "Synchronous", "code": "eCArIDI="}
    second = call(gateway, "POST", "executions", identifier, NEW, json=body).json()
    assert (second["status"], second["identifier"]) == ("Succeeded", identifier)
    assert second["result"]["executionResult"] == 42


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1.5", 1.5),
        ("True", True),
        ("'é'", "é"),
        ("x = 1", ""),
        ("None", ""),
        ("float('nan')", "nan"),
        ("[1, 'a']", "[1, 'a']"),
        ("'\\ud800'", "'\\ud800'"),
    ],
)
def test_values_have_the_types_that_clients_expect(gateway: Gateway, code: str, value: Any) -> None:
    assert run(gateway, "shared-values", code)["result"] == value


def test_a_figure_is_an_image(gateway: Gateway, identifier: str) -> None:
    result = run(gateway, identifier, "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()")["result"]
    assert (result["type"], result["format"], result["base64_data"][:5]) == ("image", "png", "iVBOR")


def test_failed_code_is_an_answer(gateway: Gateway, identifier: str) -> None:
    failed = run(gateway, identifier, "print('a')\n1 / 0")
    assert (failed["status"], failed["stdout"], failed["result"]) == ("Failure", "a\n", "")
    assert "ZeroDivisionError" in failed["stderr"]
    late = run(gateway, identifier, "import time; time.sleep(60)", timeoutInSeconds=1)
    assert (late["status"], "timed out" in late["stderr"]) == ("Failure", True)
    died = run(gateway, identifier, "import os; os._exit(1)")
    assert (died["status"], "SB010" in died["stderr"]) == ("Failure", True)
    assert run(gateway, identifier, "1")["state"] == "lost"


# -- files ------------------------------------------------------------------------------------------------------


def test_files_in_the_old_shape(gateway: Gateway, identifier: str) -> None:
    assert call(gateway, "GET", "files", identifier).json()["value"] == []
    [entry] = upload(gateway, identifier, "/mnt/data/dir/é.txt").json()["value"]
    assert (entry["properties"]["filename"], entry["properties"]["size"]) == ("dir/é.txt", 3)
    run(gateway, identifier, "open('written', 'w').write(open('dir/é.txt').read())")
    listed = call(gateway, "GET", "files", identifier).json()["value"]
    assert {each["properties"]["filename"] for each in listed} == {"dir/é.txt", "written"}
    for path in ("written", "dir/é.txt"):
        assert call(gateway, "GET", f"files/content/{path}", identifier).content == b"abc"
    assert call(gateway, "DELETE", "files/written", identifier).status_code == 200
    assert told(call(gateway, "GET", "files/content/written", identifier))[::2] == (404, "SB014")


def test_files_in_the_new_shape(gateway: Gateway, identifier: str) -> None:
    made = call(gateway, "POST", "files?path=/mnt/data/dir", identifier, NEW, files={"file": ("a.csv", b"abc")}).json()
    assert (made["name"], made["directory"], made["sizeInBytes"], made["type"]) == ("a.csv", "dir", 3, "file")
    assert made["contentType"] == "text/csv"
    [folder] = call(gateway, "GET", "files", identifier, NEW).json()["value"]
    assert (folder["name"], folder["type"]) == ("dir", "directory")
    [file] = call(gateway, "GET", "files?path=dir", identifier, NEW).json()["value"]
    assert file["name"] == "a.csv"
    assert len(call(gateway, "GET", "files?recursive=true", identifier, NEW).json()["value"]) == 2
    assert call(gateway, "GET", "files/dir%2Fa.csv/content", identifier, NEW).content == b"abc"
    assert call(gateway, "GET", "files/a.csv?path=dir", identifier, NEW).json()["name"] == "a.csv"
    assert call(gateway, "DELETE", "files/a.csv?path=dir", identifier, NEW).status_code == 204


def test_a_form_under_another_type_is_read(gateway: Gateway, identifier: str) -> None:
    form = b'--b0\r\nContent-Disposition: form-data; name="file"; filename="/mnt/data/a"\r\n\r\nabc\r\n--b0--\r\n'
    kind = {"Content-Type": "application/json"}
    assert call(gateway, "POST", "files/upload", identifier, data=form, headers=kind).status_code == 200
    for body in (b"{}", b"x" * 1000, b"--\r\n", b"--b0"):
        refused = call(gateway, "POST", "files/upload", identifier, data=body, headers=kind)
        assert told(refused) == (400, "SessionRequestValidationFailed", "SB002")


# -- sessions ---------------------------------------------------------------------------------------------------


def test_a_session_is_described_and_deleted(gateway: Gateway, identifier: str) -> None:
    unknown = (400, "SessionWithIdentifierNotFound", "SB011")
    assert told(call(gateway, "GET", "session", identifier, NEW)) == unknown
    run(gateway, identifier, "x = 1")
    assert call(gateway, "GET", "session", identifier, NEW).json()["identifier"] == identifier
    assert call(gateway, "DELETE", "session", identifier, NEW).status_code == 204
    assert told(call(gateway, "DELETE", "session", identifier, NEW)) == unknown
    assert run(gateway, identifier, "'x' in globals()")["result"] is False


def test_an_identifier_that_is_no_name_has_a_session_of_its_own(gateway: Gateway) -> None:
    odd = [f"{secrets.token_hex(4)}:/{end}" for end in "ab"]
    for identifier in odd:
        run(gateway, identifier, f"x = {identifier!r}")
    for identifier in odd:
        assert run(gateway, identifier, "x")["result"] == identifier
        assert call(gateway, "DELETE", "session", identifier, NEW).status_code == 204


def test_requests_are_counted_for_the_dialect(gateway: Gateway, identifier: str) -> None:
    labels = {"dialect": "dynamic_sessions", "method": "POST", "status": "2xx"}
    before = metric(gateway, "kernel_gateway_http_requests_total", **labels)
    run(gateway, identifier, "1")
    assert metric(gateway, "kernel_gateway_http_requests_total", **labels) == before + 1


# -- hostile requests -------------------------------------------------------------------------------------------


def test_another_tenants_identifier_reaches_another_session(gateway: Gateway, identifier: str) -> None:
    run(gateway, identifier, "secret = 1; open('secret', 'w').write('1')")
    seen = call(gateway, "GET", "files", identifier, tenant="bob").json()["value"]
    body = {"properties": {"code": "'secret' in globals()"}}
    answer = call(gateway, "POST", "code/execute", identifier, json=body, tenant="bob").json()
    assert (seen, answer["properties"]["result"]) == ([], False)
    assert call(gateway, "DELETE", "session", identifier, tenant="bob").status_code == 204
    assert run(gateway, identifier, "secret")["result"] == 1


@pytest.mark.parametrize("identifier", ["", "abc", "x" * 129])
def test_an_identifier_of_the_wrong_length_is_refused(gateway: Gateway, identifier: str) -> None:
    refused = told(call(gateway, "GET", "files", identifier))
    assert refused == (400, "SessionRequestValidationFailed", "SB002")


@pytest.mark.parametrize("name", ["../escaped", "/etc/escaped", "a/../../escaped", "a\0b", "a\x1bb"])
def test_a_file_name_that_leads_elsewhere_is_refused(gateway: Gateway, identifier: str, name: str) -> None:
    assert upload(gateway, identifier, "within").status_code == 200
    form = b'--b0\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\nabc\r\n--b0--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=b0"}
    refused = call(gateway, "POST", "files/upload", identifier, data=form % name.encode(), headers=kind)
    assert refused.status_code == 400, refused.text
    content = call(gateway, "GET", f"files/content/{quote(name, safe='')}", identifier)
    assert content.status_code == 400, content.text
    assert len(call(gateway, "GET", "files", identifier).json()["value"]) == 1


def test_bodies_that_are_too_large_or_not_understood_are_refused(gateway: Gateway, identifier: str) -> None:
    run(gateway, identifier, "1" + " " * 3_000_000)
    headers = (("Authorization", f"Bearer {KEYS['alice']}"), ("Content-Length", "99999999"))
    target = f"{POOL}/code/execute?identifier={identifier}"
    assert raw(gateway, "POST", target, headers=headers).status_code == 413
    for body in (b"", b"[]", b"{", b'{"properties": {"code": 1}}', b'{"code": "1"}'):
        refused = call(gateway, "POST", "code/execute", identifier, data=body)
        assert told(refused) == (400, "SessionRequestValidationFailed", "SB002")
    for fields in ({"shellCommand": "ls"}, {"code": "1", "executionType": "Asynchronous"}):
        refused = call(gateway, "POST", "executions", identifier, NEW, json=fields)
        assert told(refused) == (501, "SessionRequestNotSupported", "SB046")


def test_a_file_without_an_end_is_refused(gateway: Gateway, identifier: str) -> None:
    assert upload(gateway, identifier, "fits", b"x" * 1_000_000).status_code == 200
    assert upload(gateway, identifier, "large", b"x" * 300_000_000).status_code == 507


def test_a_key_is_needed(gateway: Gateway) -> None:
    assert told(call(gateway, "GET", "files", "abcd", tenant=None)) == (401, "Unauthorized", "SB020")


def test_a_method_that_a_path_does_not_know_is_named_so(gateway: Gateway, identifier: str) -> None:
    assert told(call(gateway, "PATCH", "files", identifier)) == (405, "MethodNotAllowed", "SB023")

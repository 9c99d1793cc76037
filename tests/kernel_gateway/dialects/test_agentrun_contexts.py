"""AgentRun's contexts over HTTP: executions, their outputs and variables, and how they end."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.gateways import Gateway
from tests.kernel_gateway.agentrun import Box, boxed, create, data, end, failed
from tests.kernel_gateway.calls import failure, process_only, raw, until
from tests.tiers import some

EXECUTE = "/contexts/execute"


def kinds(reply: dict[str, Any]) -> list[str]:
    return [item["type"] for item in reply["results"]]


# -- contexts --------------------------------------------------------------------------------------------------


def test_a_context_is_created_listed_described_and_ended(gateway: Gateway, own_box: Box) -> None:
    assert own_box.get("/contexts") == []
    made = own_box.post("/contexts", language="python", cwd="/home/user")
    assert made == {"id": made["id"], "language": "python", "cwd": "/home/user"}
    second = own_box.post("/contexts", language="python", cwd="/tmp")
    assert own_box.get("/contexts") == [made, second]
    assert own_box.get(f"/contexts/{made['id']}") == made
    gone = own_box.call("DELETE", f"/contexts/{made['id']}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert own_box.get("/contexts") == [second]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/execute")):
        body = {"code": "1"} if path else None
        assert failed(own_box.call(method, f"/contexts/{made['id']}{path}", json=body)) == (404, "NOT_FOUND")
    assert failed(own_box.call("POST", EXECUTE, json={"code": "1", "contextId": made["id"]})) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("cwd", "seen"),
    some(
        [
            (None, "/home/user"),
            ("/home/user/x/y", "/home/user/x/y"),
            ("/workspace", "/home/user"),
            ("/tmp", "/tmp"),
            ("/home/user/", "/home/user"),
            ("x", "/home/user/x"),
            ("", "/home/user"),
            ("/home/user", "/home/user"),
        ],
        gate=4,
    ),
)
@process_only
def test_a_context_starts_in_the_requested_directory(own_box: Box, cwd: str | None, seen: str) -> None:
    made = own_box.post("/contexts", language="python", cwd=cwd)
    assert made["cwd"] == seen
    own_box.text("open('here', 'w').close()", contextId=made["id"])
    where = own_box.text("import os; print(os.getcwd())", contextId=made["id"]).strip()
    assert where.endswith(seen.removeprefix("/home/user"))
    if seen != "/tmp":
        assert "here" in own_box.names(seen)


@pytest.mark.parametrize("gateway", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)
def test_a_context_in_a_container_sees_its_directory_by_the_requested_path(own_box: Box) -> None:
    for cwd in ("/home/user/x", "/tmp", "/tmp/deep/er"):
        context = own_box.context(cwd=cwd)
        assert own_box.text("import os; print(os.getcwd())", contextId=context) == f"{cwd}\n"
    assert own_box.text("import os; print(os.getcwd())") == "/home/user\n"


@pytest.mark.parametrize("cwd", ["/", "/etc"])
@process_only
def test_a_context_begins_in_any_directory(own_box: Box, cwd: str) -> None:
    made = own_box.post("/contexts", cwd=cwd)
    assert made["cwd"] == cwd
    assert own_box.text("import os; print(os.getcwd())", contextId=made["id"]) == f"{cwd}\n"


@process_only
def test_a_language_that_the_image_lacks_is_the_clients_mistake(box: Box) -> None:
    for path in ("/contexts", EXECUTE):
        answer = box.call("POST", path, json={"code": "1", "language": "r"})
        assert failed(answer) == (400, "INVALID_REQUEST")
        assert "the image kernel-gateway/python:r has it" in answer.json()["message"]


@pytest.mark.parametrize("cwd", ["a\0b", "a\nb", "x" * 2000])
@process_only
def test_a_context_in_a_directory_that_no_path_can_name_is_refused(box: Box, cwd: str) -> None:
    before = len(box.get("/contexts"))
    assert failed(box.call("POST", "/contexts", json={"cwd": cwd})) == (400, "INVALID_REQUEST")
    assert len(box.get("/contexts")) == before


@pytest.mark.parametrize(
    "body", [b'{"language": "cobol"}', b'{"language": 1}', b'{"cwd": 1}', b"[]", b"x", b'{"language": "../python"}']
)
@process_only
def test_an_invalid_body_creates_no_context(gateway: Gateway, box: Box, body: bytes) -> None:
    before = len(box.get("/contexts"))
    answer = raw(gateway, "POST", f"/sandboxes/{box.id}/contexts", body=body)
    assert (failure(answer)[0], answer.json["code"]) == (400, "INVALID_REQUEST")
    assert len(box.get("/contexts")) == before


@process_only
def test_a_missing_body_means_defaults_despite_its_content_type(own_box: Box) -> None:
    made = own_box.call("POST", "/contexts", headers={"Content-Type": "application/json"})
    assert made.status_code == 200
    assert made.json()["language"] == "python"


# -- execute ---------------------------------------------------------------------------------------------------


def test_the_items_are_the_outputs_in_order(box: Box) -> None:
    code = """
import sys
print('one'); print('two')
sys.stdout.flush(); print('err', file=sys.stderr); sys.stderr.flush()
from IPython.display import HTML, display
display(HTML('<b>bold</b>'))
{'a': 1}
"""
    reply = box.run(code)
    assert kinds(reply) == ["stdout", "stderr", "result", "result", "endOfExecution"]
    out, err, shown, value, _ = reply["results"]
    assert (out["text"], err["text"]) == ("one\ntwo", "err")
    assert shown["data"]["text/html"] == "<b>bold</b>"
    assert (value["data"]["text/plain"], value["text"]) == ("{'a': 1}", "{'a': 1}")
    assert value["executionCount"] >= 1
    assert (end(reply), reply["exitCode"], reply["stdout"], reply["stderr"]) == ("ok", 0, "one\ntwo\n", "err\n")


@process_only
def test_only_one_trailing_newline_is_removed_from_an_item(box: Box) -> None:
    for printed, told in (("a", "a"), ("a\n", "a"), ("a\n\n", "a\n"), ("  a ", "  a ")):
        reply = box.run(f"import sys; _ = sys.stdout.write({printed!r})")
        assert (reply["results"][0]["text"], reply["stdout"]) == (told, printed)


@process_only
def test_code_without_output_has_only_an_end_item(box: Box) -> None:
    for code in ("x = 1", "", "None", "# nothing"):
        assert kinds(box.run(code)) == ["endOfExecution"]


@process_only
def test_a_failure_of_the_code_is_no_failure_of_the_request(box: Box) -> None:
    reply = box.run("print('before'); 1 / 0")
    assert kinds(reply) == ["stdout", "error", "endOfExecution"]
    error = reply["results"][1]
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    assert error["text"] == "ZeroDivisionError: division by zero"
    assert any("ZeroDivisionError" in line for line in error["traceback"])
    assert (end(reply), reply["exitCode"]) == ("error", 1)


def test_a_timeout_ends_the_cell_and_keeps_its_variables(own_box: Box) -> None:
    own_box.run("kept = 42")
    reply = own_box.run("import time; print('begun', flush=True); time.sleep(60)", timeout=1)
    assert end(reply) == "timeout"
    assert reply["results"][0] == {"type": "stdout", "text": "begun"}
    assert reply["results"][-2]["name"] == "TimeoutError"
    assert reply["state"] == "preserved"
    assert own_box.text("print(kept)") == "42\n"


def test_a_kernels_death_is_reported_and_its_files_are_kept(own_box: Box) -> None:
    own_box.run("x = 1; open('kept', 'w').write('content')")
    reply = own_box.run("import os; os._exit(1)")
    assert (end(reply), reply["state"]) == ("error", "lost")
    assert reply["stateReason"]
    assert kinds(reply)[-2] == "error"
    after = own_box.run("print(open('kept').read()); x")
    assert (after["stdout"], end(after)) == ("content\n", "error")
    assert after["contextId"] == reply["contextId"]


@process_only
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"code": 1}',
        b'{"code": null}',
        b'{"code": "1", "timeout": 0}',
        b'{"code": "1", "timeout": -1}',
        b'{"code": "1", "timeout": "x"}',
        b'{"code": "1", "language": "cobol"}',
        b'{"code": "1", "language": 1}',
        b'{"code": "1", "contextId": 1}',
        b'{"code": "\\ud800"}',
    ],
)
def test_an_invalid_body_runs_nothing(gateway: Gateway, box: Box, body: bytes) -> None:
    answer = raw(gateway, "POST", f"/sandboxes/{box.id}{EXECUTE}", body=body)
    assert (failure(answer)[0], answer.json["code"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("language", "code"),
    [("python", "def main(a, b=0): return [a, b]"), ("javascript", "async function main({a}) { return [a, 0] }")],
)
def test_with_arguments_main_is_called_and_its_value_is_the_result(own_box: Box, language: str, code: str) -> None:
    reply = own_box.run(code, language=language, arguments={"a": "it's"})
    assert end(reply) == "ok"
    assert "it's" in reply["results"][0]["text"]
    refused = own_box.call("POST", "/contexts/execute", json={"code": code, "arguments": [1]})
    assert failed(refused) == (400, "INVALID_REQUEST")


def test_a_language_alone_selects_the_sandboxs_default_context(own_box: Box) -> None:
    first = own_box.run("x = 1")
    assert own_box.run("x", language="python")["contextId"] == first["contextId"]
    assert own_box.text("print(x)", language=None, contextId=None, timeout=None) == "1\n"
    assert own_box.text("print(x)", contextId=first["contextId"]) == "1\n"
    assert [item["id"] for item in own_box.get("/contexts")] == [first["contextId"]]
    own_box.call("DELETE", f"/contexts/{first['contextId']}")
    assert "NameError" in own_box.run("x")["results"][0]["text"]


@process_only
def test_context_and_language_may_both_be_named_when_they_agree(own_box: Box) -> None:
    context = own_box.context(language="python")
    assert own_box.run("1", contextId=context, language="python")["contextId"] == context
    for language in ("javascript", "cobol"):
        body = {"code": "1", "contextId": context, "language": language}
        assert failed(own_box.call("POST", EXECUTE, json=body)) == (400, "INVALID_REQUEST")


@process_only
def test_a_context_can_be_named_in_the_path(own_box: Box) -> None:
    context, other = own_box.context(), own_box.context()
    own_box.post(f"/contexts/{context}/execute", code="x = 'in the path'")
    assert own_box.text("print(x)", contextId=context) == "in the path\n"
    reply = own_box.post(f"/contexts/{context}/execute", code="print(x)", contextId=other)
    assert (reply["contextId"], reply["stdout"]) == (context, "in the path\n")


@process_only
def test_a_context_that_is_not_there_is_not_found(own_box: Box) -> None:
    for context in ("nobody", str(uuid.uuid4()), "a b", "x" * 500, "é"):
        body = {"code": "1", "contextId": context}
        assert failed(own_box.call("POST", EXECUTE, json=body)) == (404, "NOT_FOUND")
        assert failed(own_box.call("GET", f"/contexts/{context}")) == (404, "NOT_FOUND")
    assert own_box.get("/contexts") == []


def test_a_client_that_leaves_ends_its_cell(own_box: Box) -> None:
    context = own_box.context()
    with pytest.raises(OSError):  # noqa: PT011 - the kind of timeout varies
        own_box.call("POST", EXECUTE, json={"code": "import time; time.sleep(600)", "contextId": context}, timeout=2)
    assert own_box.text("print('free')", contextId=context) == "free\n"


# -- isolation -------------------------------------------------------------------------------------------------


def test_contexts_share_files_and_no_variables(own_box: Box) -> None:
    first, second = own_box.context(), own_box.context()
    own_box.run("x = 'of the first'; open('/tmp/of-the-first', 'w'); open('file', 'w').write(x)", contextId=first)
    reply = own_box.run("print(open('file').read()); x", contextId=second)
    assert reply["stdout"] == "of the first\n"
    assert [item["name"] for item in reply["results"] if item["type"] == "error"] == ["NameError"]
    assert own_box.read("/home/user/file") == "of the first"
    assert own_box.command("cat file", cwd="/home/user")["stdout"] == "of the first"


def test_a_context_belongs_only_to_its_sandbox(gateway: Gateway, own_box: Box) -> None:
    context = own_box.context()
    own_box.run("open('secret', 'w').write('x')", contextId=context)
    with boxed(gateway) as other:
        assert other.get("/contexts") == []
        assert failed(other.call("GET", f"/contexts/{context}")) == (404, "NOT_FOUND")
        assert failed(other.call("DELETE", f"/contexts/{context}")) == (404, "NOT_FOUND")
        body = {"code": "1", "contextId": context}
        assert failed(other.call("POST", EXECUTE, json=body)) == (404, "NOT_FOUND")
        assert other.names() == []
    assert own_box.text("print(open('secret').read())", contextId=context) == "x\n"


@process_only
def test_another_tenants_context_is_not_there(gateway: Gateway, own_box: Box) -> None:
    context = own_box.context()
    own = data(create(gateway, "bob"))["sandboxId"]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/execute")):
        target = f"/sandboxes/{own}/contexts/{context}{path}"
        assert failed(gateway.call(method, target, tenant="bob", json={"code": "1"})) == (404, "NOT_FOUND")
    data(gateway.call("DELETE", f"/sandboxes/{own}", tenant="bob"))
    assert own_box.text("print(1)", contextId=context) == "1\n"


@process_only
def test_a_session_outside_the_sandbox_is_no_context(gateway: Gateway, own_box: Box, session: str) -> None:
    gateway.execute(session, "x = 1")
    assert failed(own_box.call("GET", f"/contexts/{session}")) == (404, "NOT_FOUND")
    body = {"code": "x", "contextId": session}
    assert failed(own_box.call("POST", EXECUTE, json=body)) == (404, "NOT_FOUND")
    assert gateway.text(session, "x") == "1"


def test_a_context_is_a_session_and_a_kernel_of_its_tenant(gateway: Gateway, own_box: Box) -> None:
    context = own_box.context()
    own_box.run("x = 'seen'", contextId=context)
    assert gateway.text(context, "print(x)") == "seen\n"
    gateway.execute(context, "x = 'changed'")
    assert own_box.text("print(x)", contextId=context) == "changed\n"
    names = [item["name"] for item in gateway.call("GET", "/v1/sessions").json()["sessions"]]
    assert context in names
    assert failure(gateway.call("GET", f"/v1/sessions/{context}", tenant="bob")) == (404, "SB011")
    kernel = [item for item in gateway.call("GET", "/api/kernels").json() if item["id"] in _ids(gateway, context)]
    assert len(kernel) == 1
    others = gateway.call("GET", "/api/kernels", tenant="bob").json()
    assert kernel[0]["id"] not in [item["id"] for item in others]
    assert gateway.call("GET", f"/api/kernels/{kernel[0]['id']}", tenant="bob").status_code == 404
    gateway.call("DELETE", f"/v1/sessions/{context}")
    until(lambda: own_box.get("/contexts") == [])
    assert own_box.get("/health")["status"] == "ok"


def _ids(gateway: Gateway, context: str) -> set[str]:
    """Return all ids by which Jupyter's clients may know the kernel."""
    sessions = gateway.call("GET", "/api/sessions").json()
    return {context} | {item["kernel"]["id"] for item in sessions if context in {item["name"], item["path"]}}


@process_only
def test_a_failed_run_always_has_its_error_and_says_what_is_missing(box: Box) -> None:
    for code, name in (("%nosuchmagic", "UsageError"), ("print('x' * 11_000_000); 1/0", "ZeroDivisionError")):
        reply = box.post(EXECUTE, code=code)
        assert [item["name"] for item in reply["results"] if item["type"] == "error"] == [name]
        assert (reply["truncated"], reply["omittedBytes"]) == (
            (True, 11_000_001 - 10 * 1024**2) if "print" in code else (False, 0)
        )

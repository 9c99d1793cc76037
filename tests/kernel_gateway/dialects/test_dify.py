"""Programs as Dify wraps and runs them, and every row of the table of its sandbox that can occur.

Source: langgenius/dify-sandbox @a94a466, and Dify's `code_executor`; a replica, because Dify is on no registry.
"""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import metric, process_only, raw, until
from tests.kernel_gateway.ragflow import running

PYTHON, NODEJS = "python3", "nodejs"
#: the path of the endpoint that the page gives
[ENDPOINT] = re.findall(r"ENDPOINT=http://127.0.0.1:8888(\S+)", Path("docs/clients/dify.md").read_text())
RUN = f"{ENDPOINT}/v1/sandbox/run"


def call(gateway: Gateway, method: str, path: str, **options: Any) -> requests.Response:
    """Send a request with alice's key, as Dify sends it."""
    return gateway.call(method, path, tenant=None, headers={"X-Api-Key": KEYS["alice"]}, **options)


def run(gateway: Gateway, code: str, language: str = PYTHON, **fields: Any) -> dict[str, Any]:
    """Run a program and return `data`; the request itself succeeds."""
    body = {"language": language, "code": code, "preload": "", "enable_network": True} | fields
    response = call(gateway, "POST", RUN, json=body)
    answer: dict[str, Any] = response.json()
    assert (response.status_code, answer["code"], answer["message"]) == (200, 0, "success"), answer
    data: dict[str, Any] = answer["data"]
    return data


def result(gateway: Gateway, code: str, language: str = PYTHON, **inputs: Any) -> Any:
    """Run a code node, and return its result as Dify reads it."""
    encoded = base64.b64encode(json.dumps(inputs).encode()).decode()
    if language == PYTHON:
        code += f"""
import json
from base64 import b64decode
inputs = json.loads(b64decode('{encoded}').decode('utf-8'))
print("<<RESULT>>" + json.dumps(main(**inputs), indent=4) + "<<RESULT>>")
"""
    else:
        code += f"""
var input = JSON.parse(Buffer.from('{encoded}', 'base64').toString('utf-8'));
console.log("<<RESULT>>" + JSON.stringify(main(input)) + "<<RESULT>>");
"""
    return json.loads(marked(run(gateway, code, language)))


def marked(data: dict[str, Any]) -> str:
    """Return what is between the first and the last marker; the program must have succeeded."""
    assert data["error"] == "", data
    found = re.search("<<RESULT>>(.*)<<RESULT>>", data["stdout"], re.DOTALL)
    assert found, data
    return found[1]


TEMPLATE = """
def main(**inputs):
    import jinja2
    from base64 import b64decode
    return jinja2.Template(b64decode('{template}').decode('utf-8')).render(**inputs)
import json
from base64 import b64decode
print("<<RESULT>>" + main(**json.loads(b64decode('{inputs}').decode('utf-8'))) + "<<RESULT>>")
"""


@pytest.mark.parametrize(
    ("language", "code"),
    [
        (PYTHON, "def main(a):\n    print('no newline', end='')\n    return {'a': a}"),
        (NODEJS, "function main({a}) { process.stdout.write('x'); undeclared = 010; return {a} }"),
        (NODEJS, "var fs = require('fs')\nconst main = ({a}) => { if (!fs.existsSync('/')) throw 1; return {a} }"),
    ],
)
def test_a_code_node_gets_its_result(gateway: Gateway, language: str, code: str) -> None:
    value = 'it\'s "é" <<RESULT>> 漢字\n'
    assert result(gateway, code, language, a=value) == {"a": value}


@pytest.mark.gate
def test_the_nodes_of_a_workflow_get_their_results(gateway: Gateway) -> None:
    """A replay of what Dify sends for its nodes, because its own client is on no registry."""
    assert result(gateway, "def main(a):\n    return {'a': a}", a="é") == {"a": "é"}
    assert result(gateway, "function main({a}) { return {a} }", NODEJS, a=[1]) == {"a": [1]}
    template, inputs = (base64.b64encode(text).decode() for text in (b"<{{ x }}>", b'{"x": "y"}'))
    assert marked(run(gateway, TEMPLATE.format(template=template, inputs=inputs))) == "<y>"


@process_only
def test_a_template_node_gets_its_text(gateway: Gateway) -> None:
    template = base64.b64encode("{% for x in xs %}[{{ x }}]{% endfor %}{{ missing }} é".encode()).decode()
    inputs = base64.b64encode(b'{"xs": [1, "\\u00e9"]}').decode()
    assert marked(run(gateway, TEMPLATE.format(template=template, inputs=inputs), preload="1/0")) == "[1][é] é"


@process_only
def test_output_is_whole_and_unchanged(gateway: Gateway) -> None:
    assert run(gateway, "print('x' * 400_000, end='')")["stdout"] == "x" * 400_000
    assert run(gateway, "console.log({a: 1})", NODEJS)["stdout"] == "{ a: 1 }\n"
    assert run(gateway, "40 + 2\nprint(__name__)") == {
        "stdout": "__main__\n",
        "stderr": "",
        "error": "",
        "exit_code": 0,
    }


@process_only
def test_text_on_stderr_is_no_error(gateway: Gateway) -> None:
    for language, code in ((PYTHON, "import sys; print('e', file=sys.stderr)"), (NODEJS, "console.error('e')")):
        data = run(gateway, code, language)
        assert (data["stderr"], data["error"], data["exit_code"]) == ("e\n", "", 0)


@process_only
def test_the_libraries_of_science_can_be_imported(gateway: Gateway) -> None:
    assert result(gateway, "import pandas\ndef main(): return {'sum': int(pandas.Series([1, 2]).sum())}") == {"sum": 3}


ROWS = {
    "raises": (PYTHON, "print('a')\nraise ValueError('bad')", 1, "ValueError: bad"),
    "exit 3": (PYTHON, "import sys; sys.exit(3)", 3, ""),
    "_exit": (PYTHON, "import os; os._exit(5)", 5, "SB010"),
    "syntax": (PYTHON, "def main(:\n", 1, "SyntaxError"),
    "throws": (NODEJS, "throw new Error('bad')", 1, "Error: bad"),
    "exit 4": (NODEJS, "process.exit(4)", 4, ""),
}


@process_only
@pytest.mark.parametrize("row", ROWS)
def test_a_failing_program_is_an_answer_with_an_error(gateway: Gateway, row: str) -> None:
    language, code, exit_code, text = ROWS[row]
    data = run(gateway, code, language)
    assert data["exit_code"] == exit_code
    assert data["error"].startswith(f"process exited with code {exit_code}\n")
    assert text in data["error"]


@process_only
def test_a_program_past_its_time_is_ended(gateway: Gateway) -> None:
    with gateways.gateway("process", execute_timeout="1", max_execute_timeout="1") as short:
        data = run(short, "while True: pass")
        assert data["exit_code"] == -1
        assert data["error"].startswith("process exited with code -1\nerror: timeout\n")


@process_only
def test_output_that_was_cut_is_an_error(gateway: Gateway) -> None:
    assert "left out" in run(gateway, "print('x' * 12_000_000)")["error"]


@process_only
def test_no_run_sees_another(gateway: Gateway) -> None:
    code = "import builtins, pathlib\nprint(hasattr(builtins, 'trace'), pathlib.Path('trace').exists())\n"
    for _ in range(2):
        assert run(gateway, f"{code}builtins.trace = 1\npathlib.Path('trace').touch()")["stdout"] == "False False\n"
    until(lambda: not running(gateway))


@process_only
def test_parallel_runs_are_answered(gateway: Gateway) -> None:
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda n: result(gateway, "def main(n): return {'n': n}", n=n), range(6))) == [
            {"n": n} for n in range(6)
        ]


# -- refusals ---------------------------------------------------------------------------------------------------


@process_only
def test_requests_that_cannot_be_understood_have_their_row(gateway: Gateway) -> None:
    for body in (b"", b"[]", b"{", b'{"language": "python3"}', b'{"language": "python3", "code": 1}'):
        answer = call(gateway, "POST", RUN, data=body)
        assert (answer.status_code, answer.json()["code"], answer.json()["data"]) == (200, -400, None)
        assert answer.json()["message"].startswith("SB002: ")
    other = call(gateway, "POST", RUN, json={"language": "ruby", "code": "1"})
    assert (other.status_code, other.json()["code"]) == (400, -400)
    assert "unsupported language" in other.json()["message"]


@process_only
def test_a_missing_or_wrong_key_is_refused(gateway: Gateway) -> None:
    body = b'{"language": "python3", "code": "print(1)"}'
    assert raw(gateway, "POST", RUN, headers=(("X-Api-Key", KEYS["alice"]),), body=body).status_code == 200
    for headers in ((), (("X-Api-Key", "dify-sandbox"),)):
        refused = raw(gateway, "POST", RUN, headers=headers, body=body)
        assert (refused.status_code, refused.json["data"]) == (401, None)


@process_only
def test_a_body_that_is_too_large_is_refused(gateway: Gateway) -> None:
    fits = call(gateway, "POST", RUN, json={"language": PYTHON, "code": "print(1)" + " " * 3_000_000})
    assert fits.json()["data"]["stdout"] == "1\n"
    answer = raw(gateway, "POST", RUN, headers=(("X-Api-Key", KEYS["alice"]), ("Content-Length", "99999999")))
    assert (answer.status_code, answer.json["code"], answer.json["message"][:5]) == (200, -400, "SB024")


@process_only
def test_a_tenant_without_room_is_told_to_come_back(gateway: Gateway) -> None:
    with gateways.gateway("process", max_sessions_per_tenant="1") as small:
        assert run(small, "print(1)")["stdout"] == "1\n"
        until(lambda: not running(small))
        assert small.call("POST", "/v1/sessions", json={"name": "only"}).status_code == 201
        answer = call(small, "POST", RUN, json={"language": PYTHON, "code": "1"})
        assert (answer.status_code, answer.json()["code"]) == (503, -503)


@process_only
def test_a_program_is_not_reached_by_another_tenant(gateway: Gateway) -> None:
    with ThreadPoolExecutor(1) as pool:
        running_program = pool.submit(run, gateway, "import time; time.sleep(3); print('unharmed')")
        [name] = until(lambda: running(gateway))
        for method in ("GET", "DELETE"):
            assert gateway.call(method, f"/v1/sessions/{name}", tenant="bob").status_code == 404
        assert running_program.result()["stdout"] == "unharmed\n"


# -- the other paths --------------------------------------------------------------------------------------------


@process_only
@pytest.mark.parametrize("prefix", ["", "/dify"])
def test_health_and_packages(gateway: Gateway, prefix: str) -> None:
    health = gateway.call("GET", f"{prefix}/health", tenant=None)
    assert (health.status_code, health.json()) == (200, "ok")
    for path in ("dependencies?language=python3", "dependencies", "dependencies/refresh?language=python3"):
        answer = call(gateway, "GET", f"{prefix}/v1/sandbox/{path}").json()
        assert "jinja2" in {package["name"] for package in answer["data"]["dependencies"]}
    assert call(gateway, "GET", f"{prefix}/v1/sandbox/dependencies?language=nodejs").status_code == 400
    updated = call(gateway, "POST", f"{prefix}/v1/sandbox/dependencies/update", json={"language": PYTHON})
    assert updated.json() == {"code": 0, "message": "success", "data": {}}


@process_only
def test_runs_are_counted_for_the_dialect(gateway: Gateway) -> None:
    labels = {"dialect": "dify", "method": "POST", "status": "2xx"}
    before = metric(gateway, "kernel_gateway_http_requests_total", **labels)
    run(gateway, "print(1)")
    assert metric(gateway, "kernel_gateway_http_requests_total", **labels) == before + 1

"""LibreChat's code API: runs, files, and who may use them.

Source: `@librechat/agents` 3.9.2 and ClickHouse/code-interpreter @18bf002; LibreChat's own back end is replayed.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from kernel_gateway.dialects.librechat.models import WithTools
from kernel_gateway.dialects.librechat.runs import CodeRun
from kernel_gateway.dialects.librechat.tool_runs import RUNS_MAX, ToolRuns
from kernel_gateway.identity.user_tokens import UserTokens
from sessions.model.errors import InvalidRequest, QuotaExceeded
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import process_only, until

#: the path of the base URL that the page gives, and its commands
PAGE = Path("docs/clients/librechat.md").read_text()
[BASE] = re.findall(r"BASEURL=http://127.0.0.1:8888(\S+)", PAGE)
PRIVATE, STRANGERS = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
PUBLIC = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

Json = dict[str, Any]


def encoded(value: bytes | Json) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def claims_of(user: str, tenant: str | None, **changed: Any) -> Json:
    now = int(time.time())
    told: Json = {"iss": "librechat", "aud": "codeapi", "sub": user, "tenant_id": tenant, "jti": secrets.token_hex(8)}
    told |= {"iat": now, "nbf": now, "exp": now + 300, "role": "USER", "principal_source": "librechat_jwt"}
    return {name: value for name, value in (told | changed).items() if value is not None}


def token(
    user: str = "ada", tenant: str | None = "acme", key: Ed25519PrivateKey = PRIVATE, alg: str = "EdDSA", **changed: Any
) -> str:
    """Return a token as LibreChat signs it."""
    signed = f"{encoded({'alg': alg, 'typ': 'JWT', 'kid': 'k'})}.{encoded(claims_of(user, tenant, **changed))}"
    return f"{signed}.{encoded(key.sign(signed.encode()))}"


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that verifies LibreChat's tokens."""
    path = tmp_path_factory.mktemp("librechat") / "keys.pem"
    path.write_bytes(PUBLIC)
    with gateways.gateway("process", librechat_keys=str(path)) as serving:
        yield serving
        assert serving.errors() == []


def call(gateway: Gateway, method: str, path: str, jwt: str | None = None, **options: Any) -> requests.Response:
    """Send a request with a token, or else with alice's key."""
    headers = {"X-API-Key": KEYS["alice"]} if jwt is None else {"Authorization": f"Bearer {jwt}"}
    return gateway.call(method, f"{BASE}/{path}", tenant=None, headers=headers, **options)


def run(gateway: Gateway, code: str, jwt: str | None = None, **fields: Any) -> Json:
    response = call(gateway, "POST", "exec", jwt, json={"lang": "py", "code": code} | fields)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def upload(gateway: Gateway, jwt: str | None, name: str = "in/a.txt", content: bytes = b"abc", **fields: str) -> Json:
    """Upload a file as LibreChat does, and return the reference that it sends with a run."""
    fields = {"kind": "user", "id": "ada"} | fields
    response = call(gateway, "POST", "upload", jwt, data=fields, files={"file": (name, content)})
    assert response.status_code == 200, response.text
    told = response.json()
    assert (told["message"], told["files"][0]["filename"]) == ("success", name)
    batch, file_id = told["storage_session_id"], told["files"][0]["fileId"]
    known = {"kind": fields["kind"], "resource_id": fields["id"]}
    known |= {"version": fields["version"]} if "version" in fields else {}
    return {"id": file_id, "storage_session_id": batch, "name": name} | known


def query(file: Json) -> Json:
    return {"kind": file["kind"], "id": file["resource_id"]} | {k: file[k] for k in ("version",) if k in file}


def download(gateway: Gateway, jwt: str | None, file: Json, **asked: Any) -> requests.Response:
    path = f"download/{file['storage_session_id']}/{file['id']}"
    return call(gateway, "GET", path, jwt, params={"kind": "user", "id": "ada"} | asked)


# -- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_run_of_librechat_keeps_its_variables_and_files(gateway: Gateway) -> None:
    """A replay of a chat: a file is sent, code reads it, its output is fetched. npm takes too long for the gate."""
    hint, sent = f"chat-{secrets.token_hex(4)}", upload(gateway, None)
    data = "/mnt/data" if gateway.isolation == "docker" else "."
    code = f"x = open('{data}/in/a.txt').read()\nprint(x)\nopen('{data}/out.csv', 'w').write(x * 2)"
    first = run(gateway, code, runtime_session_hint=hint, files=[sent])
    assert (first["stdout"], first["stderr"], first["runtime_status"]) == ("abc\n6\n", "", "new")
    inherited, made = first["files"]
    assert inherited == sent | {"inherited": True}
    assert (made["name"], made["storage_session_id"]) == ("out.csv", first["session_id"])
    assert download(gateway, None, made).content == b"abcabc"
    second = run(gateway, "print(x, 41 + 1)", runtime_session_hint=hint)
    assert (second["stdout"], second["runtime_status"], second["state"]) == ("abc 42\n", "reused", "preserved")
    shell = run(gateway, "cat out.csv; echo $1 >&2; exit 3", lang="bash", args=["a b"], runtime_session_hint=hint)
    assert (shell["stdout"], shell["stderr"], shell["files"]) == ("abcabc", "a b\n", [])
    fresh = run(gateway, "print('x' in globals())\nimport os; print(os.listdir())")
    assert fresh["stdout"] == "False\n[]\n"
    assert "runtime_session_id" not in fresh


# -- who may use what -------------------------------------------------------------------------------------------


def refused(response: requests.Response) -> tuple[int, str]:
    answer = response.json()
    return response.status_code, answer["details"]["code"]


def hmac_token() -> str:
    signed = f"{encoded({'alg': 'HS256', 'typ': 'JWT'})}.{encoded(claims_of('ada', 'acme'))}"
    return f"{signed}.{encoded(hmac.digest(PUBLIC, signed.encode(), 'sha256'))}"


FORGED: dict[str, Callable[[], str]] = {
    "another key": lambda: token(key=STRANGERS),
    "alg none": lambda: f"{encoded({'alg': 'none'})}.{encoded(claims_of('ada', 'acme'))}.AA",
    "no signature": lambda: f"{encoded({'alg': 'none'})}.{encoded(claims_of('ada', 'acme'))}.",
    "another algorithm": lambda: token(alg="RS256"),
    "the public key as a secret": hmac_token,
    "changed claims": lambda: ".".join(
        [*token().split(".")[:1], token(tenant="b").split(".")[1], token().split(".")[2]]
    ),
    "too old": lambda: token(iat=int(time.time()) - 400, nbf=None, exp=int(time.time()) - 100),
    "not yet": lambda: token(nbf=int(time.time()) + 100),
    "valid for too long": lambda: token(exp=int(time.time()) + 301 + 60),
    "without an end": lambda: token(exp=None),
    "for others": lambda: token(aud="other"),
    "from others": lambda: token(iss="other"),
    "of nobody": lambda: token(user=""),
    "of a list": lambda: token(sub=["ada"]),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_token_is_refused(trusting: Gateway, forged: str) -> None:
    assert refused(call(trusting, "POST", "exec", FORGED[forged](), json={"lang": "py", "code": "1"})) == (401, "SB020")
    assert call(trusting, "GET", "files/none", token()).status_code == 200, "control"


def test_a_token_opens_no_other_dialect_and_a_gateway_without_keys_of_librechat_refuses_it(
    trusting: Gateway, started: Callable[[str], Gateway]
) -> None:
    headers = {"Authorization": f"Bearer {token()}"}
    assert trusting.call("GET", "/v1/sessions", tenant=None, headers=headers).status_code == 401
    assert refused(call(started("process"), "GET", "files/none", token())) == (401, "SB020")


def test_the_same_hint_of_another_user_tenant_or_key_is_another_session(trusting: Gateway) -> None:
    hint = {"runtime_session_hint": "chat"}
    run(trusting, "secret = 1", token(), **hint)
    seen = "print('secret' in globals())"
    assert run(trusting, seen, token(), **hint)["stdout"] == "True\n", "control"
    others = [token("eve"), token(tenant="evil"), token("eve", tenant="librechat-acme"), None]
    assert [run(trusting, seen, other, **hint)["stdout"] for other in others] == ["False\n"] * 4
    # Nor do user and hint together make the name of another user's session.
    assert run(trusting, seen, token('ada", "chat'), **hint)["stdout"] == "False\n"


def test_tenants_of_librechat_are_none_of_the_operators(trusting: Gateway) -> None:
    before = trusting.call("GET", "/v1/sessions").text
    run(trusting, "1", token(tenant="alice"), runtime_session_hint="h")
    assert trusting.call("GET", "/v1/sessions").text.count("lc-") == before.count("lc-")
    key = trusting.admin_key()
    listed = trusting.call("GET", "/v1/admin/sessions", tenant=None, headers={"X-API-Key": key}).text
    assert '"librechat-alice"' in listed, "control"


def test_files_of_others_are_not_found(trusting: Gateway) -> None:
    ada, others = token(), [token("eve"), token(tenant="evil"), None]
    file = upload(trusting, ada)
    assert download(trusting, ada, file).content == b"abc", "control"
    batch, one = file["storage_session_id"], file["id"]
    paths = [f"download/{batch}/{one}", f"sessions/{batch}/objects/{one}"]
    for other in others:
        for path in paths:
            asked = call(trusting, "GET", path, other, params={"kind": "user", "id": "ada"})
            assert refused(asked) == (404, "SB014")
        assert call(trusting, "GET", f"files/{batch}", other, params={"kind": "user", "id": "ada"}).json() == []
        assert refused(call(trusting, "DELETE", f"files/{batch}/{one}", other)) == (404, "SB014")
        body = {"lang": "py", "code": "print(open('in/a.txt').read())", "files": [file]}
        assert refused(call(trusting, "POST", "exec", other, json=body)) == (404, "SB014")
    assert run(trusting, "print(open('in/a.txt').read())", ada, files=[file])["stdout"] == "abc\n", "control"


def test_files_of_an_agent_or_a_skill_belong_to_its_tenant(trusting: Gateway) -> None:
    agents = upload(trusting, token(), kind="agent", id="a1")
    skills = upload(trusting, token(), name="s.py", kind="skill", id="s1", version="2")
    code = "open('s.py', 'w').write('changed')"
    kept = run(trusting, code, token("eve"), files=[agents, skills])["files"]
    assert [each["inherited"] for each in kept] == [True, True], "a skill is read-only"
    for file in (agents, skills):
        assert download(trusting, token("eve"), file, **query(file)).status_code == 200
        for wrong in ({"id": "other"}, {"kind": "user"}, {"version": "1"} if file is skills else {"kind": "skill"}):
            assert refused(download(trusting, token(), file, **query(file) | wrong)) == (404, "SB014")
        assert refused(download(trusting, token(tenant="evil"), file, **query(file))) == (404, "SB014")


def test_keys_made_as_shown_verify_tokens(tmp_path: Path) -> None:
    [commands] = re.findall("```sh\n(openssl.+?)```", PAGE, re.DOTALL)
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True)
    own = load_pem_private_key((tmp_path / "librechat.pem").read_bytes(), None)
    assert isinstance(own, Ed25519PrivateKey)
    public = (tmp_path / "librechat-public.pem").read_bytes()
    rsa = generate_private_key(65537, 2048)
    (tmp_path / "both.pem").write_bytes(
        public + rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    tokens = UserTokens.of_file(tmp_path / "both.pem")
    signed = token(alg="RS256").rpartition(".")[0]
    for jwt in (token(key=own), f"{signed}.{encoded(rsa.sign(signed.encode(), PKCS1v15(), SHA256()))}"):
        user = tokens.user(jwt)
        assert (user.caller.tenant, user.name) == ("librechat-acme", "ada")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        generate_private_key(65537, 1024)  # noqa: S505 - refused
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
    ],
    ids=["none", "small", "broken"],
)
def test_keys_that_cannot_be_used_are_refused_at_the_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys.pem").write_bytes(content)
    with pytest.raises(InvalidRequest):
        UserTokens.of_file(tmp_path / "keys.pem")


def test_names_of_tenants_never_become_the_same(tmp_path: Path) -> None:
    (tmp_path / "keys.pem").write_bytes(PUBLIC)
    tokens = UserTokens.of_file(tmp_path / "keys.pem")
    digest = tokens.user(token(tenant="a b")).caller.tenant
    told = [
        tokens.user(token(tenant=each)).caller.tenant
        for each in ("a", "a:b", "x" * 64, digest.partition(".")[2], digest)
    ]
    assert len({digest, *told}) == 6
    assert tokens.user(token(tenant=None)).caller.tenant == "librechat-legacy"


# -- files ------------------------------------------------------------------------------------------------------


@process_only
def test_a_file_is_listed_described_sent_and_deleted(gateway: Gateway) -> None:
    file = upload(gateway, None, name="dir/é b.csv", content=b"1,2")
    batch, one, asked = file["storage_session_id"], file["id"], {"kind": "user", "id": "ada"}
    sent = download(gateway, None, file)
    assert (sent.content, sent.headers["Content-Disposition"]) == (
        b"1,2",
        "attachment; filename*=UTF-8''%C3%A9%20b.csv",
    )
    told = call(gateway, "GET", f"sessions/{batch}/objects/{one}", params=asked).json()
    assert {k: told[k] for k in ("name", "originalFilename", "size", "contentType", "readOnly")} == {
        "name": f"{batch}/{one}.csv", "originalFilename": "dir/é b.csv", "size": 3, "contentType": "text/csv",
        "readOnly": False,
    }  # fmt: skip
    listed = {
        d: call(gateway, "GET", f"files/{batch}", params=asked | {"detail": d}).json()
        for d in ("simple", "summary", "full", "normalized")
    }
    assert listed["simple"] == [f"{batch}/{one}.csv"]
    assert listed["full"][0]["metadata"]["original-filename"] == "dir/é b.csv"
    assert (listed["normalized"][0]["id"], listed["normalized"][0]["name"]) == (one, "dir/é b.csv")
    assert refused(call(gateway, "GET", f"files/{batch}", params={"detail": "x"})) == (400, "SB002")
    assert call(gateway, "DELETE", f"files/{batch}/{one}").status_code == 204
    assert refused(download(gateway, None, file)) == (404, "SB014")


@process_only
def test_a_batch_is_stored_whole_or_not_at_all(gateway: Gateway) -> None:
    before = len(list((gateway.state_dir / "files").iterdir()))
    form = [("file", (name, b"x")) for name in ("a.txt", "b/c.txt")]
    told = call(gateway, "POST", "upload/batch", data={"kind": "agent", "id": "a"}, files=form).json()
    assert [each["filename"] for each in told["files"]] == ["a.txt", "b/c.txt"]
    assert (told["succeeded"], told["failed"]) == (2, 0)
    for path, name in (("upload/batch", "../x"), ("upload", "ok")):
        wrong = call(gateway, "POST", path, files=[*form, ("file", (name, b"x"))])
        assert refused(wrong) == (400, "SB002")
    assert len(list((gateway.state_dir / "files").iterdir())) == before + 2


@process_only
def test_changed_and_deleted_inputs_are_told(gateway: Gateway) -> None:
    a, b = upload(gateway, None, name="a.txt"), upload(gateway, None, name="b.txt")
    answer = run(gateway, "import os; os.remove('b.txt'); n = open('a.txt', 'a').write('!')", files=[a, b])
    [changed] = answer["files"]
    assert changed["modified_from"] == {"id": a["id"], "storage_session_id": a["storage_session_id"]}
    assert changed["id"] != a["id"]
    assert answer["deleted_files"] == ["b.txt"]
    assert (download(gateway, None, changed).content, download(gateway, None, a).content) == (b"abc!", b"abc")
    both = run(gateway, "print(open('a.txt').read())", files=[changed, a])
    assert both["stdout"] == "abc!\n", "of two inputs with one name the newer one counts"


@process_only
def test_hidden_and_linked_files_and_too_many_or_too_large_ones_are_not_stored(gateway: Gateway) -> None:
    code = "import os; os.mkdir('.h'); open('.h/x', 'w').write('1'); os.symlink('/etc/passwd', 'link')"
    assert run(gateway, code)["files"] == []
    many = run(gateway, "for n in range(51): _ = open(f'{n}.txt', 'w').write('1')")
    delivery = {"code": "artifact_delivery_failed", "status": "partial", "attempted": 51, "delivered": 50, "failed": 1}
    assert (len(many["files"]), many["artifact_delivery"]) == (50, delivery)
    large = run(gateway, "_ = open('large.bin', 'wb').write(bytes(10 * 2**20 + 1))")
    assert (large["files"], large["artifact_delivery"]["status"]) == ([], "failed")
    assert "large.bin was not stored" in large["stderr"]


# -- what differs, and refusals ---------------------------------------------------------------------------------


@process_only
def test_a_program_that_fails_answers_with_its_traceback(gateway: Gateway) -> None:
    answer = run(gateway, "print('before')\n1/0")
    assert answer["stdout"] == "before\n"
    assert "ZeroDivisionError" in answer["stderr"]
    assert "\x1b" not in answer["stderr"]


@process_only
def test_arguments_and_the_clients_wrapper_of_code_with_await_work(gateway: Gateway) -> None:
    assert run(gateway, "import sys; print(sys.argv[1:])", args=["é"])["stdout"] == "['é']\n"
    begin = "async def __user_main__():\n    print('a')\n\nif __name__ == \"__main__\":\n    import asyncio\n"
    answer = run(gateway, f"{begin}    asyncio.run(__user_main__())\n")
    assert (answer["stdout"], answer["stderr"]) == ("a\n", "")


def test_a_run_past_its_deadline_and_a_lost_session_are_told_in_stderr(tmp_path: Path) -> None:
    with gateways.gateway("process", execute_timeout="1") as own:
        hint = {"runtime_session_hint": "h"}
        late = run(own, "x = 1\nwhile True: pass", **hint)
        assert "the code ran longer than 1 s" in late["stderr"]
        assert run(own, "print(x)", **hint)["stdout"] == "1\n"
        died = run(own, "import os; os._exit(1)", **hint)
        assert ("SB010" in died["stderr"], died["files"]) == (True, [])
        assert "variables of earlier calls are lost" in died["stderr"]


@process_only
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"lang": "go", "code": "1"}, 400, "SB002"),
        ({"lang": "py"}, 400, "SB002"),
        ({"lang": "js", "code": "1", "args": ["a"]}, 400, "SB002"),
        ({"lang": "py", "code": "1", "runtime_session_hint": "a b"}, 400, "SB002"),
        ({"lang": "py", "code": "1", "runtime_session_hint": "x" * 129}, 400, "SB002"),
        ({"lang": "py", "code": "1", "runtime_session_hint": "x\n"}, 400, "SB002"),
        ({"lang": "py", "code": "1", "files": [{"id": "a", "storage_session_id": "b", "name": "c"}]}, 404, "SB014"),
    ],
)
def test_a_wrong_request_is_refused(gateway: Gateway, body: Json, status: int, code: str) -> None:
    assert refused(call(gateway, "POST", "exec", json=body)) == (status, code)


@process_only
def test_an_input_cannot_be_placed_outside_of_the_workspace(gateway: Gateway) -> None:
    for name in ("../x", "/etc/x", "a/../../x", "\0"):
        body = {"lang": "py", "code": "1", "files": [upload(gateway, None) | {"name": name}]}
        assert refused(call(gateway, "POST", "exec", json=body)) == (
            400,
            "SB002",
        )


def test_a_refusal_for_the_quota_says_when_to_come_back(tmp_path: Path) -> None:
    with gateways.gateway("process", stored_disk="20k") as own:
        answers = [call(own, "POST", "upload", files={"file": ("a.txt", b"x" * 4096)}) for _ in range(4)]
        assert [each.status_code for each in answers] == [200, 200, 429, 429]
        assert answers[-1].json()["error"] == "rate_limited"
        assert answers[-1].json()["retry_after_seconds"] >= 1
        assert len(list((own.state_dir / "files").iterdir())) == 2


# -- code that calls tools --------------------------------------------------------------------------------------

WEATHER = {"name": "get-weather", "description": "Say how it is.", "parameters": {"properties": {"city": {}}}}
TOOLS = [WEATHER, {"name": "class"}]


def begin(gateway: Gateway, code: str, jwt: str | None = None, **fields: Any) -> Json:
    """Begin a run with tools, and return the first answer."""
    body = {"code": code, "tools": TOOLS} | fields
    response = call(gateway, "POST", "exec/programmatic", jwt, json=body)
    assert response.status_code == 200, response.text
    told: Json = response.json()
    return told


def resume(gateway: Gateway, told: Json, *results: Json, jwt: str | None = None) -> requests.Response:
    body = {"continuation_token": told["continuation_token"], "tool_results": list(results)}
    return call(gateway, "POST", "exec/programmatic", jwt, json=body)


def value(told: Json, result: Any) -> Json:
    return {"call_id": told["tool_calls"][0]["id"], "result": result, "is_error": False}


@pytest.mark.gate
def test_code_calls_tools_of_librechat_and_goes_on_with_their_results(gateway: Gateway) -> None:
    """A replay of what `@librechat/agents` sends, which `tests/clients/test_librechat.py` runs itself."""
    code = (
        "both = await asyncio.gather(get_weather(city='Rom'), get_weather(city='Bonn'))\nprint(both)\n"
        "try:\n    await class_tool()\nexcept Exception as error:\n    print('failed:', error)\n"
        "open('out.txt', 'w').write('kept')"
    )
    asked: list[tuple[str, Json]] = []

    def answer(each: Json) -> Json:
        asked.append((each["name"], each["input"]))
        if each["name"] == "class":
            return {"call_id": each["id"], "result": None, "is_error": True, "error_message": "no class"}
        return {"call_id": each["id"], "result": {"of": each["input"]["city"]}, "is_error": False}

    hint = f"tools-{secrets.token_hex(4)}"
    told = begin(gateway, code, runtime_session_hint=hint)
    while told["status"] == "tool_call_required":  # a round has one call or both: machines may be slow
        before, told = told, resume(gateway, told, *map(answer, told["tool_calls"])).json()
    assert asked == [("get-weather", {"city": "Rom"}), ("get-weather", {"city": "Bonn"}), ("class", {})]
    assert (told["status"], told["stderr"]) == ("completed", "")
    assert told["stdout"] == "[{'of': 'Rom'}, {'of': 'Bonn'}]\nfailed: no class\n4\n"
    assert [each["name"] for each in told["files"]] == ["out.txt"]
    assert run(gateway, "print(both[1])", runtime_session_hint=hint)["stdout"] == "{'of': 'Bonn'}\n"
    assert refused(resume(gateway, before)) == (404, "SB050")


@process_only
def test_a_result_that_is_missing_is_asked_for_again(gateway: Gateway) -> None:
    first = begin(gateway, "print(await get_weather(city=1), await get_weather(city=2))")
    again = resume(gateway, first).json()
    assert again["tool_calls"] == first["tool_calls"]
    second = resume(gateway, again, value(again, "a")).json()
    assert refused(resume(gateway, second, value(first, "a"))) == (400, "SB002")
    assert resume(gateway, second, value(second, "b")).json()["stdout"] == "a b\n"


def test_a_run_with_tools_is_continued_by_its_own_user_only(trusting: Gateway) -> None:
    told = begin(trusting, "print(await get_weather(city=1))", token())
    for other in (token("eve"), token(tenant="evil"), None):
        assert refused(resume(trusting, told, value(told, 1), jwt=other)) == (404, "SB050")
    assert resume(trusting, told, value(told, 1), jwt=token()).json()["stdout"] == "1\n", "control"


@process_only
def test_the_time_of_a_run_passes_only_while_its_code_runs(gateway: Gateway) -> None:
    told = begin(gateway, "print(await get_weather())\nwhile True: pass", timeout=1000)
    time.sleep(1.5)
    last = resume(gateway, told, value(told, "in time")).json()
    assert (last["status"], last["stdout"]) == ("completed", "in time\n")
    assert "the code ran longer than 1 s" in last["stderr"]


def test_a_run_whose_client_stays_away_ends_at_the_gateways_deadline_and_tells_so(tmp_path: Path) -> None:
    with gateways.gateway("process", execute_timeout="1", max_execute_timeout="1") as own:
        told = begin(own, "print('x' * 100_000)\nawait get_weather()")
        until(lambda: own.call("GET", "/v1/sessions").json()["sessions"] == [])
        last = resume(own, told, value(told, "late")).json()
        assert "the code ran longer than 1 s" in last["stderr"]
        assert (len(last["stdout"]), last["truncated"]) == (64 * 1024, True)


@process_only
def test_a_run_is_ended_when_its_client_leaves(gateway: Gateway) -> None:
    until(lambda: one_shot_runs(gateway) == [])
    told = begin(gateway, "await get_weather()\nwhile True: pass", timeout=60_000)
    url, headers = f"{gateway.url}{BASE}/exec/programmatic", {"X-API-Key": KEYS["alice"]}
    body = {"continuation_token": told["continuation_token"], "tool_results": [value(told, 1)]}
    with pytest.raises(requests.Timeout):
        requests.post(url, json=body, headers=headers, timeout=1)
    until(lambda: one_shot_runs(gateway) == [])


@process_only
def test_a_run_is_ended_when_its_own_client_cancels_it(gateway: Gateway) -> None:
    until(lambda: one_shot_runs(gateway) == [])
    url, path = f"{gateway.url}{BASE}/exec/programmatic", f"{BASE}/exec/programmatic/cancel"
    headers = {"X-API-Key": KEYS["alice"], "X-LibreChat-Code-Request-ID": "r1"}
    body = {"code": "while True: pass", "tools": TOOLS, "timeout": 60_000}
    with ThreadPoolExecutor(1) as pool:
        cancelled = pool.submit(requests.post, url, json=body, headers=headers, timeout=60)
        until(lambda: one_shot_runs(gateway) != [])
        assert gateway.call("POST", path, tenant="bob", json={"request_id": "r1"}).status_code == 200
        assert not cancelled.done()
        assert gateway.call("POST", path, json={"request_id": "r1"}).status_code == 200
        assert refused(cancelled.result()) == (409, "SB051")
    until(lambda: one_shot_runs(gateway) == [])


def one_shot_runs(gateway: Gateway) -> list[str]:
    listed = gateway.call("GET", "/v1/sessions").json()["sessions"]
    return [each["name"] for each in listed if each["name"].startswith("run-")]


class Waiting(CodeRun):
    """A run that calls nothing and never ends."""

    def __init__(self) -> None:
        pass

    async def answer(self, follow: Any = None) -> Json:  # noqa: ARG002 - of the base class
        await asyncio.Event().wait()
        return {}


async def test_the_runs_of_a_tenant_that_wait_for_their_client_are_bounded() -> None:
    runs, body = ToolRuns(), WithTools.model_validate({"code": "1", "tools": TOOLS})
    begun = [runs.begin(("a", f"user-{number}"), Waiting(), body) for number in range(RUNS_MAX)]
    with pytest.raises(QuotaExceeded):
        runs.begin(("a", "one more"), Waiting(), body)
    begun.append(runs.begin(("b", ""), Waiting(), body))  # another tenant
    for run in begun:
        run.end()
    runs.begin(("a", ""), Waiting(), body).end()


@process_only
@pytest.mark.parametrize(
    ("changed", "status", "code"),
    [
        ({"tools": []}, 400, "SB002"),
        ({"tools": [{"name": f"t{n}"} for n in range(101)]}, 400, "SB002"),
        ({"tools": [{"name": "a-b"}, {"name": "a_b"}]}, 400, "SB002"),
        ({"tools": [{"name": "-()"}, {"name": "!!"}]}, 400, "SB002"),
        ({"timeout": 999}, 400, "SB002"),
        ({"lang": "bash"}, 501, "SB046"),
        ({"continuation_token": "none"}, 404, "SB050"),
    ],
)
def test_a_wrong_request_with_tools_is_refused(gateway: Gateway, changed: Json, status: int, code: str) -> None:
    body = {"code": "1", "tools": TOOLS} | changed
    assert refused(call(gateway, "POST", "exec/programmatic", json=body)) == (status, code)

"""Jupyter's contents API over the files of sessions; jupyter_server's own tests of it are in `tests/clients`."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from requests import Response

from kernel_gateway.dialects.jupyter.contents_base import READ_MAX
from kernel_gateway.dialects.jupyter.contents_models import copy_names, model_of, names
from kernel_image.files import LIST_MAX
from tests.gateways import Gateway
from tests.kernel_gateway.calls import SHARED, failure, process_only, write
from tests.tiers import some

CONTENTS = "/api/contents"


@pytest.fixture
def folder(gateway: Gateway) -> Iterator[str]:
    """A new directory in the shared session, by its path in the API."""
    name = f"folder-{secrets.token_hex(4)}"
    gateway.execute(SHARED, f"import os; os.mkdir({name!r})")
    yield f"{SHARED}/{name}"
    gateway.execute(SHARED, f"import shutil; shutil.rmtree({name!r}, ignore_errors=True)")


def put(gateway: Gateway, path: str, content: Any, **fields: Any) -> Response:
    fields = {"type": "file", "format": "text"} | fields
    return gateway.call("PUT", f"{CONTENTS}/{quote(path)}", json={"content": content} | fields)


def get(gateway: Gateway, path: str, **options: Any) -> Any:
    response = gateway.call("GET", f"{CONTENTS}/{quote(path)}", **options)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_browser_and_the_kernel_see_the_same_files(gateway: Gateway, folder: str) -> None:
    inside = folder.partition("/")[2]
    saved = put(gateway, f"{folder}/in.txt", "from outside")
    assert (saved.status_code, saved.headers["Location"]) == (201, f"{CONTENTS}/{folder}/in.txt")
    code = f"open('{inside}/out.txt', 'w').write('from inside'); print(open('{inside}/in.txt').read())"
    assert gateway.text(SHARED, code).startswith("from outside")
    assert get(gateway, f"{folder}/out.txt")["content"] == "from inside"
    assert {entry["name"] for entry in get(gateway, folder)["content"]} == {"in.txt", "out.txt"}
    moved = gateway.call("PATCH", f"{CONTENTS}/{folder}/out.txt", json={"path": f"{folder}/new.txt"})
    assert (moved.status_code, moved.json()["path"]) == (200, f"{folder}/new.txt")
    occupied = gateway.call("PATCH", f"{CONTENTS}/{folder}/new.txt", json={"path": f"{folder}/in.txt"})
    assert failure(occupied) == (409, "SB037")
    assert gateway.call("DELETE", f"{CONTENTS}/{folder}/in.txt").status_code == 204
    assert gateway.text(SHARED, f"import os; os.listdir({inside!r})") == "['new.txt']"


@process_only
def test_the_root_has_a_directory_for_each_of_the_tenants_sessions(gateway: Gateway, folder: str, session: str) -> None:
    gateway.execute(session, "1", tenant="bob")
    listed = {entry["name"] for entry in get(gateway, "")["content"]}
    assert folder.partition("/")[0] in listed
    assert session not in listed  # positive control: bob sees his own
    assert [entry["name"] for entry in get(gateway, "", tenant="bob")["content"]].count(session) == 1
    for method in ("GET", "PUT", "PATCH", "DELETE", "POST"):
        asked = {"path": f"{folder}/stolen"} if method == "PATCH" else {}
        refused = gateway.call(method, f"{CONTENTS}/{session}/x", json=asked)
        assert failure(refused) == (404, "SB014"), method


@process_only
def test_the_root_itself_cannot_be_changed(gateway: Gateway, folder: str) -> None:
    assert failure(put(gateway, "new-session", "x")) == (404, "SB014")
    for method, path in (("POST", ""), ("PUT", SHARED), ("DELETE", SHARED), ("PATCH", SHARED), ("DELETE", "")):
        status = gateway.call(method, f"{CONTENTS}/{path}", json={"path": f"{folder}/x"}).status_code
        assert status in {400, 404}, (method, path)
    assert gateway.call("GET", f"/v1/sessions/{SHARED}").status_code == 200


@process_only
def test_no_path_leads_out_of_the_session(gateway: Gateway, folder: str, session: str) -> None:
    gateway.execute(session, "open('secret', 'w').write('x')")
    gateway.execute(SHARED, f"import os; os.symlink('/etc/passwd', '{folder.partition('/')[2]}/link')")
    for path in (f"{folder}/..%2f..%2f{session}/secret", f"{folder}/link", f"{SHARED}/%2fetc/passwd"):
        assert gateway.call("GET", f"{CONTENTS}/{path}").status_code in {400, 404}, path
    for target in (f"{session}/stolen", f"{SHARED}/../x", f"{folder}/../../x"):
        refused = gateway.call("PATCH", f"{CONTENTS}/{folder}/link", json={"path": target})
        assert failure(refused) == (400, "SB002"), target
    assert get(gateway, f"{session}/secret")["content"] == "x"


@process_only
@pytest.mark.full
def test_a_file_that_is_too_large_for_json_is_named_by_its_other_way(gateway: Gateway, folder: str) -> None:
    for size, status in ((READ_MAX, 200), (READ_MAX + 1, 413)):
        write(gateway, SHARED, f"{folder.partition('/')[2]}/large", b"x" * size)
        answer = gateway.call("GET", f"{CONTENTS}/{folder}/large")
        assert answer.status_code == status
    assert f"/v1/sessions/{SHARED}/files" in answer.json()["message"]
    assert get(gateway, f"{folder}/large", params={"content": 0})["size"] == READ_MAX + 1


@process_only
@pytest.mark.parametrize(
    ("content", "fields"),
    some(
        [
            ("x", {"format": None}),
            ("x", {"format": "json"}),
            ("ä", {"format": "base64"}),
            ("!!!!", {"format": "base64"}),
            ("\ud800", {}),
            (1, {}),
            ("x", {"type": "notebook"}),
            ("x", {"chunk": 1}),
            ("x", {"copy_from": "y"}),
        ],
        gate=4,
    ),
)
def test_content_of_a_wrong_form_is_refused(
    gateway: Gateway, folder: str, content: Any, fields: dict[str, Any]
) -> None:
    assert failure(put(gateway, f"{folder}/x", content, **fields)) == (400, "SB002")
    assert get(gateway, folder)["content"] == []


@process_only
def test_base64_in_lines_is_read_as_it_is_sent(gateway: Gateway, folder: str) -> None:
    for content in (bytes(range(256)), b""):
        lines = base64.encodebytes(content).decode()
        assert put(gateway, f"{folder}/x", lines, format="base64").status_code in {200, 201}
        assert get(gateway, f"{folder}/x", params={"format": "base64"})["content"] == lines


@process_only
def test_a_listing_that_is_cut_says_so(gateway: Gateway, folder: str) -> None:
    inner = folder.partition("/")[2]
    gateway.execute(SHARED, f"for number in range({LIST_MAX}): open('{inner}/' + str(number), 'w').close()")
    listed = get(gateway, folder)
    assert (len(listed["content"]), listed["truncated"]) == (LIST_MAX, False)
    gateway.execute(SHARED, f"open('{inner}/more', 'w').close()")
    listed = get(gateway, folder)
    assert (len(listed["content"]), listed["truncated"]) == (LIST_MAX, True)


#: JSON of more values than are read
MANY = '{"cells": [' + "[]," * 200_000 + "[]]}"


@process_only
@pytest.mark.parametrize("text", some(["no JSON", "[]", "[" * 2000, MANY], gate=1), ids=range(4))
def test_a_file_that_is_no_notebook_is_still_readable_as_a_file(gateway: Gateway, folder: str, text: str) -> None:
    put(gateway, f"{folder}/a.ipynb", text)
    assert failure(gateway.call("GET", f"{CONTENTS}/{folder}/a.ipynb")) == (400, "SB002")
    assert get(gateway, f"{folder}/a.ipynb", params={"type": "file"})["content"] == text


@process_only
def test_numbers_of_a_notebook_are_exact(gateway: Gateway, folder: str) -> None:
    numbers = [2**70 + 1, 10**400, 2**64 - 1]
    notebook = {"cells": [], "metadata": {"numbers": numbers}, "nbformat": 4, "nbformat_minor": 5}
    assert put(gateway, f"{folder}/a.ipynb", notebook, type="notebook", format="json").status_code == 201
    assert get(gateway, f"{folder}/a.ipynb")["content"]["metadata"] == {"numbers": numbers}


@process_only
def test_a_notebook_nested_as_deeply_as_json_is_read_comes_back(gateway: Gateway, folder: str) -> None:
    deep: Any = {}
    for _ in range(500):  # more than our own encoder writes
        deep = {"a": deep}

    put(gateway, f"{folder}/a.ipynb", json.dumps(deep))
    assert get(gateway, f"{folder}/a.ipynb")["content"] == deep


@process_only
def test_a_new_entry_gets_the_first_free_name(gateway: Gateway, folder: str) -> None:
    for expected in ("Untitled.ipynb", "Untitled1.ipynb"):
        made = gateway.call("POST", f"{CONTENTS}/{folder}", json={"type": "notebook"})
        assert (made.status_code, made.json()["name"]) == (201, expected)
    assert get(gateway, f"{folder}/Untitled.ipynb")["content"]["nbformat"] == 4
    copied = gateway.call("POST", f"{CONTENTS}/{SHARED}", json={"copy_from": f"{folder}/Untitled1.ipynb"})
    assert copied.json()["path"] == f"{SHARED}/Untitled1.ipynb"
    gateway.call("DELETE", f"{CONTENTS}/{SHARED}/Untitled1.ipynb")


def first(found: Iterator[str], count: int) -> list[str]:
    return [next(found) for _ in range(count)]


def test_names_are_those_of_jupyter_server() -> None:
    assert first(names("directory", ""), 3) == ["Untitled Folder", "Untitled Folder 1", "Untitled Folder 2"]
    assert first(names("file", ".txt"), 2) == ["untitled.txt", "untitled1.txt"]
    assert first(copy_names("a/b-Copy7.txt"), 2) == ["b-Copy7.txt", "b-Copy1.txt"]
    assert first(copy_names("x-Copying.txt"), 2) == ["x-Copying.txt", "x-Copying-Copy1.txt"]


@pytest.mark.parametrize(
    ("modified", "shown"), [(0.5, "1970-01-01T00:00:00.500000Z"), (1e30, "9999-"), (-1e30, "1970-")]
)
def test_a_file_may_claim_to_be_of_any_time(modified: float, shown: str) -> None:
    assert model_of("a/b", "file", modified)["last_modified"].startswith(shown)

"""The contract of languages: one suite that runs over every folder of `kernel_image/kernelspecs/`.

A new language needs no line here. `tests/languages.py` says what the contract in its folder contains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import gateways
from tests.gateways import Gateway
from tests.kernel_gateway.calls import exists, until, write
from tests.kernel_images import image_with
from tests.languages import CELLS, PROMISES, Contract, contracts

#: value of the variable `WHO` in the sessions
WHO = "me & 'you' ü"
#: arguments that a careless string literal would change
ARGUMENTS = {"text": "a\"'\\ #{1} ${HOME} `id`\u2028é\U0001f389", "number": 7}
#: seconds that an interrupted cell has before its deadline
PATIENCE = 15
#: the same for a language that is known not to end it
NO_PATIENCE = 1


class Place:
    """A session in one language."""

    def __init__(self, gateway: Gateway, contract: Contract) -> None:
        self.gateway = gateway
        self.contract = contract
        self.session = f"contract-{contract.spec.name}"
        asked = {"name": self.session, "language": contract.spec.name, "env": {"WHO": WHO}}
        made = gateway.call("POST", "/v1/sessions", json=asked)
        assert made.status_code == 201, made.text

    def run(self, cell: str, **fields: Any) -> dict[str, Any]:
        """Run a cell of the contract and return the reply."""
        return self.gateway.execute(self.session, self.contract.cells[cell], **fields)

    def printed(self, cell: str, **fields: Any) -> str:
        """Run a cell, which must succeed, and return its standard output."""
        reply = self.run(cell, **fields)
        assert reply["status"] == "ok", reply
        return stream(reply, "stdout")

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Send a request to the session."""
        return self.gateway.call(method, f"/v1/sessions/{self.session}{path}", **options)

    def interrupted(self, cell: str) -> dict[str, Any]:
        """Run a cell, interrupt it when it has begun, and return its reply."""
        self.call("DELETE", "/files/begun")
        patience = NO_PATIENCE if f"interrupt_{cell}" in self.contract.cannot else PATIENCE
        with ThreadPoolExecutor() as threads:
            running = threads.submit(self.run, cell, timeout=patience)
            until(lambda: exists(self.gateway, self.session, "begun"))
            self.call("POST", "/interrupt")
            return running.result()


def stream(reply: dict[str, Any], name: str) -> str:
    """Return the text of one stream."""
    return "".join(output["text"] for output in reply["outputs"] if output.get("name") == name)


@pytest.fixture(scope="module")
def places(started: Callable[[str], Gateway]) -> Iterator[Callable[[str, Contract], Place]]:
    """Return a function that makes the session of an isolation and a language once."""
    with ExitStack() as stack:

        @cache
        def sandboxed(image: str) -> Gateway:
            more: dict[str, Any] = {"image": image_with(image.rpartition(":")[2])} if image else {}
            return stack.enter_context(_sandboxed(**more))

        @cache
        def place(isolation: str, contract: Contract) -> Place:
            gateway = started(isolation) if isolation == "process" else sandboxed(contract.spec.image)
            listed = gateway.call("GET", "/v1/languages").json()["languages"]
            if isolation == "process" and contract.spec.name not in {each["name"] for each in listed}:
                pytest.skip(f"{contract.spec.display_name} is not installed here")
            return Place(gateway, contract)

        yield place


@contextmanager
def _sandboxed(**settings: Any) -> Iterator[Gateway]:
    with gateways.gateway("docker", golden_images="auto", **settings) as serving:
        yield serving
        assert serving.errors() == []


@pytest.fixture
def place(request: pytest.FixtureRequest, places: Callable[[str, Contract], Place]) -> Place:
    """A session with the variable of the cell `keep`."""
    place = places(*request.param)
    assert place.run("keep")["status"] == "ok"
    return place


def keeps(promise: str, *isolations: str) -> pytest.MarkDecorator:
    """Run a test in each language; a language that cannot keep the promise must fail it.

    Args:
        promise: name of the promise.
        *isolations: isolations of the kernels; none: all.
    """
    assert promise in PROMISES
    return pytest.mark.parametrize(
        "place",
        [
            pytest.param((isolation, contract), id=f"{isolation}-{contract.spec.name}", marks=_marks(isolation, reason))
            for isolation in isolations or ("process", "docker")
            for contract in contracts()
            for reason in [contract.cannot.get(promise)]
        ],
        indirect=True,
    )


def _marks(isolation: str, reason: str | None) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(900)] if isolation == "docker" else []
    return [*marks, pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True)] if reason else marks


@keeps("result")
def test_the_value_of_a_cell_is_its_result(place: Place) -> None:
    reply = place.run("result")
    shown = [output["data"]["text/plain"] for output in reply["outputs"] if "data" in output]
    assert (reply["status"], [text.removeprefix("[1] ") for text in shown]) == ("ok", ["42"])


@keeps("print")
def test_what_code_prints_arrives_apart_and_complete(place: Place) -> None:
    assert place.printed("print") == "grüße ☃\n"
    reply = place.run("complain")
    assert (reply["status"], stream(reply, "stdout"), stream(reply, "stderr")) == ("ok", "", "oh nö\n")
    assert place.printed("lines", timeout=60) == "".join(f"{number}\n" for number in range(10_000))


@keeps("child")
def test_what_a_child_process_prints_belongs_to_the_cell(place: Place) -> None:
    assert place.printed("child") == "child\n"
    assert place.printed("kept") == "42\n"


@keeps("error")
def test_an_error_is_an_error_message_and_the_variables_stay(place: Place) -> None:
    reply = place.run("fail")
    assert (reply["status"], reply["outputs"][-1]["output_type"]) == ("error", "error")
    assert place.printed("kept") == "42\n"


@keeps("error_class")
def test_an_error_has_the_name_of_its_class_and_its_text(place: Place) -> None:
    error = place.run("fail")["outputs"][-1]
    assert (error["ename"], error["evalue"]) == (place.contract.cells["error_class"], "no luck")
    assert "no luck" in "\n".join(error["traceback"])


@keeps("interrupt_wait")
def test_an_interrupt_ends_a_cell_that_waits(place: Place) -> None:
    reply = place.interrupted("wait")
    assert (reply["status"], reply["state"]) == ("interrupted", "preserved")
    assert place.printed("kept") == "42\n"


@keeps("interrupt_compute")
def test_an_interrupt_ends_a_cell_that_computes(place: Place) -> None:
    reply = place.interrupted("compute")
    assert (reply["status"], reply["state"]) == ("interrupted", "preserved")
    assert place.printed("kept") == "42\n"
    counted = place.printed("counted")
    assert (place.printed("counted"), float(counted) > 0) == (counted, True), "the code still runs"


@keeps("deadline")
def test_a_deadline_ends_a_cell_that_computes(place: Place) -> None:
    reply = place.run("compute", timeout=1)
    assert (reply["status"], reply["state"]) == ("timeout", "preserved")
    assert place.printed("kept") == "42\n"
    counted = place.printed("counted")
    assert (place.printed("counted"), float(counted) > 0) == (counted, True), "the code still runs"


@keeps("input")
def test_code_can_ask_for_input(place: Place) -> None:
    assert place.printed("ask", stdin=["Ada Ö."]) == "Ada Ö.\n"


@keeps("files")
def test_code_and_api_see_the_same_files(place: Place) -> None:
    assert place.run("write")["status"] == "ok"
    assert place.call("GET", "/files/ä.txt").content.decode() == "grüße"
    write(place.gateway, place.session, "ö.txt", "schöne Grüße".encode())
    assert place.printed("read") == "schöne Grüße\n"


@keeps("environment")
def test_code_sees_the_environment_of_its_session(place: Place) -> None:
    assert place.printed("environment") == f"{WHO}\n"
    assert place.printed("session") == f"{place.session}\n"


@keeps("arguments")
def test_arguments_are_passed_to_main_as_they_are(place: Place) -> None:
    printed = place.printed("main", arguments=ARGUMENTS)
    assert printed.rstrip() == f"{ARGUMENTS['text']} {ARGUMENTS['number']}"


@keeps("checkpoint", "docker")
def test_a_session_returns_to_its_checkpoint(place: Place) -> None:
    place.gateway.wait_for_sleep()
    taken = place.call("POST", "/checkpoints", json={"name": "one"})
    assert taken.status_code == 201, taken.text
    assert place.run("change")["status"] == "ok"
    assert place.printed("kept") == "2\n"
    back = place.call("POST", "/rollback", json={"to": "one"})
    assert back.status_code == 200, back.text
    reply = place.run("kept")
    assert (stream(reply, "stdout"), reply["state"]) == ("42\n", "rolled_back")


# -- the contracts themselves ----------------------------------------------------------------------------------


def folder_with(tmp_path: Path, contract: str) -> Path:
    (tmp_path / "snake").mkdir()
    (tmp_path / "snake/kernel.json").write_text('{"display_name": "Snake", "argv": ["snake", "{connection_file}"]}')
    if contract:
        (tmp_path / "snake/contract.toml").write_text(contract)
    return tmp_path


COMPLETE = "[cells]\n" + "".join(f"{name} = ''\n" for name in CELLS)


@pytest.mark.parametrize(
    ("contract", "missing"),
    [
        ("", "snake has no contract.toml"),
        (COMPLETE.replace("wait = ''\n", ""), r"missing or unknown cells: \['wait'\]"),
        (f"{COMPLETE}sing = ''\n", r"missing or unknown cells: \['sing'\]"),
        (f"{COMPLETE}[cannot]\ninterrupts = 'no'\n", r"no such promises: \['interrupts'\]"),
        (f"{COMPLETE}[cannot]\ninput = ''\n", "needs a reason"),
        (f"{COMPLETE}[canot]\ninput = 'no'\n", "only `cells` and `cannot` are known"),
    ],
)
def test_every_language_has_a_cell_for_each_promise_and_a_reason_for_what_it_cannot_do(
    tmp_path: Path, contract: str, missing: str
) -> None:
    assert contracts()
    with pytest.raises(AssertionError, match=missing):
        contracts(folder_with(tmp_path, contract))


def test_a_language_is_run_through_the_suite_by_its_folder(tmp_path: Path) -> None:
    (snake,) = contracts(folder_with(tmp_path, COMPLETE))
    assert (snake.spec.name, snake.cannot) == ("snake", {})

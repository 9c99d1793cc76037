"""Ruby in a session, beyond the contract of all languages: ends, forks, results, and variables of one cell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import gateways
from tests.gateways import Gateway, text_of
from tests.kernel_gateway import e2b
from tests.kernel_images import image_with

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("docker", image=image_with("ruby")) as serving:
        yield serving
        assert serving.errors() == []


@pytest.fixture
def ruby(gateway: Gateway) -> Iterator[str]:
    """A session in Ruby with a variable."""
    made = gateway.call("POST", "/v1/sessions", json={"name": "ruby", "language": "rb"})
    assert made.status_code == 201, made.text
    gateway.execute("ruby", "kept = 41")
    yield "ruby"
    gateway.call("DELETE", "/v1/sessions/ruby")


@pytest.mark.parametrize(
    ("code", "shown"), [("'ä'", '"ä"'), ("[1, nil]", "[1, nil]"), ("nil", ""), ("def f; end", ":f")]
)
def test_a_value_is_shown_as_inspect_shows_it_and_nil_is_not(
    gateway: Gateway, ruby: str, code: str, shown: str
) -> None:
    assert gateway.text(ruby, code) == shown


def test_an_error_shows_the_lines_of_the_cell_only(gateway: Gateway, ruby: str) -> None:
    (error,) = gateway.execute(ruby, "def fails = raise(KeyError, 'no')\nfails")["outputs"]
    assert error["traceback"] == ["cell:1:in `fails': no (KeyError)", "\tfrom cell:2:in `<main>'"]
    (error,) = gateway.execute(ruby, "foo(")["outputs"]
    assert (error["ename"], error["traceback"][0].startswith("cell:1: syntax error")) == ("SyntaxError", True)


def test_exit_ends_the_cell_and_the_end_of_ruby_ends_the_kernel(gateway: Gateway, ruby: str) -> None:
    left = gateway.execute(ruby, "exit 3")
    assert (left["status"], left["outputs"][0]["ename"]) == ("error", "SystemExit")
    assert gateway.text(ruby, "kept") == "41"
    ended = gateway.execute(ruby, "puts 'last'; exit! 3")
    assert (ended["status"], ended["state"], ended["error"]["details"]) == ("died", "lost", {"exit_code": 3})
    assert text_of(ended) == "last\n"


def test_a_fork_ends_with_its_cell(gateway: Gateway, ruby: str) -> None:
    code = "if fork then Process.wait; puts 'parent' else puts 'fork' end"
    assert gateway.text(ruby, code) == "fork\nparent\n"
    assert gateway.text(ruby, "puts kept") == "41\n"


def test_a_question_that_nobody_answers_is_an_error(gateway: Gateway, ruby: str) -> None:
    (error,) = gateway.execute(ruby, "gets")["outputs"]
    assert (error["ename"], "nobody can be asked here" in error["evalue"]) == ("IOError", True)
    assert gateway.text(ruby, "p gets, $stdin.gets(chomp: true), gets; nil", stdin=["a", "b"]) == '"a\\n"\n"b"\nnil\n'


def test_an_interrupt_that_a_cell_handles_ends_only_what_it_interrupts(gateway: Gateway, ruby: str) -> None:
    code = "begin; sleep; rescue Interrupt; puts 'mine'; end"
    reply = gateway.execute(ruby, code, timeout=1)
    assert (reply["status"], reply["state"], text_of(reply)) == ("timeout", "preserved", "mine\n")
    assert gateway.text(ruby, "sleep 0.1; kept") == "41"


def test_variables_of_one_cell_are_gone_after_it(gateway: Gateway) -> None:
    with e2b.boxed(gateway) as box:
        made = box.call("POST", "/contexts", json={"language": "ruby"}).json()["id"]

        def said(**more: object) -> list[str]:
            events = box.run("puts ENV['WHO'].inspect", context_id=made, **more)
            return [event["text"] for event in events if event["type"] == "stdout"]

        assert said(env_vars={"WHO": "me"}) == ['"me"\n']
        assert said() == ["nil\n"]

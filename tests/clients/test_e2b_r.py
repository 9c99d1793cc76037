"""R in the image that has it besides the usual (`make image-r`), with E2B's real SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2b.exceptions import SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_images import image_with

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("docker", image=image_with("r"), memory="256m") as serving:
        yield serving
        assert serving.errors() == []


@pytest.fixture
def sandbox(gateway: Gateway) -> Iterator[Sandbox]:
    own = {"api_key": KEYS["alice"], "api_url": gateway.url, "sandbox_url": gateway.url}
    sandbox = Sandbox.create(timeout=300, envs={"WHO": "me"}, **own)
    try:
        yield sandbox
    finally:
        sandbox.kill()


def test_variables_tables_plots_and_errors_of_r_arrive(sandbox: Sandbox) -> None:
    context = sandbox.create_code_context(language="r")
    assert (context.language, context.cwd) == ("r", "/home/user")
    (result,) = sandbox.run_code("x <- 20; x + 1", context=context).results
    assert result.text == "[1] 21"
    run = sandbox.run_code("cat(x, Sys.getenv('WHO'), getwd())", context=context)
    assert run.logs.stdout == ["20 me /home/user"]
    (table,) = sandbox.run_code("data.frame(a = 1:2)", context=context).results
    assert table.html
    (plot,) = sandbox.run_code("plot(1:3)", context=context).results
    assert plot.png
    failed = sandbox.run_code("stop('no')", context=context)
    assert failed.error is not None
    assert "no" in failed.error.value
    sandbox.files.write("ä.txt", "grüße")
    assert sandbox.run_code("cat(readLines('ä.txt'))", context=context).logs.stdout == ["grüße"]
    once = sandbox.run_code("cat(Sys.getenv(c('WHO', 'NEW')))", context=context, envs={"WHO": "you", "NEW": "a\"'\\ü"})
    assert once.logs.stdout == ["you a\"'\\ü"]
    assert sandbox.run_code("cat(Sys.getenv(c('WHO', 'NEW'), NA))", context=context).logs.stdout == ["me NA"]


def test_an_interrupt_keeps_the_variables_of_r(sandbox: Sandbox) -> None:
    context = sandbox.create_code_context(language="r")
    sandbox.run_code("x <- 20", context=context)
    for endless in ("Sys.sleep(300)", "while (TRUE) {}"):
        with pytest.raises(TimeoutException):
            sandbox.run_code(endless, context=context, timeout=1)
        assert sandbox.run_code("cat(x)", context=context).logs.stdout == ["20"]


def test_r_is_listed_with_its_version(gateway: Gateway) -> None:
    (r,) = (each for each in gateway.call("GET", "/v1/languages").json()["languages"] if each["name"] == "r")
    assert r["version"].startswith("4.")
    assert "ir" in gateway.call("GET", "/api/kernelspecs").json()["kernelspecs"]


def test_an_image_without_r_says_so() -> None:
    with gateways.gateway("docker") as usual:
        refused = usual.call("POST", "/v1/sessions", json={"language": "r"})
        assert (refused.status_code, "kernel-gateway/python:r has it" in refused.text) == (400, True)
        assert "ir" not in usual.call("GET", "/api/kernelspecs").json()["kernelspecs"]
        sandbox = Sandbox.create(timeout=300, api_key=KEYS["alice"], api_url=usual.url, sandbox_url=usual.url)
        with pytest.raises(SandboxException, match="kernel-gateway/python:r has it"):
            sandbox.create_code_context(language="r")
        assert sandbox.kill()


def test_what_children_of_r_and_c_code_print_is_in_the_cell(sandbox: Sandbox) -> None:
    context = sandbox.create_code_context(language="r")
    run = sandbox.run_code("cat('a\\n'); system('seq 20000')\nsystem2('echo', 'grüße'); cat('z\\n')", context=context)
    lines = [f"{number}\n" for number in range(1, 20001)]
    assert "".join(run.logs.stdout) == "".join(["a\n", *lines, "grüße\n", "z\n"])
    run = sandbox.run_code("system('echo no >&2; sleep 0.1; printf yes'); stop('end')", context=context)
    assert (run.logs.stdout, run.logs.stderr) == (["yes"], ["no\n"])
    assert run.error is not None
    run = sandbox.run_code('system(\'printf "\\\\303"; printf "\\\\244 \\\\377"\')', context=context)
    assert "".join(run.logs.stdout) == "ä \ufffd"
    assert sandbox.run_code("rm(list = ls()); system('echo still')", context=context).logs.stdout == ["still\n"]


def test_what_r_printed_is_emptied_and_none_is_lost(sandbox: Sandbox) -> None:
    context = sandbox.create_code_context(language="r")
    for _ in range(3):
        run = sandbox.run_code("system('yes 123456789012345678901234567890 | head -c 8000000')", context=context)
        assert len("".join(run.logs.stdout)) == 8_000_000
    shown = sandbox.run_code("cat(file.info('/proc/self/fd/1')$size)", context=context)
    assert int(shown.logs.stdout[0]) < 2**24


def test_settings_that_code_has_left_do_not_reach_the_start_of_r(sandbox: Sandbox) -> None:
    sandbox.files.write(".Rprofile", "stop('from .Rprofile')")
    sandbox.files.write(".Renviron", "LEFT=behind")
    context = sandbox.create_code_context(language="r")
    assert sandbox.run_code("cat(Sys.getenv('LEFT', 'nothing'))", context=context).logs.stdout == ["nothing"]

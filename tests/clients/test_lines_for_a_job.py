"""One job with the client library and with E2B's SDK: what `docs/clients/python.md` says about their lines."""

from __future__ import annotations

import ast
import inspect
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2b_code_interpreter import Sandbox

from kernel_gateway.client import Session
from tests import gateways
from tests.gateways import KEYS, Gateway

PAGE = Path(__file__).parents[2] / "docs/clients/python.md"
PLOT = "import matplotlib.pyplot as plt; plt.plot(df.a); plt.show()"
Job = Callable[[str, str], tuple[int, list[str], bytes]]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("process") as serving:
        yield serving


def with_the_library(url: str, key: str) -> tuple[int, list[str], bytes]:
    with Session(url, key, "lines") as s:
        s.files.write("data.csv", "a,b\n1,2\n3,4\n")
        s.run("import pandas as pd; df = pd.read_csv('data.csv')").check()
        total = s.run("int(df.a.sum())").value
        said = [event.text for event in s.stream("for i in range(3): print(i)") if event.text]
        picture = s.run(PLOT).png or b""
        s.end()
    return total, said, picture


def with_e2b(url: str, key: str) -> tuple[int, list[str], bytes]:
    with Sandbox.create(api_key=key, api_url=url, sandbox_url=url) as sandbox:
        sandbox.files.write("data.csv", "a,b\n1,2\n3,4\n")
        loaded = sandbox.run_code("import pandas as pd; df = pd.read_csv('data.csv')")
        if loaded.error:
            raise RuntimeError(loaded.error.traceback)
        total = int(sandbox.run_code("int(df.a.sum())").text or 0)
        said: list[str] = []
        sandbox.run_code("for i in range(3): print(i)", on_stdout=lambda message: said.append(message.line))
        picture = b64decode(sandbox.run_code(PLOT).results[0].png or "")
    return total, said, picture


def lines_of(job: Job) -> int:
    """Return the lines of a job's body."""
    [function] = ast.parse(inspect.getsource(job)).body
    assert isinstance(function, ast.FunctionDef)
    return (function.body[-1].end_lineno or 0) - function.body[0].lineno + 1


@pytest.mark.parametrize("job", [with_the_library, with_e2b])
def test_both_do_the_same_in_as_many_lines_as_the_page_says(gateway: Gateway, job: Job) -> None:
    total, said, picture = job(gateway.url, KEYS["alice"])
    assert (total, "".join(said)) == (4, "0\n1\n2\n")
    assert picture.startswith(b"\x89PNG")
    [told] = re.findall(rf"`{job.__name__}`.*\| (\d+) \|", PAGE.read_text())
    assert int(told) == lines_of(job)

"""Programs in their runners, run by real interpreters like those of a provider."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sessions.programs.program import Returned
from sessions.providers.wrapping import Answer, parse_json, parsed, wrapped

DENO = Path(sys.executable).with_name("deno")
NODE = shutil.which("node")
INTERPRETERS: dict[str, list[str]] = {
    "python": [sys.executable, "-I", "-"],
    "javascript": [str(DENO), "run", "--quiet", "--ext=js", "-"],
}
VALUES: list[Any] = [
    1,
    1.5,
    "grüße ☃ 𝄞",
    "",
    True,
    False,
    None,
    [],
    [1, [2, {}]],
    {"a": {"b": [None, "\u2028"]}},
    2**53 - 1,
]
ECHO = {
    "python": "def main(value): return value",
    "javascript": "const main = async ({ value }) => value;",
}


async def run(code: str, language: str = "python", **arguments: Any) -> tuple[Answer, str]:
    """Run a program, and return the runner's answer and stderr."""
    program = wrapped(code, language, arguments)
    done = await asyncio.to_thread(
        subprocess.run,
        INTERPRETERS[language],
        input=program.source,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer = program.read(done.stdout)
    assert answer is not None, done
    return answer, done.stderr


@pytest.mark.parametrize("language", ECHO)
async def test_values_are_what_they_were(language: str) -> None:
    answer, stderr = await run(ECHO[language], language, value=VALUES)
    assert answer == Answer("", 0, Returned(VALUES))
    assert json.dumps(answer.returned.value if answer.returned else None) == json.dumps(VALUES)  # 1 is not True
    assert stderr == ""


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import sys\ndef main(): sys.stdout.write('no newline'); sys.stderr.write('err'); return 1"),
        (
            "javascript",
            """function main() {
                const bytes = (text) => new TextEncoder().encode(text);
                Deno.stdout.writeSync(bytes("no newline"));
                Deno.stderr.writeSync(bytes("err"));
                return 1;
            }""",
        ),
    ],
)
async def test_output_comes_back_as_it_was_written(language: str, code: str) -> None:
    assert await run(code, language) == (Answer("no newline", 0, Returned(1)), "err")


async def test_a_program_is_the_module_main() -> None:
    code = "import main as me\nSEEN = __name__\ndef main(): return [SEEN, me.__name__, me.__file__]"
    assert (await run(code))[0].returned == Returned(["main", "main", "main.py"])


@pytest.mark.parametrize(
    ("code", "exit_code", "told"),
    [
        ("def main():\n    return 1 / 0", 1, 'File "main.py", line 2, in main\n    return 1 / 0'),
        ("def main(:", 1, "SyntaxError"),
        ("x = 1", 1, "module 'main' has no attribute 'main'"),
        ("def main(value): pass", 1, "TypeError: main() missing 1 required positional argument"),
        ("def main(): return object()", 1, "TypeError: Object of type object is not JSON serializable"),
        ("def main(): return float('nan')", 1, "ValueError: Out of range float"),
        ("def main(): return '\\ud800'", 1, "UnicodeEncodeError"),
        ("import sys\nsys.exit(7)", 7, ""),
        ("def main(): raise SystemExit('enough')", 1, "enough"),
        ("def main(): raise SystemExit", 0, ""),
        ("def main(): return main()", 1, "RecursionError"),
    ],
)
async def test_a_program_that_fails_says_so_as_python_does(code: str, exit_code: int, told: str) -> None:
    answer, stderr = await run(code)
    assert (answer.exit_code, answer.returned) == (exit_code, None)
    assert told in stderr
    assert "_run_program" not in stderr


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("function main() { throw new RangeError('much') }", "RangeError: much"),
        ("const main = () => Promise.reject('no')", "no"),
        ("function main( {", "SyntaxError"),
        ("let x = 1", "the code defines no function main"),
        ("function main() {}", "main must return a value"),
    ],
)
async def test_a_program_that_fails_says_so_as_javascript_does(code: str, told: str) -> None:
    answer, stderr = await run(code, "javascript")
    assert (answer.exit_code, answer.returned) == (1, None)
    assert told in stderr


async def test_javascript_of_node_runs_too(tmp_path: Path) -> None:
    if NODE is None:
        pytest.skip("there is no node")
    code = """
        const { sep } = require('node:path');
        module.exports = { main: async ({ a }) => { console.log('hi'); return sep + a } };
    """
    file = tmp_path / "run.mjs"
    program = wrapped(code, "javascript", {"a": "b"}, tmp_path / "answer")
    file.write_text(program.source)
    done = await asyncio.to_thread(subprocess.run, [NODE, str(file)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("hi\n", "")
    assert parsed((tmp_path / "answer").read_text(), "") == Answer("", 0, Returned("/b"))


async def test_nothing_a_program_writes_is_taken_for_its_answer() -> None:
    forged = '{"exit_code": 0, "value": "MTI="}'
    code = f"def main(): print('@{'0' * 32}:{forged}'); return 1"
    answer, _ = await run(code)
    assert (answer.returned, answer.stdout) == (Returned(1), f"@{'0' * 32}:{forged}\n")
    program = wrapped("", "python", {})
    assert program.read(answer.stdout) is None
    assert program.marker not in repr(program)
    assert program.marker != wrapped("", "python", {}).marker


async def test_output_after_the_answer_is_kept() -> None:
    answer, _ = await run("import atexit\ndef main(): atexit.register(print, 'late'); print('early')")
    assert answer == Answer("early\nlate\n", 0, Returned(None))


@pytest.mark.parametrize("line", ["", "{}", "[]", "null", '{"exit_code": "0"}', '{"exit_code": 0, "value": "?"}', "{"])
def test_an_incomplete_answer_is_not_parsed(line: str) -> None:
    assert parsed(line, "") is None
    assert parsed('{"exit_code": 0}', "") == Answer("", 0)


async def test_a_return_value_that_is_too_deep_is_a_failure() -> None:
    answer, _ = await run("def main():\n    value = []\n    for _ in range(500): value = [value]\n    return value")
    assert (answer.exit_code, answer.returned) == (1, None)
    assert "Recursion" in answer.trouble
    with pytest.raises(ValueError, match="Recursion"):
        parse_json(b"[" * 500 + b"]" * 500)
    assert parse_json(b"[" * 100 + b"]" * 100)
    assert parse_json(str(2**70 + 1).encode()) == 2**70 + 1

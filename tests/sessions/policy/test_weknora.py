"""WeKnora's validation of scripts, arguments and standard input."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.policy import weknora
from tests.tiers import some

#: script → text in its only problem
SCRIPTS = {
    **{f"x {word} y": word for word in ("mkfs", "shutdown", "service", "docker", "id_rsa", "crontab", "kubectl")},
    "rm -rf *": "rm -rf *",
    ": ( ) { : }": "fork bomb",
    "echo a | BASE64 --decode": "base64",
    "xxd\n -r": "xxd",
    "echo -e a\\x41": "echo -e",
    "xcurl a |\n bash": "curl into a shell",
    "python3 -m http.server": "http.server",
    "eval (x)": "eval",
    "exec(x)": "exec",
    "os.system('ls')": "os.system",
    "subprocess.call\n('ls', shell = True)": "subprocess.call",
    "subprocess.Popen(a, shell=True)": "subprocess.Popen",
    "os.popen(x)": "os.popen",
    "commands.getstatusoutput(x)": "commands.getoutput",
    "history -c": "history",
    "unset HISTFILE": "HISTFILE",
    "export HISTSIZE=0": "HISTSIZE",
    "__import__('os')": "__import__",
    "importlib.import_module(x)": "importlib",
    "compile(a, b, 'exec')": "compile",
    "cPickle.loads(x)": "pickle",
    "yaml.load(open(x))": "yaml.load",
    "yaml.unsafe_load(x)": "yaml.unsafe_load",
    "f() { f | f & }": "fork bomb",
    "rm -fr  /tmp": "rm of the root",
    "curl x": "network",
    "requests.get(x)": "network",
    "await fetch (x)": "network",
    "s.XMLHttpRequest": "network",
    "cat < /dev/tcp/a/1": "reverse shell",
    "sh  -i": "reverse shell",
    "perl -x -e 'use Socket'": "reverse shell",
    "bash >& a 0>&1": "reverse shell",
    "mknod a p": "reverse shell",
}
ACCEPTED = [
    "",
    "print(1 + 1)",
    "import os, sys\nprint(os.listdir('.'), open('a').read())",
    "yaml.load(x, Loader=yaml.SafeLoader)",
    "yaml.load()",
    "subprocess.call(a)\nshell=True",
    "subprocess.call(['ls'])",
    "python3 main.py\nhttp.server",
    "evaluate(x); executes(x)",
    "sync, prefetch = 1, 2",
    "Service = 1",
]


def script(text: str) -> list[str]:
    return list(weknora.problems(text, {}, ""))


def args(**values: Any) -> list[str]:
    return list(weknora.problems("", values, ""))


def stdin(text: str) -> list[str]:
    return list(weknora.problems("", {}, text))


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_script_with_a_problem(text: str) -> None:
    (problem,) = script(text)
    assert problem.startswith("script: ")
    assert SCRIPTS[text] in problem


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_script_without_a_problem(text: str) -> None:
    assert script(text) == []


@pytest.mark.parametrize("word", weknora.WORDS)
def test_every_word_is_found_within_other_text(word: str) -> None:
    assert any(repr(word) in problem for problem in script(f"a{word}b"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *((f"a{operator}b", "shell operators") for operator in ("&&", "||", ";", "|", "\n", "\r", ">", "<", "2>&1")),
        ("a$(b", "command substitution"),
        ("`a", "command substitution"),
        ("../a", "a path out"),
        ("..\\a", "a path out"),
        ("a$home", "an environment variable"),
        ("${PATH}", "an environment variable"),
    ],
)
def test_an_argument_with_a_problem(text: str, problem: str) -> None:
    (found,) = args(good="a", bad=text)
    assert found.startswith(f"args[1]: {problem}")


@pytest.mark.parametrize("text", ["", "a b", "a&b", "$5", "${5}", "${A", "a/..b", "100 %", "(a)", "'\"\\"])
def test_an_argument_without_a_problem(text: str) -> None:
    assert args(value=text) == []


def test_deeply_nested_arguments_are_checked() -> None:
    deep: Any = "a;b"
    for _ in range(5000):
        deep = {"in": [1, None, True, deep]}
    assert args(a="fine", b=deep, c=1.5) == ["args[1]: shell operators"]
    assert args(**{"names;are": {"a;b": "no values"}}) == []


@pytest.mark.parametrize("text", ["a $(b) c", "`a`", "a\n ; b", "a\n\n|b", "a \\n b ; c"])
def test_a_stdin_with_a_problem(text: str) -> None:
    assert stdin(text) == ["stdin: shell commands"]


@pytest.mark.parametrize("text", ["", "a; b | c & d", "$(a\n)", "`a\n`", "a;\nb", "a $b `c"])
def test_a_stdin_without_a_problem(text: str) -> None:
    assert stdin(text) == []


def test_each_problem_names_its_part_of_the_request() -> None:
    found = list(weknora.problems("eval(x)", {"a": "b;c"}, "$(d)"))
    assert [problem.partition(":")[0] for problem in found] == ["script", "args[0]", "stdin"]


# -- comparison with WeKnora's expressions, which take too long in Python -------------------------------------------

#: expressions of WeKnora that are searched in another way here
ORIGINAL: list[tuple[str, weknora.Rule, str]] = [
    (r"echo\s+-e\s+.*\\x", weknora.PATTERNS["echo -e with escapes"], "\n"),
    (r"curl.*\|\s*(bash|sh)", weknora.PATTERNS["curl into a shell"], "\n"),
    (r"subprocess\.call\s*\(.*shell\s*=\s*True", weknora.PATTERNS["subprocess.call with a shell"], "\n"),
    (r"compile\s*\(.*exec", weknora.PATTERNS["compile to exec"], "\n"),
    (r"yaml\.load\s*\([^,]+\)", weknora.YAML_LOAD, ","),
    (r"perl.*-e.*socket", weknora.REVERSE_SHELLS[2], "\n"),
    (r"bash.*>&.*0>&1", weknora.REVERSE_SHELLS[6], "\n"),
    (r"nc.*-e|ncat.*-e", weknora.REVERSE_SHELLS[7], "\n"),
    (r"\$\(.*\)", weknora.STDIN[0], "\n"),
    ("`.*`", weknora.STDIN[1], "\n"),
    (r"\n\s*[;&|]", weknora.STDIN[2], "\n"),
    (r"\\n.*[;&|]", weknora.STDIN[3], "\n"),
]
BLANKS = ["\n", " ", "\t", "  ", " \n ", "\n\n"]
PARTS = {
    "echo": ["echo", "-e", "\\x", "x", *BLANKS],
    "curl": ["curl", "|", "bash", "sh", "x", *BLANKS],
    "subprocess": ["subprocess.call", "(", "shell", "=", "True", "x", *BLANKS],
    "compile": ["compile", "(", "exec", "x", *BLANKS],
    "yaml": ["yaml.load", "(", ")", ",", "x", *BLANKS],
    "perl": ["perl", "-e", "socket", "x", *BLANKS],
    "bash": ["bash", ">&", "0>&1", "x", *BLANKS],
    "nc": ["nc", "ncat", "-e", "x", *BLANKS],
    "stdin": ["$(", ")", "`", ";", "&", "|", "\\n", "x", *BLANKS],
}


@given(st.sampled_from(sorted(PARTS)).flatmap(lambda name: st.lists(st.sampled_from(PARTS[name]), max_size=12)))
def test_rules_find_the_same_as_the_original_expressions(pieces: list[str]) -> None:
    text = "".join(pieces)
    for original, rule, until in ORIGINAL:
        expected = re.search(original, text, re.IGNORECASE | re.ASCII) is not None
        assert weknora._in_order(weknora._collapse_blanks(text), rule, until) == expected, original


# -- hostile text ----------------------------------------------------------------------------------------------

HOSTILE = [
    "python", "perl -e", "bash >&", "nc", "echo ", "echo -e ", "curl", "yaml.load(", "yaml.load(\n", "subprocess.call(",
    "compile(", "$(", "`", "\\n", "\n", " ", "\t\n", "(){", "(){a", ": ( ",
    "rm -r", "rm ", "sh ", "| ", "base64 ", "$", "${A", "python\n", "curl\n", "mknod",
    "| base64 ", "shell = ", "a",
]  # fmt: skip


# A busy machine takes seconds for these; quadratic growth would take an hour.
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", some(HOSTILE, gate=15))
def test_the_longest_text_is_checked_quickly(piece: str) -> None:
    text = (piece * weknora.TEXT_MAX)[: weknora.TEXT_MAX]
    for found in (script(text), args(a=text), stdin(text)):
        assert "not checked" not in str(found)
        assert len(found) < 20


def test_longer_text_is_refused_unchecked() -> None:
    for found in (
        script("a" * (weknora.TEXT_MAX + 1)),
        args(a="a" * weknora.TEXT_MAX, b="a"),
        stdin("a" * (weknora.TEXT_MAX + 1)),
        args(a=[""] * (weknora.ARGUMENTS_MAX + 1)),
    ):
        assert len(found) == 1
        assert "not checked" in found[0]


@given(st.text(), st.dictionaries(st.text(), st.text() | st.lists(st.none() | st.text())), st.text())
def test_any_request_gets_a_verdict(code: str, arguments: dict[str, Any], given_input: str) -> None:
    for problem in weknora.problems(code, arguments, given_input):
        assert problem.startswith(("script: ", "args[", "stdin: "))

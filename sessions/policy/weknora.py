r"""Checks a script, its arguments and its standard input as WeKnora does.

Source: Tencent/WeKnora, `internal/sandbox/validator.go` as of 2026-08. It searches for words, so a script with the word
"service" is refused.

WeKnora's regular expressions run in linear time in Go, but not in Python. So a rule `first.*then` is split: this module
searches `first`, and after it `then` on the same line. Before the search, each run of blanks is replaced by one blank.
That changes no result, except that the rule `\n\s*` must be written as `\n`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: maximum characters that are checked, and maximum number of texts in the arguments
TEXT_MAX = 256 * 1024
ARGUMENTS_MAX = 10_000
#: characters by which a part of a rule may extend beyond the line on which it begins
_BEYOND = 32

#: parts that must follow one another on a line
Rule = tuple[re.Pattern[str], ...]


def _rule(*parts: str) -> Rule:
    return tuple(re.compile(part, re.IGNORECASE | re.ASCII) for part in parts)


#: texts that are searched literally; upper and lower case differ
WORDS = (
    "rm -rf /", "rm -fr /", "rm -rf/*", "rm -rf *", "mkfs", "dd if=/dev/zero", "dd if=/dev/random",
    ":(){ :|:& };:", ":(){:|:&};:", "bomb(){ bomb|bomb& };bomb",
    "shutdown", "reboot", "halt", "poweroff", "init 0", "init 6", "killall", "pkill",
    "chmod 777 /", "chown root", "setuid", "setgid", "passwd",
    "/etc/passwd", "/etc/shadow", "/etc/sudoers", ".ssh/", "id_rsa", "id_ed25519",
    "export PATH=", "export LD_PRELOAD", "export LD_LIBRARY_PATH", "crontab", "/etc/cron", "systemctl", "service",
    "insmod", "modprobe", "rmmod", "docker", "kubectl", "nsenter", "unshare", "capsh",
)  # fmt: skip

PATTERNS = {
    "base64 -d": _rule(r"base64\s+(-d|--decode)"),
    "xxd -r": _rule(r"xxd\s+-r"),
    "echo -e with escapes": _rule(r"echo\s+-e\s+", r"\\x"),
    "curl into a shell": _rule("curl", r"\|\s*(bash|sh)"),
    "wget into a shell": _rule("wget", r"\|\s*(bash|sh)"),
    "http.server": _rule("python", r"http\.server"),
    "eval": _rule(r"eval\s*\("),
    "exec": _rule(r"exec\s*\("),
    "os.system": _rule(r"os\.system\s*\("),
    "subprocess.call with a shell": _rule(r"subprocess\.call\s*\(", r"shell\s*=\s*true"),
    "subprocess.Popen with a shell": _rule(r"subprocess\.popen\s*\(", r"shell\s*=\s*true"),
    "os.popen": _rule(r"os\.popen\s*\("),
    "commands.getoutput": _rule(r"commands\.get(status)?output\s*\("),
    "history -c": _rule(r"history\s+-c"),
    "unset HISTFILE": _rule(r"unset\s+histfile"),
    "export HISTSIZE=0": _rule(r"export\s+histsize=0"),
    "__import__": _rule(r"__import__\s*\("),
    "importlib.import_module": _rule(r"importlib\.import_module"),
    "compile to exec": _rule(r"compile\s*\(", "exec"),
    "pickle.load": _rule(r"pickle\.loads?\s*\("),
    "yaml.unsafe_load": _rule(r"yaml\.unsafe_load"),
    "fork bomb": _rule(r":\s*\(\s*\)\s*\{\s*:|\(\)\s*\{\s*\w+\s*\|\s*\w+\s*&"),
    "rm of the root": _rule(r"rm\s+(-[rf]+\s+/|--no-preserve-root)"),
}
#: `yaml.load` with no comma before the closing bracket, so without a loader as its second argument
YAML_LOAD = _rule(r"yaml\.load\s*\([^,]", r"\)")
NETWORK = _rule(
    r"\b(curl|wget|nc|netcat|telnet|ssh|scp|rsync|ftp|sftp)\b|socket\.connect|urllib\.request|requests\.(get|post)"
    r"|http\.client|httplib|fetch\s*\(|axios|xmlhttprequest"
)
REVERSE_SHELLS = (
    _rule(r"/dev/tcp/|/dev/udp/|/inet/tcp/|sh\s+-i|mkfifo|0<&196|196>&0"),
    _rule("python", r"pty\.spawn"),
    _rule("perl", "-e", "socket"),
    _rule("ruby", "-rsocket"),
    _rule("socat", "exec"),
    _rule("mknod", "p"),
    _rule("bash", ">&", "0>&1"),
    _rule("nc", "-e"),
    _rule("netcat", "-e"),
)
ARGUMENT = {
    "shell operators": re.compile(r"&&|[;|\n\r><]"),
    "command substitution": re.compile(r"\$\(|`"),
    "a path out of its directory": re.compile(r"\.\.[/\\]"),
    "an environment variable": re.compile(r"\$[A-Z_]|\$\{[A-Z_]+\}", re.IGNORECASE | re.ASCII),
}
STDIN = (_rule(r"\$\(", r"\)"), _rule("`", "`"), _rule(r"\n[;&|]"), _rule(r"\\n", "[;&|]"))


def problems(script: str, arguments: Mapping[str, Any], stdin: str) -> Iterator[str]:
    """Yield the problems of a request, each with the part of the request that has it. No problem means allowed.

    Args:
        script: source code.
        arguments: arguments of the script. Every text in them is checked.
        stdin: standard input of the script.
    """
    args = _texts(arguments)
    if len(script) + len(stdin) + sum(map(len, args)) > TEXT_MAX or len(args) > ARGUMENTS_MAX:
        yield f"script: with args and stdin it is more than {TEXT_MAX} characters, and is not checked"
        return
    yield from (f"script: {problem}" for problem in _script(script))
    for number, arg in enumerate(args):
        yield from (f"args[{number}]: {what}" for what, pattern in ARGUMENT.items() if pattern.search(arg))
    text = _collapse_blanks(stdin)
    if any(_in_order(text, rule) for rule in STDIN):
        yield "stdin: shell commands"


def _script(script: str) -> Iterator[str]:
    yield from (f"the dangerous command {word!r}" for word in WORDS if word in script)
    text = _collapse_blanks(script)
    yield from (f"the dangerous pattern {name!r}" for name, rule in PATTERNS.items() if _in_order(text, rule))
    if _in_order(text, YAML_LOAD, until=","):
        yield "the dangerous pattern 'yaml.load'"
    if _in_order(text, NETWORK):
        yield "the network is used"
    if any(_in_order(text, rule) for rule in REVERSE_SHELLS):
        yield "a reverse shell"


def _texts(value: Any) -> list[str]:
    """Return all texts in a JSON value in order, without the names of fields. Deeply nested JSON is read, too."""
    found: list[str] = []
    left = [value]
    while left:
        match left.pop():
            case str(text):
                found.append(text)
            case Mapping() as fields:
                left.extend(reversed(list(fields.values())))
            case list(items):
                left.extend(reversed(items))
    return found


def _collapse_blanks(text: str) -> str:
    """Replace each run of blanks by one blank, or by one newline if it contains any."""
    return re.sub(r"\s+", lambda blanks: "\n" if "\n" in blanks[0] else " ", text, flags=re.ASCII)


def _in_order(text: str, rule: Sequence[re.Pattern[str]], until: str = "\n") -> bool:
    """Return whether the parts of a rule follow one another, with no `until` between them."""
    first, *others = rule
    end = -1
    for found in first.finditer(text):
        if found.end() <= end:
            continue  # the text after this match was already searched, for the match before it
        end = text.find(until, found.end())
        end = len(text) if end < 0 else end
        if _behind(text, others, found.end(), end):
            return True
    return False


def _behind(text: str, parts: Sequence[re.Pattern[str]], begin: int, end: int) -> bool:
    """Return whether the parts follow one another, and each begins between `begin` and `end`."""
    for part in parts:
        found = part.search(text, begin, end + _BEYOND)
        if found is None or found.start() > end:
            return False
        begin = found.end()
    return True

"""The generated parts of the pages: `make readme` writes them, a test compares them."""

from __future__ import annotations

import ast
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

from kernel_gateway.cli.flags import shown
from kernel_gateway.config import settings_by_group
from kernel_gateway.errors import STATUS
from kernel_gateway.observe.alerts import ALERTS, Alert
from sessions.session.states import MOVES
from tests.clients.tested import TESTED
from tests.languages import PROMISES, contracts

ROOT = Path(__file__).parents[1]


def settings() -> str:
    """Return the tables of settings, one for each subject."""
    lines: list[str] = []
    for subject, members in settings_by_group().items():
        lines += [f"### {subject}", "", "| setting | default | |", "| --- | --- | --- |"]
        for name, field in members.items():
            default = f"`{shown(field.default)}`" if field.default not in (None, "", {}, []) else ""
            lines.append(f"| `{name}` | {default} | {field.description} |")
        lines.append("")
    return "\n".join(lines[:-1])


def states() -> str:
    """Return a diagram of a session's states."""
    moves = [f"    {state} --> {following}" for state, after in MOVES.items() for following in sorted(after)]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> starting", *moves, "```"])


def errors() -> str:
    """Return the table of all errors."""
    lines = ["| code | HTTP | what happened | what to do |", "| --- | --- | --- | --- |"]
    for kind in sorted(STATUS, key=lambda kind: kind.code):
        error = kind()
        lines.append(f"| {error.code} | {STATUS[kind].value} | {error.message} | {error.resolution} |")
    return "\n".join(lines)


def rule(alert: Alert) -> str:
    """Return the rule of an alert for Prometheus, in YAML."""

    def folded(text: str, indent: int) -> str:
        lines = textwrap.wrap(text, 118 - indent, break_long_words=False, break_on_hyphens=False)
        return "\n".join([">-", *(" " * indent + line for line in lines)])

    query = re.sub(r" (?=(/|and) sum )", "\n          ", alert.condition.promql)
    lines = [f"      - alert: {alert.name}", f"        expr: >-\n          {query}"]
    if alert.minutes:
        lines.append(f"        for: {alert.minutes}m")
    return "\n".join(
        [
            *lines,
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {folded(alert.summary, 12)}",
            f"          action: {folded(alert.action, 12)}",
        ]
    )


def alerts() -> str:
    """Return the rules of all alerts for Prometheus, by subject."""
    parts = []
    for subject, members in ALERTS.items():
        parts += [f"      # {f'-- {subject} ':-<110}", *map(rule, members)]
    return "\n\n".join(parts)


def by_purpose(file: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the parts of a list in `kernel_image/`: a purpose, the remark behind it, and the lines in order."""
    for block in (ROOT / "kernel_image" / file).read_text().split("\n\n")[1:]:
        title, *lines = block.strip().splitlines()
        purpose, _, remark = title.removeprefix("# ").partition("; ")
        yield purpose, remark, sorted(lines, key=str.lower)


def packages() -> str:
    """Return the table of the packages in the kernels' image, by purpose."""
    rows = [
        f"| {purpose} | {', '.join(f'`{line}`' for line in lines)} |"
        for purpose, _, lines in by_purpose("requirements.txt")
    ]
    return "\n".join(["| for | packages |", "| --- | --- |", *rows])


def tools() -> str:
    """Return the table of the programs in the kernels' image, by purpose; a font is named by its package."""
    rows = []
    for purpose, size, lines in by_purpose("tools.txt"):
        named = [name for line in lines for name in line.partition(":")[2].split() or [line.rstrip(":")]]
        rows.append(f"| {purpose} | {', '.join(f'`{name}`' for name in named)} | {size} |")
    return "\n".join(["| for | programs | size |", "| --- | --- | --- |", *rows])


def promises() -> str:
    """Return the table of what every language promises, and which languages do not keep it for which reason."""
    lines = ["| promise | kept by all but |", "| --- | --- |"]
    for name, promise in PROMISES.items():
        reasons = [f"{each.spec.display_name}: {each.cannot[name]}" for each in contracts() if name in each.cannot]
        lines.append(f"| {promise} | {'; '.join(reasons)} |")
    return "\n".join(lines)


#: the README's figures, all of gVisor: what is measured, and the way and the columns of the page of benchmarks
FIGURES = (
    (
        "`1+1` over HTTP, p50 in ms · compared with a raw client on the same kernel",
        "HTTP",
        "`1+1` p50, ms",
        "to raw, ours",
    ),
    ("first result of a new session from the pool, ms (to a cold start)", "from the pool", "first result, ms"),
    ("its first plot with pandas, ms (to a cold start)", "from the pool", "then pandas and a plot"),
    (
        "first result of a new session that is restored, ms (to a cold start)",
        "restored from a checkpoint",
        "first result, ms",
    ),
    (
        "first result of a session that slept, ms (to a new session that is restored)",
        "a session that sleeps",
        "to the first result",
    ),
    (
        "100 idle sessions: MiB of each · % of a processor for all",
        "100 sessions",
        "an idle session, MiB",
        "all that are idle, % of a processor",
    ),
)


def tables(page: str) -> Iterator[list[dict[str, str]]]:
    """Yield the rows of each table of a page, each by its columns; the first two columns are named 0 and 1."""
    for table in re.findall(r"(?:^\|.*\n?)+", page, re.MULTILINE):
        head, _line, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        names = ["0", "1", *head[2:]]
        yield [dict(zip(names, row, strict=False)) for row in rows]


def figures(page: str | None = None) -> str:
    """Return the plot, and some figures of the page of benchmarks in a table.

    Args:
        page: text of that page; None: as it is.
    """
    found = list(tables((ROOT / "docs/benchmarks.md").read_text() if page is None else page))
    lines = ["![Latency of `1+1` by way and isolation](docs/latency.svg)", "", "| in gVisor | |", "| --- | --- |"]
    for what, way, *columns in FIGURES:
        rows = [row for table in found for row in table if (row["0"], row["1"]) == ("runsc", way) and columns[0] in row]
        shown = " · ".join(rows[0].get(column, "-") for column in columns) if rows else "not measured"
        lines.append(f"| {what} | {shown} |")
    return "\n".join(lines)


def clients() -> str:
    """Return the table of the clients that are tested: release, where each runs, and the files of the tests."""
    releases: dict[str, list[str]] = {}
    for name, release in _releases():
        releases.setdefault(name, [])
        releases[name] += [release] if release not in releases[name] else []
    lines = ["| client | release | runs on | tests |", "| --- | --- | --- | --- |"]
    for name in sorted(TESTED, key=lambda name: name.lower().lstrip("@")):
        files = dict.fromkeys(test.partition("::")[0] for test in TESTED[name])
        shown = f"`{name}`" if name in releases else name
        told = f"{', '.join(releases.get(name, []))} | {_runs_on(TESTED[name][0])}"
        lines.append(f"| {shown} | {told} | {', '.join(f'`{file}`' for file in files)} |")
    return "\n".join(lines)


def _releases() -> Iterator[tuple[str, str]]:
    """Yield the packages that the tests install, and the release of each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values()]
    for asked in (Requirement(line) for group in groups for line in group):
        if "=" in str(asked.specifier):  # else only a bound, for the sake of another package
            yield asked.name, str(asked.specifier).removeprefix("==")
    for file in sorted((ROOT / "tests/clients").glob("*/package.json")):
        yield from json.loads(file.read_text())["dependencies"].items()


def _runs_on(test: str) -> str:
    """Return the kernels with which a test runs, and the command that runs it; its marks say that (`conftest.py`)."""
    file, _, name = test.partition("::")
    text = (ROOT / "tests/clients" / file).read_text()
    [function] = [node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == name]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    marks = {
        mark for part in map(ast.unparse, function.decorator_list) for mark in re.findall(r"^pytest.mark.(\w+)$", part)
    }
    marks |= {
        mark for line in re.findall("^pytestmark.*", text, re.MULTILINE) for mark in re.findall(r"mark.(\w+)", line)
    }
    kernels = "gVisor" if marks & {"engine", "gate"} else "processes"
    part_of_gate = "gate" in marks or not marks & {"engine", "full", "browser"}
    return f"{kernels}, in `make {'test' if part_of_gate else 'test-all'}`"


#: the functions that make the generated parts of each page; a part has its function's name
PARTS: dict[str, tuple[Callable[[], str], ...]] = {
    "README.md": (figures,),
    "docs/api.md": (errors,),
    "docs/clients/README.md": (clients,),
    "docs/languages.md": (promises,),
    "docs/packages.md": (packages, tools),
    "docs/settings.md": (settings,),
    "kernel_gateway/monitoring/alerts.yml": (alerts,),
    "sessions/README.md": (states,),
}


def with_part(text: str, name: str, part: str) -> str:
    """Return a page's text with a part between the marks of that name."""
    marks = rf"(<!-- {name} -->\n).*?((?:# )?<!-- /{name} -->)"
    new, count = re.subn(marks, lambda found: f"{found[1]}{part}\n{found[2]}", text, flags=re.DOTALL)
    assert count == 1, f"the page has not exactly one place for {name}"
    return new


def filled(path: str) -> str:
    """Return a page's text with its generated parts up to date."""
    text = (ROOT / path).read_text()
    for make in PARTS[path]:
        text = with_part(text, make.__name__, make())
    return text


if __name__ == "__main__":
    for page in PARTS:
        (ROOT / page).write_text(filled(page))

"""The generated parts of the READMEs: `make readme` writes them, a test compares them."""

from __future__ import annotations

import re
from pathlib import Path

from kernel_gateway.cli.settings import shown
from kernel_gateway.config import Settings
from kernel_gateway.errors import STATUS
from sessions.session.states import MOVES

ROOT = Path(__file__).parents[1]


def settings() -> str:
    """Return the table of settings."""
    lines = ["| setting | default | |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = f"`{shown(field.default)}`" if field.default not in (None, "", {}, []) else ""
        lines.append(f"| `{name}` | {default} | {field.description} |")
    return "\n".join(lines)


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


def packages() -> str:
    """Return the table of the packages in the kernels' image, by purpose."""
    blocks = (ROOT / "kernel_image/requirements.txt").read_text().split("\n\n")[1:]
    rows = []
    for block in blocks:
        purpose, *lines = block.strip().splitlines()
        listed = ", ".join(f"`{line}`" for line in sorted(lines, key=str.lower))
        rows.append(f"| {purpose.removeprefix('# ').partition(';')[0]} | {listed} |")
    return "\n".join(["| for | packages |", "| --- | --- |", *rows])


PARTS = {
    "kernel_image/README.md": ("packages", packages),
    "README.md": ("settings", settings),
    "sessions/README.md": ("states", states),
    "kernel_gateway/README.md": ("errors", errors),
}


def filled(path: str) -> str:
    """Return a README's text with its generated part up to date."""
    name, make = PARTS[path]
    text = (ROOT / path).read_text()
    return re.sub(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", rf"\g<1>{make()}\n\g<2>", text, flags=re.DOTALL)


if __name__ == "__main__":
    for readme in PARTS:
        (ROOT / readme).write_text(filled(readme))

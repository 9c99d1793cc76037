"""The language table: which kernels there are, read from `kernel_image/kernelspecs/*/kernel.json`.

A language is added by adding its folder there, and by nothing else. The folder's name is the language's;
`metadata.kernel_gateway` holds what the standard kernelspec has no field for: `aliases`, `encryption` (the kernel
speaks CurveZMQ), `signature` (how it signs, when it knows better than `hmac-sha256`), `ipc` (false: it speaks only
TCP), `flush` (see `sessions/flush.py`), `jupyter_name` (what notebooks call this kernel) and `call` (an expression that
calls `main` with the arguments in `{json}`, a string literal).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sessions.errors import InvalidRequest
from sessions.models import SIGNATURE


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One language's kernel."""

    name: str
    display_name: str
    #: with `{connection_file}`, and `{python}` for the interpreter that is there
    argv: tuple[str, ...]
    aliases: frozenset[str] = frozenset()
    #: the name notebooks know it by, for example `python3`
    jupyter_name: str = ""
    #: the kernel speaks CurveZMQ
    encryption: bool = False
    #: its signature scheme, of those that the kernel and hashlib know
    signature: str = SIGNATURE
    #: it can be reached by sockets in the file system, and not only by TCP
    ipc: bool = True
    #: for a kernel that says `idle` too early: code that publishes a message of type `flushed` behind all output
    flush: str = ""
    #: how `main` is called with arguments; empty: it cannot be
    call: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    #: pictures that stand for it, `logo-*` beside its `kernel.json`, by name without suffix
    logos: Mapping[str, Path] = field(default_factory=dict)

    def program(self, code: str, arguments: Mapping[str, Any] | None) -> str:
        """What is sent to the kernel: the code, and after it the call of its `main` if there are arguments.

        Raises:
            InvalidRequest: in this language nothing is called, or the arguments are nested too deeply.
        """
        if arguments is None:
            return code
        if not self.call:
            raise InvalidRequest(f"{self.name} code takes no arguments", field="arguments")
        try:
            # JSON in ASCII within a JSON string: a string literal of every language that kernels speak.
            literal = json.dumps(json.dumps(arguments))
        except RecursionError:
            raise InvalidRequest("the arguments are nested too deeply", field="arguments") from None
        return f"{code}\n\n{self.call.replace('{json}', literal)}"


class KernelSpecs:
    """All languages, by name and alias."""

    def __init__(self, directory: Path) -> None:
        """Read the table.

        Raises:
            ValueError: two languages share a name or alias.
        """
        self.all = tuple(_read(path) for path in sorted(directory.glob("*/kernel.json")))
        self._by_name: dict[str, KernelSpec] = {}
        for spec in self.all:
            for name in {spec.name, spec.jupyter_name, *spec.aliases}:
                if name in self._by_name:
                    raise ValueError(f"kernelspec name {name!r} is taken twice")
                self._by_name[name] = spec

    def find(self, language: str) -> KernelSpec:
        """The kernel of a language or alias, in any case.

        Raises:
            InvalidRequest: there is none; the message lists those there are.
        """
        spec = self._by_name.get(language.lower())
        if spec is None:
            known = ", ".join(spec.name for spec in self.all)
            raise InvalidRequest(f"unknown language {language[:64]!r}; known: {known}", field="language")
        return spec


def _read(path: Path) -> KernelSpec:
    content: dict[str, Any] = json.loads(path.read_text())
    ours = content.get("metadata", {}).get("kernel_gateway", {})
    return KernelSpec(
        name=path.parent.name,
        display_name=content["display_name"],
        argv=tuple(content["argv"]),
        aliases=frozenset(ours.get("aliases", ())),
        jupyter_name=ours.get("jupyter_name", path.parent.name),
        encryption=bool(ours.get("encryption", False)),
        signature=ours.get("signature", SIGNATURE),
        ipc=bool(ours.get("ipc", True)),
        flush=ours.get("flush", ""),
        call=ours.get("call", ""),
        env=content.get("env", {}),
        logos={logo.stem: logo for logo in sorted(path.parent.glob("logo-*"))},
    )

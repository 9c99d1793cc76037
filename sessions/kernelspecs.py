"""The language table: which kernels there are, read from `kernel_image/kernelspecs/*/kernel.json`.

A language is added by adding its folder there, and by nothing else. The folder's name is the language's;
`metadata.kernel_gateway` holds what the standard kernelspec has no field for: `aliases`, `encryption` (the kernel
speaks CurveZMQ), `signature` (how it signs, when it knows better than `hmac-sha256`), `ipc` (false: it speaks only
TCP), `one_processor` (false: it does badly where it sees no second one), `flush` (see `sessions/flush.py`), `lease` (a
kernel that runs takes environment and directory by a `lease_request` on its control channel), `env_at_start` (a
pattern: variables that it reads, or sets itself, when it starts), `jupyter_name` (what notebooks call this kernel),
`call` (an expression that calls `main` with the arguments in `{json}`, a string literal) and `run` (one that runs a
whole program, a JSON object of `code`, `arguments` and `most` in `{json}`, and says by a display of `RUN_MIME` what
came of it, see `sessions/outcomes.py`; what it needs and the kernel has not loaded stands in the file `run.*` beside
`kernel.json`, and is sent before it). A file `prelude.*` there is what the kernel runs before any cell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sessions.errors import InvalidRequest
from sessions.models import SIGNATURE

#: how a whole program says what came of it
RUN_MIME = "application/vnd.kernel-gateway.run+json"


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
    #: it does as well where it sees one processor only
    one_processor: bool = True
    #: for a kernel that says `idle` too early: code that publishes a message of type `flushed` behind all output
    flush: str = ""
    #: code that it is sent before any cell, and once more by a gateway that was started again
    prelude: str = ""
    #: it takes environment and directory after its start, by a `lease_request` on its control channel
    lease: bool = False
    #: names of variables that it must be started with to heed them
    env_at_start: str = ""
    #: how `main` is called with arguments; empty: it cannot be
    call: str = ""
    #: a cell that runs a whole program, with `{json}`; empty: it cannot be
    run: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    #: pictures that stand for it, `logo-*` beside its `kernel.json`, by name without suffix
    logos: Mapping[str, Path] = field(default_factory=dict)

    def takes(self, env: Mapping[str, str], cwd: str) -> bool:
        """Whether a kernel that runs can be given these as if it had been started with them."""
        if not env and not cwd:
            return True
        return self.lease and not any(re.fullmatch(self.env_at_start, name) for name in env)

    def program(self, code: str, arguments: Mapping[str, Any] | None) -> str:
        """What is sent to the kernel: the code, and after it the call of its `main` if there are arguments.

        Raises:
            InvalidRequest: in this language nothing is called, or the arguments are nested too deeply.
        """
        if arguments is None:
            return code
        if not self.call:
            raise InvalidRequest(f"{self.name} code takes no arguments", field="arguments")
        return f"{code}\n\n{self.call.replace('{json}', _literal(arguments))}"

    def whole(self, code: str, arguments: Mapping[str, Any], most: int) -> str:
        """The cell that runs code as a program of its own: nothing of the code stands in it but as a string.

        Args:
            code: defines `main`.
            arguments: what that is called with.
            most: bytes that its value may have.

        Raises:
            InvalidRequest: this language has no such cell, the code is no text, or the arguments are no JSON.
        """
        if not self.run:
            raise InvalidRequest(f"{self.name} programs cannot be run", field="language")
        try:
            code.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("the code holds half a character", field="code") from None
        return self.run.replace("{json}", _literal({"code": code, "arguments": dict(arguments), "most": most}))


def _literal(value: Mapping[str, Any]) -> str:
    """JSON in ASCII within a JSON string: a string literal of every language that kernels speak.

    Raises:
        InvalidRequest: it is no JSON, or nested too deeply.
    """
    try:
        return json.dumps(json.dumps(value, allow_nan=False))
    except RecursionError:
        raise InvalidRequest("the arguments are nested too deeply", field="arguments") from None
    except (TypeError, ValueError):
        raise InvalidRequest("the arguments are no JSON", field="arguments") from None


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
        one_processor=bool(ours.get("one_processor", True)),
        flush=ours.get("flush", ""),
        prelude="\n".join(file.read_text() for file in path.parent.glob("prelude.*")),
        lease=bool(ours.get("lease", False)),
        env_at_start=ours.get("env_at_start", ""),
        call=ours.get("call", ""),
        run="\n".join([*(file.read_text() for file in path.parent.glob("run.*")), ours.get("run", "")]).strip(),
        env=content.get("env", {}),
        logos={logo.stem: logo for logo in sorted(path.parent.glob("logo-*"))},
    )

"""The language table: all kernels, read from `kernel_image/kernelspecs/*/kernel.json`.

To add a language, add its folder there; nothing else changes. The folder's name is the language's name. Its
`kernel.json` is a standard kernelspec; `metadata.kernel_gateway` holds what the standard has no field for:

- `aliases`: other names of the language.
- `jupyter_name`: name of this kernel in notebooks.
- `encryption`: the kernel speaks CurveZMQ.
- `signature`: signature scheme of the kernel, if it supports a better one than `hmac-sha256`.
- `ipc`: false when the kernel speaks only TCP.
- `resets`: false when a connection that is reset before its first byte ends the kernel.
- `min_memory`: MiB of memory that the kernel needs to start and to run a small cell beside a file tool, if it needs
  more than other kernels (`MEMORY_MIN`).
- `flush`: code that publishes a message after a cell's output, for a kernel whose `idle` arrives too early; see
  `sessions/kernels/idle_barrier.py`.
- `extras`: a cell's request may contain environment variables for this cell, and further formats for its displays; see
  `kernel_image/python_kernel/extras.py`.
- `variables`: the kernel describes its variables; see `kernel_image/python_kernel/variables.py`.
- `tools`: cells can call functions outside of the sandbox; see `kernel_image/python_kernel/tools.py`.
- `lease`: a running kernel accepts an environment and a directory by a `lease_request` on its control channel.
- `preload`: modules that a warm kernel of this language imports before it is leased, one after the other.
- `waits`: if `-` is its connection file, the kernel imports the modules of `preload`, and then waits for its connection
  on standard input; see `kernel_image/python_kernel/waiting.py`.
- `env_at_start`: a pattern for the variables that the kernel reads, or sets itself, only when it starts.
- `package`: the Python package that contains the language's interpreter, if it is not Python itself. If no Python
  package contains the interpreter, this is any name, and `version` is the command that prints the version.
- `image`: an image that has the language, if the usual image lacks it. The file `debian.txt` beside `kernel.json` lists
  Debian's packages for it, and `kernel_image/build.sh --LANGUAGE` installs them.
- `setenv`: for a kernel without `extras`, an expression that sets environment variables. `{json}` in it is replaced by
  a string literal with an object of names and values; null removes a variable.
- `name`: for a kernel without `lease`, and for one whose cells run in a process of their own, code that sets an
  environment variable. `{name}` and `{value}` in it are replaced; they need no quotes in any language.
- `call`: an expression that calls `main`; `{json}` is replaced by a string literal with the arguments.
- `run`: an expression that runs a whole program; `{json}` is replaced by an object of `code`, `arguments`,
  `most` and `script`.
  It displays the outcome as `RUN_MIME`, see `sessions/programs/outcomes.py`. If it needs code that the kernel has not
  loaded, the file `run.*` beside `kernel.json` contains this code, and is sent first.

The kernel runs a file `prelude.*` in the same folder before any cell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sessions.model.connection_info import SIGNATURE
from sessions.model.errors import InvalidRequest
from sessions.model.values import MEMORY_MIN, Limits

_MIB = 1024**2
#: the usual image: it has all languages but those that name another one
USUAL_IMAGE = "kernel-gateway/python:latest"
#: A kernel whose limit of memory is below these bytes imports no modules ahead of need: the usual ones take 130 MiB.
PRELOAD_MEMORY = 384 * _MIB
#: abilities that clients ask for, and that not all kernels have
ABILITIES = ("variables", "tools")


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One language's kernel."""

    name: str
    display_name: str
    #: command line with `{connection_file}`, and `{python}` for the installed interpreter
    argv: tuple[str, ...]
    aliases: frozenset[str] = frozenset()
    #: name of the kernel in notebooks, for example `python3`
    jupyter_name: str = ""
    #: whether the kernel speaks CurveZMQ
    encryption: bool = False
    #: signature scheme that both the kernel and hashlib support
    signature: str = SIGNATURE
    #: whether the kernel can use sockets in the file system, and not only TCP
    ipc: bool = True
    #: whether the kernel survives a connection that is reset before its first byte
    resets: bool = True
    #: whether the kernel accepts interrupts as messages, and not only as SIGINT
    interrupt_messages: bool = True
    #: bytes of memory that the kernel needs at least
    min_memory: int = MEMORY_MIN
    #: code that publishes a message of type `flushed` after all output, for a kernel that sends `idle` too early
    flush: str = ""
    #: code that is sent to the kernel before any cell, and again by a restarted gateway
    prelude: str = ""
    #: whether a running kernel accepts an environment and a directory by a `lease_request` on its control channel
    lease: bool = False
    #: whether a cell's request may have its own environment variables and further formats of its displays
    extras: bool = False
    #: whether the kernel describes its variables, by a `variables_request` on its control channel
    variables: bool = False
    #: whether its cells can call tools, by a `tool_call` on iopub and a `tool_reply` on its control channel
    tools: bool = False
    #: whether the kernel debugs cells, by `debug_request`s on its control channel
    debugger: bool = False
    #: names of all languages whose kernels have an ability that not all have, for who asks a kernel without it
    able: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: modules that a warm kernel imports ahead of need, by a `preload_request` on shell
    preload: tuple[str, ...] = ()
    #: whether the kernel can import these modules and then wait for its keys, so that a golden image of it can be made
    waits: bool = False
    #: pattern of variables that have an effect only if the kernel is started with them
    env_at_start: str = ""
    #: package that contains the interpreter. Empty means that the interpreter is Python.
    package: str = ""
    #: image that has the interpreter. Empty means the usual image.
    image: str = ""
    #: expression that sets environment variables. Empty means not supported.
    setenv: str = ""
    #: code that sets one environment variable in a running kernel. Empty means that a `lease_request` does that.
    name_code: str = ""
    #: expression that calls `main` with arguments. Empty means not supported.
    call: str = ""
    #: code that seeds the random generators. Empty means not supported.
    seed: str = ""
    #: cell that runs a whole program, with `{json}`. Empty means not supported.
    run: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    #: logo files, `logo-*` beside its `kernel.json`, by name without suffix
    logos: Mapping[str, Path] = field(default_factory=dict)

    def preload_within(self, memory: int) -> tuple[str, ...]:
        """Return the modules that a kernel with this limit of memory, in bytes, imports ahead of need."""
        return self.preload if memory >= PRELOAD_MEMORY else ()

    def accepts(self, env: Mapping[str, str], cwd: str) -> bool:
        """Return whether a running kernel can change to this environment and directory, as if it had started there."""
        if not env and not cwd:
            return True
        return self.lease and not any(re.fullmatch(self.env_at_start, name) for name in env)

    def check(self, limits: Limits) -> None:
        """Check that a kernel of this language works within the limits.

        Raises:
            InvalidRequest: when the kernel needs more memory.
        """
        if limits.memory < self.min_memory:
            raise InvalidRequest(
                f"{self.name} needs at least {self.min_memory} bytes of memory ({self.min_memory // _MIB} MiB); "
                f"the limit is {limits.memory}",
                field="limits.memory",
                language=self.name,
                min=self.min_memory,
            )

    def cannot(self, ability: str, what: str) -> InvalidRequest:
        """Return the error of a client that asks for what kernels of this language cannot do.

        Args:
            ability: a name of `ABILITIES`.
            what: the same in words.
        """
        able = self.able.get(ability, ())
        text = f"{self.display_name} cannot {what}; languages that can: {', '.join(able)}"
        return InvalidRequest(text, field="language", language=self.name, able=[*able])

    def missing_from(self, image: str) -> InvalidRequest:
        """Return the error of a client that asks for this language in an image that lacks it.

        Args:
            image: the image that the client asked for. Empty means the image that the operator has set.
        """
        if self.image:
            other = f"; the image {self.image} has it, which the operator can set (`image`) or offer (`images`)"
        else:
            other = f"; the usual image ({USUAL_IMAGE}) has it"
        where = f"in the image {image}" if image else "here"
        return InvalidRequest(
            f"{self.display_name} is not installed {where}{other}", field="language", language=self.name
        )

    def seed_code(self, seed: int) -> str:
        """Return the code that seeds the language's random generators.

        Raises:
            InvalidRequest: when they cannot be seeded.
        """
        if not self.seed:
            raise InvalidRequest(f"the random numbers of {self.display_name} cannot be seeded", field="seed")
        return self.seed.replace("{seed}", str(seed % 2**31))

    def code_with_call(self, code: str, arguments: Mapping[str, Any] | None) -> str:
        """Return the code for the kernel: `code`, followed by a call of its `main` if there are arguments.

        Raises:
            InvalidRequest: when the language supports no arguments, or the arguments are nested too deeply.
        """
        if arguments is None:
            return code
        if not self.call:
            raise InvalidRequest(f"{self.name} code takes no arguments", field="arguments")
        return f"{code}\n\n{self.call.replace('{json}', _literal(arguments))}"

    def env_code(self, env: Mapping[str, str | None]) -> str:
        """Return the code that sets environment variables. The value None removes a variable.

        Raises:
            InvalidRequest: when the language supports no variables of single cells.
        """
        if not self.setenv:
            raise InvalidRequest(f"{self.name} cells take no environment variables of their own", field="env")
        return self.setenv.replace("{json}", _literal(env))

    def program_cell(self, code: str, arguments: Mapping[str, Any], most: int, *, script: bool = False) -> str:
        """Return the cell that runs code as a whole program. It contains the code only as a string literal.

        Args:
            code: source code that defines `main`, or a script.
            arguments: arguments of `main`.
            most: maximum bytes of the return value.
            script: True if the code is a script, and no `main` is called.

        Raises:
            InvalidRequest: when the language cannot run programs, the code is no text, or the arguments are no JSON.
        """
        if not self.run:
            raise InvalidRequest(f"{self.name} programs cannot be run", field="language")
        try:
            code.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("the code contains a lone surrogate", field="code") from None
        program = {"code": code, "arguments": dict(arguments), "most": most, "script": script}
        return self.run.replace("{json}", _literal(program))


#: what a container runs that has no kernel: only tools and commands run in it
NO_KERNEL = KernelSpec("none", "no kernel", argv=())


def _literal(value: Mapping[str, Any]) -> str:
    """Return a value as ASCII JSON inside a JSON string. Every language of the kernels reads it as a string literal.

    It contains no `#`, because Ruby runs code behind that character in a string literal.

    Raises:
        InvalidRequest: when the value is no JSON, or nested too deeply.
    """
    try:
        return json.dumps(json.dumps(value, allow_nan=False)).replace("#", "\\u0023")
    except RecursionError:
        raise InvalidRequest("the arguments are nested too deeply", field="arguments") from None
    except (TypeError, ValueError):
        raise InvalidRequest("the arguments are no JSON", field="arguments") from None


class KernelSpecs:
    """All languages, by name and alias."""

    def __init__(self, directory: Path, preload: Mapping[str, Sequence[str]] | None = None) -> None:
        """Read the table.

        Args:
            directory: folder of the languages' folders.
            preload: modules to preload by language. They replace the modules that the kernelspec names.

        Raises:
            ValueError: when two languages share a name or alias.
        """
        specs = (_read(path) for path in sorted(directory.glob("*/kernel.json")))
        own = preload or {}
        preloading = [replace(spec, preload=tuple(own.get(spec.name, spec.preload))) for spec in specs]
        able = {name: tuple(spec.name for spec in preloading if getattr(spec, name)) for name in ABILITIES}
        self.all = tuple(replace(spec, able=able) for spec in preloading)
        self._by_name: dict[str, KernelSpec] = {}
        for spec in self.all:
            for name in {spec.name, spec.jupyter_name, *spec.aliases}:
                if name in self._by_name:
                    raise ValueError(f"kernelspec name {name!r} is taken twice")
                self._by_name[name] = spec

    def find(self, language: str) -> KernelSpec:
        """Return the kernel of a language or alias, in upper or lower case.

        Raises:
            InvalidRequest: when the language is unknown; the message lists the known ones.
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
        resets=bool(ours.get("resets", True)),
        interrupt_messages=content.get("interrupt_mode") == "message",
        min_memory=max(MEMORY_MIN, ours.get("min_memory", 0) * _MIB),
        flush=ours.get("flush", ""),
        prelude="\n".join(file.read_text() for file in path.parent.glob("prelude.*")),
        lease=bool(ours.get("lease", False)),
        extras=bool(ours.get("extras", False)),
        variables=bool(ours.get("variables", False)),
        tools=bool(ours.get("tools", False)),
        debugger=bool(content.get("metadata", {}).get("debugger", False)),
        preload=tuple(ours.get("preload", ())),
        waits=bool(ours.get("waits", False)),
        env_at_start=ours.get("env_at_start", ""),
        package=ours.get("package", ""),
        image=ours.get("image", ""),
        setenv=ours.get("setenv", ""),
        name_code=ours.get("name", ""),
        call=ours.get("call", ""),
        seed=ours.get("seed", ""),
        run="\n".join([*(file.read_text() for file in path.parent.glob("run.*")), ours.get("run", "")]).strip(),
        env=content.get("env", {}),
        logos={logo.stem: logo for logo in sorted(path.parent.glob("logo-*"))},
    )


@dataclass(frozen=True, slots=True)
class Inventory:
    """The interpreters and packages that are installed for the code of all languages, in the usual image."""

    #: version of the Python interpreter
    python: str
    #: version of each Python package, by its normalized name, and of each interpreter that is no Python package
    packages: Mapping[str, str]

    def version(self, spec: KernelSpec) -> str | None:
        """Return the version of a language's interpreter, or None if it is not installed."""
        return self.packages.get(spec.package) if spec.package else self.python

    def require(self, spec: KernelSpec) -> None:
        """Check that a language's interpreter is installed in the usual image.

        Raises:
            InvalidRequest: when the interpreter is not installed; the message names the image that has it.
        """
        if self.version(spec) is None:
            raise spec.missing_from("")

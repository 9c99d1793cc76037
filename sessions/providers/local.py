"""Processes of this machine, for development. This is no sandbox.

Source: the rules of WeKnora's local sandbox. What is real: interpreters from a list, directories that are looked at
after their links were followed, an environment made anew, a directory of its own that goes with the instance, bounds
on time and output, and the end of a program's whole process group. What is not: the program is the gateway's own user.
It can read and write all that the gateway can, use the network, and as much memory, processors and disk as there are.
"""

from __future__ import annotations

import asyncio
import mimetypes
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import ClassVar

from sessions.errors import InvalidRequest, NotInitialized, SandboxNotFound, StartFailed
from sessions.oneshot import Artifact, Ending, Outcome
from sessions.providers import children
from sessions.providers.base import Config, ExecutionResult, Field, InstanceId, SandboxInstance, Schema
from sessions.providers.interpreters import COMMANDS, ENDINGS, PLACES, SCRIPT, allowed_paths, found, listed, script
from sessions.providers.results import ended, timed_out, told
from sessions.providers.schema import accepted, supported
from sessions.providers.wrapping import RUNNERS, parsed, wrapped

#: artifacts of a program: how many, how large, of which kinds
ARTIFACTS, ARTIFACT_BYTES = 10, 10 * 2**20
KINDS = {".png", ".jpg", ".jpeg", ".svg", ".pdf", ".csv", ".json", ".html"}

SCHEMA: Schema = {
    "allowed_commands": Field(
        "string",
        "Interpreters",
        f"Which may run, with commas: {', '.join(COMMANDS)}. Python is the gateway's own.",
        default="python,node,deno",
        required=True,
    ),
    "allowed_paths": Field(
        "string",
        "Directories",
        f"From where scripts may be run (language `{SCRIPT}`, the code is the path), with colons. Empty: from nowhere.",
        default="",
        placeholder="/srv/skills:/srv/more",
    ),
    "timeout": Field("integer", "Timeout", "Seconds that a program may run at most.", default=30, min=1, max=300),
    "max_output": Field(
        "integer", "Output", "Bytes that are kept of stdout and stderr.", default=2**20, min=1024, max=100 * 2**20
    ),
}


@dataclass(slots=True)
class Place:
    """An instance's directory."""

    path: Path
    runs: count[int]


class Local:
    """Programs run as processes beside the gateway."""

    id: ClassVar[str] = "local"
    name: ClassVar[str] = "Local processes"
    description: ClassVar[str] = "Processes of this machine, for development only: no sandbox."
    sandboxed: ClassVar[bool] = False

    def __init__(self) -> None:
        """Not ready before it is initialised."""
        self._config: Config | None = None
        self._commands: dict[str, list[str]] = {}
        self._places: dict[str, Place] = {}

    async def initialize(self, config: Config) -> bool:
        """Take the configuration, and look for interpreters."""
        complete = accepted(self, config)
        await self.close()
        self._config, self._commands = complete, found(listed(complete["allowed_commands"], ","))
        return await self.health_check()

    async def create_instance(
        self, template: str = "python", *, tenant: str = "local", session: str | None = None
    ) -> SandboxInstance:
        """Make a directory."""
        self._ready()
        language, instance = supported(self, template), str(InstanceId(tenant, session or "run"))
        try:
            made = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="kernel-gateway-local-"))
        except OSError as error:
            raise StartFailed(f"no directory can be made for the program: {error.strerror}") from None
        self._places[instance] = Place(made, count())
        return SandboxInstance(instance, self.id, metadata={"language": language})

    async def execute_code(
        self,
        instance_id: str,
        code: str,
        language: str,
        timeout: int = 10,  # noqa: ASYNC109 - RAGFlow's name
        arguments: Config | None = None,
    ) -> ExecutionResult:
        """Run a program in a directory of its own in the instance's. Shell scripts have no `main` and no arguments."""
        config, place = self._ready(), self._places.get(instance_id)
        if place is None:
            raise SandboxNotFound
        if timeout <= 0:
            raise InvalidRequest("timeout must be above 0", field="timeout")
        if supported(self, language) == SCRIPT:
            code, language = await asyncio.to_thread(script, code, allowed_paths(config["allowed_paths"]))
            supported(self, language)
        if arguments and language not in RUNNERS:
            raise InvalidRequest(f"a program in {language} takes no arguments", field="arguments")
        run = place.path / str(next(place.runs))
        answer, program, home = run / "answer", run / f"program{ENDINGS[language]}", run / "home"
        await asyncio.to_thread((home / "artifacts").mkdir, parents=True)
        if language in RUNNERS:
            code = wrapped(code, language, dict(arguments or {}), answer).source
        await asyncio.to_thread(program.write_text, code, "utf-8")
        began = time.monotonic()
        end = await children.run(
            [*self._commands[language], str(program)],
            cwd=home,
            env={"PATH": PLACES, "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8", "NO_COLOR": "1"},
            mark=str(place.path),
            seconds=min(timeout, config["timeout"]),
            max_output=config["max_output"],
        )
        seconds = time.monotonic() - began
        outcome = await asyncio.to_thread(_outcome, language, end, answer, config["max_output"], seconds)
        if outcome.ending is Ending.OK:
            outcome = replace(outcome, artifacts=await asyncio.to_thread(artifacts, home / "artifacts"))
        return told(instance_id, outcome)

    async def destroy_instance(self, instance_id: str) -> bool:
        """End what runs there, and remove its directory."""
        place = self._places.pop(instance_id, None)
        if place is None:
            return True
        await asyncio.to_thread(children.kill, str(place.path))
        await asyncio.to_thread(shutil.rmtree, place.path, ignore_errors=True)
        return not await asyncio.to_thread(place.path.exists)

    async def health_check(self) -> bool:
        """Whether there is an interpreter that may be used."""
        return bool(self._commands)

    def get_supported_languages(self) -> list[str]:
        """Those of the interpreters that are allowed and there."""
        scripts = [SCRIPT] if self._config and self._config["allowed_paths"] else []
        return [*(self._commands if self._config else found(list(COMMANDS))), *scripts]

    @staticmethod
    def get_config_schema() -> Schema:
        """See `SCHEMA`."""
        return SCHEMA

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        """Interpreters are those of the list; directories are there."""
        unknown = [name for name in listed(config.get("allowed_commands") or "", ",") if name not in COMMANDS]
        if unknown:
            return False, f"allowed_commands: there is no {unknown[0][:64]!r}; known: {', '.join(COMMANDS)}"
        try:
            allowed_paths(config.get("allowed_paths") or "")
        except InvalidRequest as error:
            return False, error.message
        return True, None

    async def close(self) -> None:
        """Destroy all instances."""
        await asyncio.gather(*(self.destroy_instance(instance) for instance in list(self._places)))
        self._config, self._commands = None, {}

    def _ready(self) -> Config:
        if self._config is None:
            raise NotInitialized("The provider has no configuration.")
        return self._config


def _outcome(language: str, end: children.Ended, answer: Path, limit: int, seconds: float) -> Outcome:
    """What came of a process."""
    if end.timed_out:
        return timed_out(end.stdout, end.stderr, seconds)
    text = children.content(answer, limit) if language in RUNNERS else None
    if text is None and (end.code or language not in RUNNERS):  # it has ended by itself, as it liked
        ending = Ending.ERROR if end.code else Ending.OK
        return Outcome(ending, end.stdout, end.stderr, end.code, duration=seconds, truncated=end.truncated)
    told = parsed((text or b"").decode(errors="replace"), end.stdout)
    return ended(told, end.stdout, end.stderr, seconds, truncated=end.truncated)


def artifacts(directory: Path) -> tuple[Artifact, ...]:
    """The files that a program has left there; no links, nothing hidden or empty."""
    if directory.is_symlink() or not directory.is_dir():
        return ()
    kept: list[Artifact] = []
    for path in sorted(directory.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in KINDS or len(kept) == ARTIFACTS:
            continue
        if content := children.content(path, ARTIFACT_BYTES):
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            kept.append(Artifact(path.name, kind, content))
    return tuple(kept)

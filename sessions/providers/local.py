"""Processes of this machine, for development. This is no sandbox.

Source: the rules of WeKnora's local sandbox. These protections are real: interpreters from a list, directories that are
checked after their links are resolved, a new environment, a separate directory that is removed with the instance,
limits on time and output, and the end of a program's whole process group. There is no isolation: a program runs as the
gateway's user. It can read and write all that the gateway can, and use the network and all memory, processors and disk.
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
from typing import Any, ClassVar

from sessions.model.errors import InvalidRequest, StartFailed
from sessions.programs.program import Artifact, Ending, Outcome, Program
from sessions.providers import children
from sessions.providers.base import Config, Field, InstanceId, Schema
from sessions.providers.instances import Instances
from sessions.providers.interpreters import COMMANDS, ENDINGS, PLACES, SCRIPT, allowed_paths, found, listed, script
from sessions.providers.results import ended, timed_out
from sessions.providers.schema import supported
from sessions.providers.wrapping import RUNNERS, parsed, wrapped

#: artifacts of a program: maximum number, maximum bytes of each, and allowed file suffixes
ARTIFACTS, ARTIFACT_BYTES = 10, 10 * 2**20
KINDS = {".png", ".jpg", ".jpeg", ".svg", ".pdf", ".csv", ".json", ".html"}

SCHEMA: Schema = {
    "allowed_commands": Field(
        "string",
        "Interpreters",
        f"Interpreters that may run, separated by commas: {', '.join(COMMANDS)}. Python is the gateway's own.",
        default="python,node,deno",
        required=True,
    ),
    "allowed_paths": Field(
        "string",
        "Directories",
        f"Directories of scripts that may run (language `{SCRIPT}`, code: the path), separated by colons. Empty: none.",
        default="",
        placeholder="/srv/skills:/srv/more",
    ),
    "timeout": Field("integer", "Timeout", "Seconds that a program may run at most.", default=30, min=1, max=300),
    "max_output": Field(
        "integer", "Output", "Bytes that are kept of stdout and stderr.", default=2**20, min=1024, max=100 * 2**20
    ),
}


@dataclass(slots=True)
class WorkDirectory:
    """Directory of an instance, and the numbers of its runs."""

    path: Path
    runs: count[int]


class Local(Instances[WorkDirectory]):
    """Programs run as processes beside the gateway."""

    id: ClassVar[str] = "local"
    name: ClassVar[str] = "Local processes"
    description: ClassVar[str] = "Processes of this machine, for development only: no sandbox."
    sandboxed: ClassVar[bool] = False

    schema: ClassVar[Schema] = SCHEMA

    def __init__(self) -> None:
        """Make a provider that is not initialised."""
        super().__init__()
        self._commands: dict[str, list[str]] = {}

    async def _set_up(self, config: Config) -> None:
        self._commands = found(listed(config["allowed_commands"], ","))

    async def _tear_down(self) -> None:
        self._commands = {}

    async def _make(self, instance: InstanceId, config: Config) -> tuple[WorkDirectory, dict[str, Any]]:  # noqa: ARG002
        try:
            made = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="kernel-gateway-local-"))
        except OSError as error:
            raise StartFailed(f"no directory can be made for the program: {error.strerror}") from None
        return WorkDirectory(made, count()), {}

    async def _run(self, instance_id: str, program: Program, config: Config) -> Outcome:
        """Run a program in a new subdirectory of the instance. Shell scripts have no `main` and no arguments."""
        code, language, directory = program.code, program.language, self._instances[instance_id]
        if language == SCRIPT:
            code, language = await asyncio.to_thread(script, code, allowed_paths(config["allowed_paths"]))
            supported(self, language)
        if program.arguments and language not in RUNNERS:
            raise InvalidRequest(f"a program in {language} takes no arguments", field="arguments")
        run = directory.path / str(next(directory.runs))
        answer, file, home = run / "answer", run / f"program{ENDINGS[language]}", run / "home"
        if language in RUNNERS:
            code = wrapped(code, language, dict(program.arguments), answer).source
        try:
            await asyncio.to_thread((home / "artifacts").mkdir, parents=True)
            await asyncio.to_thread(file.write_text, code, "utf-8")
        except OSError as error:
            raise StartFailed(f"the program cannot be written: {error.strerror}") from None
        began = time.monotonic()
        end = await children.run(
            [*self._commands[language], str(file)],
            cwd=home,
            env={"PATH": PLACES, "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8", "NO_COLOR": "1"},
            mark=str(directory.path),
            seconds=min(program.timeout or config["timeout"], config["timeout"]),
            max_output=config["max_output"],
        )
        seconds = time.monotonic() - began
        outcome = await asyncio.to_thread(_outcome, language, end, answer, config["max_output"], seconds)
        if outcome.ending is Ending.OK:
            outcome = replace(outcome, artifacts=await asyncio.to_thread(artifacts, home / "artifacts"))
        return outcome

    async def _free(self, made: WorkDirectory) -> bool:
        """Kill the processes of the instance, and remove its directory."""
        await asyncio.to_thread(children.kill, str(made.path))
        await asyncio.to_thread(shutil.rmtree, made.path, ignore_errors=True)
        return not await asyncio.to_thread(made.path.exists)

    async def health_check(self) -> bool:
        """Return True if an allowed interpreter is installed."""
        return bool(self._commands)

    def get_supported_languages(self) -> list[str]:
        """Return the languages of the allowed and installed interpreters."""
        scripts = [SCRIPT] if self._config and self._config["allowed_paths"] else []
        return [*(self._commands if self._config else found(list(COMMANDS))), *scripts]

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        """Check that all interpreters are known and all directories exist."""
        unknown = [name for name in listed(config.get("allowed_commands") or "", ",") if name not in COMMANDS]
        if unknown:
            return False, f"allowed_commands: there is no {unknown[0][:64]!r}; known: {', '.join(COMMANDS)}"
        try:
            allowed_paths(config.get("allowed_paths") or "")
        except InvalidRequest as error:
            return False, error.message
        return True, None


def _outcome(language: str, end: children.Ended, answer: Path, limit: int, seconds: float) -> Outcome:
    """Return the outcome of a process."""
    if end.timed_out:
        return timed_out(end.stdout, end.stderr, seconds)
    text = children.content(answer, limit) if language in RUNNERS else None
    if text is None and (end.code or language not in RUNNERS):  # the program ended the process itself
        ending = Ending.ERROR if end.code else Ending.OK
        return Outcome(ending, end.stdout, end.stderr, end.code, duration=seconds, truncated=end.truncated)
    told = parsed((text or b"").decode(errors="replace"), end.stdout)
    return ended(told, end.stdout, end.stderr, seconds, truncated=end.truncated)


def artifacts(directory: Path) -> tuple[Artifact, ...]:
    """Return the files that a program has left in a directory. Links, hidden files and empty files are left out."""
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

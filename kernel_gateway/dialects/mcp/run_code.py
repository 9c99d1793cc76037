"""The tools `run_code` and `wait`: a cell that runs once, and answers before the client loses patience."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

from kernel_gateway.dialects.mcp import asking
from kernel_gateway.dialects.mcp.calls import Call
from kernel_gateway.dialects.mcp.request_state import Question, digest_of
from kernel_gateway.dialects.mcp.resent import Began, Joined, Resent
from kernel_gateway.dialects.mcp.results import TEXT_MAX, Shown, of_run, of_running
from kernel_gateway.dialects.mcp.rpc import Json
from kernel_gateway.dialects.mcp.tools import RunCode, Wait
from kernel_gateway.gateway import Gateway
from kernel_gateway.http.plain_text import plain_outputs
from kernel_gateway.http.readable_text import readable_text
from kernel_gateway.http.request_body import validated
from sessions.cells.execution import END_OF_INPUT
from sessions.cells.idempotency import Attempt, Run
from sessions.cells.past_run import PastRun
from sessions.guest import workspace
from sessions.model.checkpoint import CheckpointMode
from sessions.model.errors import InvalidRequest, SessionError
from sessions.model.values import ExecuteRequest, SessionKey, SessionSpec, Status
from sessions.session.session import Session

#: handle of a run: the name of its session, and its id
_HANDLE = re.compile(r"([A-Za-z0-9._-]{1,64}):([0-9a-f]{32})")


def spec_of(gateway: Gateway, tenant: str, language: str | None = None) -> SessionSpec:
    """Return the settings of a session that is made for a call: it takes automatic checkpoints where that works."""
    spec = gateway.registry.defaults_of(tenant)
    mode = CheckpointMode.AUTO if gateway.sleep().on else spec.checkpoints
    return replace(spec, language=language or spec.language, checkpoints=mode)


class Runs:
    """Begins runs, and waits for them."""

    def __init__(self, gateway: Gateway) -> None:
        """Begin without runs."""
        self._gateway = gateway
        self._resent = Resent()

    # -- the tools ------------------------------------------------------------------------------------------

    async def run_code(self, call: Call) -> Json:
        """Run a cell. A call that is sent again joins the run of the first one."""
        arguments = validated(RunCode, call.arguments)
        request = ExecuteRequest(
            code=arguments.code,
            timeout=self._gateway.settings_of(call.tenant).valid_timeout(arguments.timeout),
            stdin=None if arguments.stdin is None else tuple(arguments.stdin.splitlines()),
            interactive=True,
            idempotency_key=arguments.idempotency_key,
        )
        until = self._until(None)
        if call.answered is not None:
            session, run = self._find(call, call.answered[0].session, call.answered[0].run)
            return await self._follow(call, session, run, until)
        key = (call.tenant, arguments.session or "", digest_of(call.name, call.arguments))
        name = arguments.session or _new_name(call.tenant, arguments.idempotency_key)
        joined = self._resent.join(key, call.sender, lambda: self._begin(call, name, arguments.language, request))
        ends = call.ends_with_client and arguments.idempotency_key is None
        call.on_cancelled.append(joined.interrupt)
        call.on_delivered.append(lambda: self._resent.told(joined))
        with self._resent.waits(joined, ends_with_client=ends):
            return await self._joined(call, joined, until)

    async def wait(self, call: Call) -> Json:
        """Wait for a run that an earlier result named."""
        arguments = validated(Wait, call.arguments)
        found = _HANDLE.fullmatch(arguments.run)
        if found is None:
            raise InvalidRequest("run must be the handle that a result of run_code named", field="run")
        session, run = self._find(call, *found.groups())
        return await self._follow(call, session, run, self._until(arguments.timeout))

    # -- runs -----------------------------------------------------------------------------------------------

    async def _joined(self, call: Call, joined: Joined, until: float) -> Json:
        session, run = await asyncio.shield(joined.starting)
        return await self._follow(call, session, run, until)

    async def _begin(self, call: Call, name: str, language: str | None, request: ExecuteRequest) -> Began:
        registry = self._gateway.registry
        spec = spec_of(self._gateway, call.tenant, language)
        session = await registry.get_or_create(SessionKey(call.tenant, name), spec)
        if language is not None and registry.language(language) != session.kernelspec.name:
            raise InvalidRequest(f"session {name!r} runs {session.kernelspec.name}: use another one", field="language")
        return session, await session.submit(request)

    def _find(self, call: Call, name: str, run_id: str) -> Began:
        session = self._gateway.registry.get(SessionKey(call.tenant, name))
        session.touch()
        run = session.runs.find(run_id)
        if isinstance(run, PastRun):
            raise run.refusal()
        return session, run

    def _until(self, asked: float | None) -> float:
        most = self._gateway.settings.mcp_answer_after
        return asyncio.get_running_loop().time() + min(most if asked is None else asked, most)

    async def _follow(self, call: Call, session: Session, run: Run, until: float) -> Json:
        """Wait for the end of a run, and answer its questions. At the time `until`, return the handle."""
        begun = asyncio.get_running_loop().time()
        notes: list[str] = []
        try:
            async with asyncio.timeout_at(until):
                await self._answer_questions(call, session, run, notes)
                result = await Attempt(run, run.event_count, first=True).result()
        except TimeoutError:
            waited = asyncio.get_running_loop().time() - begun
            return of_running(session.key.name, _handle(session, run), waited)
        outputs, cut = await plain_outputs(result.outputs)
        shown = Shown(notes=notes)
        for output in outputs:
            shown.add(output)
        result = replace(result, truncated=result.truncated or cut > 0)
        if result.status is not Status.DIED and (cut or len(shown.text) > TEXT_MAX):
            shown.files.extend(await self._save(session, run, result.outputs, notes))
        return of_run(session.key.name, _handle(session, run), result, shown)

    async def _answer_questions(self, call: Call, session: Session, run: Run, notes: list[str]) -> None:
        answered = 0
        while not run.over:
            if run.question <= answered or not run.asks(run.question):
                await run.news()
                continue
            answered, question = run.question, Question(session.key.name, run.id, run.question)
            attempt = Attempt(run, run.question - 1, first=True)
            event = await anext(aiter(attempt))
            text = await self._answer(call, question, event, notes)
            if run.asks(answered):  # else somebody has answered it on the session page
                attempt.answer(text)

    async def _answer(self, call: Call, question: Question, event: Json, notes: list[str]) -> str:
        """Return the user's answer to a question of the cell."""
        prompt = event["prompt"]
        if call.answered is not None and call.answered[0] == question and asking.is_answer(call.answered[1]):
            given = asking.given(call.answered[1])
        elif event["password"]:
            notes.append(f"The code asked for a password ({prompt!r}); nobody was asked. Call again with stdin.")
            given = None
        elif asking.can_ask(call.capabilities):
            given = asking.given(await call.ask(asking.question(prompt), question))
        else:
            notes.append(f"The code asked {prompt!r} with input(), and got the end of the input.")
            notes.append("Call again with the answers in stdin, one a line.")
            given = None
        return END_OF_INPUT if given is None else given

    async def _save(self, session: Session, run: Run, outputs: list[Json], notes: list[str]) -> list[str]:
        """Write the whole text of a run into a file of the session, and say so."""
        text = await asyncio.to_thread(_whole_text, outputs)
        path = f"output-{run.id[:8]}.txt"

        async def pieces() -> AsyncIterator[bytes]:
            yield text

        try:
            await workspace.write_file(session, path, len(text), pieces())
        except SessionError as error:
            notes.append(f"The text below is cut, and the whole could not be written to a file: {error.message}")
            return []
        notes.append(f"The text below is cut; all {len(text)} bytes are in the file {path}: read it with files.")
        return [path]


def _whole_text(outputs: list[Json]) -> bytes:
    parts = []
    for output in outputs:
        match output["output_type"]:
            case "stream":
                parts.append(output["text"])
            case "error":
                parts.append("\n".join(output["traceback"]) + "\n")
            case _:
                text = readable_text(output["data"])
                parts.append("" if text is None else f"{text}\n")
    return "".join(parts).encode(errors="replace")


def _handle(session: Session, run: Run) -> str:
    return f"{session.key.name}:{run.id}"


def _new_name(tenant: str, idempotency_key: str | None) -> str:
    """Return the name of a new session. Calls with the same key get the same session: they run once."""
    if idempotency_key is None:
        return f"s-{secrets.token_hex(8)}"
    return f"s-{hashlib.sha256(f'{tenant}:{idempotency_key}'.encode()).hexdigest()[:16]}"

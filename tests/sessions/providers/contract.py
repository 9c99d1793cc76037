"""The contract suite for all providers.

One test module per provider imports everything from here, and describes its provider with a fixture `case`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from sessions.model.errors import InvalidRequest, NotInitialized, SessionError
from sessions.model.values import NAME
from sessions.programs.program import Returned
from sessions.providers.base import Config, ExecutionResult, InstanceId, SandboxProvider
from sessions.providers.schema import checked
from tests.tiers import some

TEXT = "grüße ☃ 𝄞 \" ' \\ \n"
VALUES: list[Any] = [7, -(2**53), 1.5, TEXT, "", True, False, None, [], {}, {"a": [1, {"b": None}]}]
ECHO = {
    "python": "def main(value=None):\n    return value",
    "javascript": "async function main({ value }) { return value }",
}
PRINT = {
    "python": "import sys\ndef main(name): print('out of', name); print('err', file=sys.stderr); return name",
    "javascript": "const main = ({ name }) => { console.log('out of', name); console.error('err'); return name };",
}
RAISE = {
    "python": "def fail():\n    raise LookupError('what I am looking for')\ndef main():\n    fail()",
    "javascript": "const fail = () => { throw new RangeError('what I am looking for') };\nfunction main() { fail() }",
}
SLEEP = {
    "python": "import time\ndef main():\n    time.sleep(60)",
    "javascript": "const main = () => new Promise((done) => setTimeout(done, 60000));",
}


@dataclass
class Case:
    """A provider for the suite."""

    make: Callable[[], SandboxProvider]
    config: dict[str, Any]
    #: returns the number of instances that exist; None: they cannot be counted
    left: Callable[[], Awaitable[int]] | None = None
    languages: tuple[str, ...] = ("python", "javascript")
    artifacts: bool = False
    #: invalid configurations by their error texts
    invalid: dict[str, Config] = field(default_factory=dict)
    #: a configuration with an address where no service listens; None: the provider runs in this process
    nobody: Config | None = None


@pytest.fixture
async def provider(case: Case) -> AsyncIterator[SandboxProvider]:
    provider = case.make()
    assert await provider.initialize(checked(provider.get_config_schema(), case.config))
    yield provider
    await provider.close()


@asynccontextmanager
async def instance(provider: SandboxProvider, language: str = "python", **whose: Any) -> AsyncIterator[str]:
    made = await provider.create_instance(language, **whose)
    assert (made.provider, made.status) == (provider.id, "running")
    try:
        yield made.instance_id
    finally:
        assert await provider.destroy_instance(made.instance_id)


async def run(
    provider: SandboxProvider, code: str, language: str = "python", seconds: int = 30, **arguments: Any
) -> ExecutionResult:
    async with instance(provider, language) as made:
        result = await provider.execute_code(made, code, language, seconds, arguments)
    assert result.metadata["instance_id"] == made
    json.dumps(result.metadata)
    return result


def value(result: ExecutionResult) -> Any:
    assert (result.exit_code, result.metadata["status"]) == (0, "ok"), result
    assert result.metadata["result_present"] is True
    return result.metadata["result_value"]


def languages(case: Case, wanted: str) -> str:
    if wanted not in case.languages:
        pytest.skip(f"this provider does not run {wanted} here")
    return wanted


both = pytest.mark.parametrize("language", some(["python", "javascript"], gate=1))

# -- description and configuration -----------------------------------------------------------------------------


async def test_a_provider_describes_itself(case: Case, provider: SandboxProvider) -> None:
    assert NAME.fullmatch(provider.id)
    assert provider.name
    assert provider.description
    assert isinstance(provider.sandboxed, bool)
    assert set(case.languages) <= set(provider.get_supported_languages())
    for name, told in provider.get_config_schema().items():
        assert name.isidentifier()
        assert told.label
        assert told.description
        assert told.default is None or not told.required or not told.secret
    assert await provider.health_check()


async def test_an_invalid_configuration_is_refused_with_its_problem(case: Case) -> None:
    provider = case.make()
    assert case.invalid
    for said, config in case.invalid.items():
        with pytest.raises(InvalidRequest, match=said):
            await provider.initialize(case.config | dict(config))
    with pytest.raises(InvalidRequest, match="no such field"):
        await provider.initialize(case.config | {"colour": "red"})
    assert provider.validate_config(checked(provider.get_config_schema(), case.config)) == (True, None)
    await provider.close()


async def test_nothing_runs_before_initialize_and_after_close(case: Case) -> None:
    provider = case.make()
    for _ in range(2):
        with pytest.raises(NotInitialized):
            await provider.create_instance("python")
        with pytest.raises(NotInitialized):
            await provider.execute_code("local:run:x", "def main(): pass", "python")
        assert not await provider.health_check()
        assert await provider.initialize(case.config)
        assert await provider.health_check()
        await provider.close()


async def test_an_unreachable_service_is_not_healthy(case: Case) -> None:
    if case.nobody is None:
        pytest.skip("the provider is in this process")
    provider = case.make()
    assert not await provider.initialize(case.config | dict(case.nobody))
    assert not await provider.health_check()
    await provider.close()


async def test_no_secret_is_shown(case: Case, provider: SandboxProvider) -> None:
    secrets = [
        case.config[name] for name, told in provider.get_config_schema().items() if told.secret and name in case.config
    ]
    with pytest.raises(SessionError) as refused:
        await provider.execute_code("local:run:nothing", "", "python")
    told = [repr(provider), str(provider), repr(refused.value.as_dict()), repr(refused.value)]
    if case.nobody is not None:
        stranger = case.make()
        await stranger.initialize(case.config | dict(case.nobody))
        with pytest.raises(SessionError) as failed:
            await run(stranger, "def main(): return 1")
        told += [repr(stranger), repr(failed.value.as_dict()), repr(failed.value.__cause__)]
        await stranger.close()
    assert not [secret for secret in secrets if any(secret in text for text in told)]


# -- instances -------------------------------------------------------------------------------------------------


async def test_an_instance_id_names_its_tenant_and_session(provider: SandboxProvider) -> None:
    async with instance(provider, tenant="alice", session="demo") as one, instance(provider, tenant="alice") as other:
        assert one.startswith("alice:demo:")
        assert other.startswith("alice:")
        assert str(InstanceId(*one.split(":"))) == one
        assert one != other
    with pytest.raises(InvalidRequest):
        await provider.create_instance("python", tenant="a:b")


async def test_destroying_is_idempotent_and_leaves_nothing(case: Case, provider: SandboxProvider) -> None:
    before = await case.left() if case.left else 0
    made = [await provider.create_instance("python") for _ in range(2)]
    if case.left:
        assert await case.left() == before + 2
    for each in made + made:
        assert await provider.destroy_instance(each.instance_id)
    assert await provider.destroy_instance("local:run:nothing")
    if case.left:
        assert await case.left() == before


async def test_closing_ends_all_instances(case: Case) -> None:
    if case.left is None:
        pytest.skip("the instances of this provider cannot be counted")
    before = await case.left()
    provider = case.make()
    await provider.initialize(case.config)
    made = await provider.create_instance("python")
    await provider.close()
    assert await case.left() == before
    await provider.initialize(case.config)
    with pytest.raises(SessionError):
        await provider.execute_code(made.instance_id, ECHO["python"], "python")
    await provider.close()


async def test_an_unknown_instance_runs_nothing(provider: SandboxProvider) -> None:
    async with instance(provider) as made:
        pass
    for unknown in (made, "local:run:nothing", ""):
        with pytest.raises(SessionError):
            await provider.execute_code(unknown, ECHO["python"], "python", 5, {})


async def test_another_language_is_refused(provider: SandboxProvider) -> None:
    with pytest.raises(InvalidRequest):
        await provider.create_instance("cobol")
    async with instance(provider) as made:
        with pytest.raises(InvalidRequest):
            await provider.execute_code(made, "main.", "cobol", 5, {})
        with pytest.raises(InvalidRequest):
            await provider.execute_code(made, ECHO["python"], "python", 0, {})


# -- programs --------------------------------------------------------------------------------------------------


@both
async def test_values_keep_their_types(case: Case, provider: SandboxProvider, language: str) -> None:
    returned = value(await run(provider, ECHO[languages(case, language)], language, value=VALUES))
    assert returned == VALUES
    assert json.dumps(returned) == json.dumps(VALUES)  # 1 is not True, and 1.0 is not 1


async def test_null_is_a_result_and_without_arguments_main_is_called_with_none(provider: SandboxProvider) -> None:
    async with instance(provider) as made:
        result = await provider.execute_code(made, ECHO["python"], "python", 30)
    assert Returned(value(result)) == Returned(None)


@both
async def test_stdout_and_stderr_are_kept_apart(case: Case, provider: SandboxProvider, language: str) -> None:
    result = await run(provider, PRINT[languages(case, language)], language, name="here")
    assert value(result) == "here"
    assert (result.stdout.rstrip("\n"), result.stderr.rstrip("\n")) == ("out of here", "err")
    assert 0 <= result.execution_time < 60


@both
async def test_a_program_that_raises_is_a_result_with_a_traceback(
    case: Case, provider: SandboxProvider, language: str
) -> None:
    result = await run(provider, RAISE[languages(case, language)], language)
    assert result.exit_code != 0
    assert result.metadata["status"] == "error"
    assert (result.metadata["result_present"], result.metadata["result_value"]) == (False, None)
    assert "what I am looking for" in result.stderr
    assert "fail" in result.stderr
    assert "error_code" not in result.metadata


@pytest.mark.parametrize(
    "code", some(["def main(:", "raise SystemExit(3)", "x = 1", "def main(): return object()"], gate=2)
)
async def test_a_program_without_a_result_is_a_failure(provider: SandboxProvider, code: str) -> None:
    result = await run(provider, code)
    assert result.exit_code != 0
    assert result.metadata["result_present"] is False


@both
async def test_a_program_that_runs_too_long_is_ended(case: Case, provider: SandboxProvider, language: str) -> None:
    result = await run(provider, SLEEP[languages(case, language)], language, seconds=1)
    assert (result.metadata["status"], result.metadata["error_code"]) == ("timeout", "SB005")
    assert result.exit_code != 0
    assert result.execution_time > 0.5
    assert result.metadata["result_present"] is False


async def test_programs_at_the_same_time_do_not_mix(provider: SandboxProvider) -> None:
    names = [f"n{number}" for number in range(3)]
    results = await asyncio.gather(*(run(provider, PRINT["python"], name=name) for name in names))
    assert [value(result) for result in results] == names
    assert [result.stdout.strip() for result in results] == [f"out of {name}" for name in names]


async def test_files_that_a_program_leaves_come_back(case: Case, provider: SandboxProvider) -> None:
    if not case.artifacts:
        pytest.skip("this provider has no artifacts")
    code = """
from pathlib import Path
def main():
    there = Path("artifacts")
    there.mkdir(exist_ok=True)
    (there / "table.csv").write_text("a,b\\n")
    (there / "plot.PNG").write_bytes(b"\\x89PNG")
    (there / ".hidden.csv").write_text("x")
    (there / "empty.csv").write_text("")
    (there / "program.sh").write_text("x")
"""
    found = {each["name"]: each for each in (await run(provider, code)).metadata["artifacts"]}
    assert set(found) == {"table.csv", "plot.PNG"}
    assert base64.b64decode(found["table.csv"]["content_b64"]) == b"a,b\n"
    assert (found["plot.PNG"]["mime_type"], found["plot.PNG"]["size"]) == ("image/png", 4)
    assert (await run(provider, ECHO["python"])).metadata["artifacts"] == []

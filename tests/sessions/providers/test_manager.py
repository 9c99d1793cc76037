"""The settings decide at once which provider runs a program, and no run is lost during a change."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from sessions.model.errors import (
    BackendUnavailable,
    ConnectionFailed,
    InvalidRequest,
    KernelDied,
    NotInitialized,
    QuotaExceeded,
    SessionError,
    SettingsUnreadable,
    StartFailed,
)
from sessions.model.tenant_limits import OwnLimits
from sessions.programs.program import Artifact, Ending, Outcome, Program, Returned
from sessions.providers import active
from sessions.providers.base import ExecutionResult
from sessions.providers.manager import ProviderManager, Rules
from sessions.providers.store import ProviderStore
from sessions.session.services import SessionServices
from tests.fakes import FakeBackend, until, world_over
from tests.sessions.providers.fakes import SECRET, Behaviour, FakeProvider, Unsafe

SCHEMA = FakeProvider.get_config_schema()


class OwnRunner:
    """Runs nothing, and returns the tenant and the code as output."""

    def __init__(self) -> None:
        self.error: SessionError | None = None
        #: timeout of the last program
        self.timeout: float | None = None

    async def run(self, tenant: str, program: Program) -> Outcome:
        await asyncio.sleep(0)
        self.timeout = program.timeout
        if self.error is not None:
            raise self.error
        return Outcome(Ending.OK, f"own {tenant} {program.code}", "", 0)


class Providers:
    """Three kinds of fake providers, and managers that choose among them."""

    def __init__(self, directory: Path) -> None:
        self.told = {name: Behaviour() for name in ("self_managed", "one", "other")}
        self.store = ProviderStore(directory)
        self.own = OwnRunner()
        self.managers: list[ProviderManager] = []

    def manager(self, services: SessionServices | None = None, **rules: Any) -> ProviderManager:
        makers = {name: told.make for name, told in self.told.items()}
        self.managers.append(ProviderManager(self.store, makers, Rules(**rules), own=self.own, services=services))
        return self.managers[-1]

    def use(self, name: str, **config: str) -> None:
        self.store.put(name, config, SCHEMA, activate=True)

    def all(self) -> list[FakeProvider]:
        return [made for told in self.told.values() for made in told.made]


@pytest.fixture
async def providers(tmp_path: Path) -> AsyncIterator[Providers]:
    """Check afterwards that all providers are closed and have no instances."""
    some = Providers(tmp_path)
    yield some
    for manager in some.managers:
        await manager.close()
    some.store.close()
    assert all(provider.closed and not provider.instances for provider in some.all() if provider.calls)


# -- one run ---------------------------------------------------------------------------------------------------


async def test_a_program_has_an_instance_of_its_own_which_is_destroyed(providers: Providers) -> None:
    providers.use("one", answer="42", api_key=SECRET)
    manager = providers.manager(timeout=7.5)
    result = await manager.execute_code("c", "python", None, {"a": 1}, tenant="acme", session="s")
    instance, *asked = result.metadata["asked"]
    assert asked == ["c", "python", 8, {"a": 1}]
    assert instance.startswith("acme:s:")
    assert "fell_back_from" not in result.metadata
    (provider,) = providers.all()
    assert provider.calls == ["initialize", "create_instance", "execute_code", "destroy_instance"]
    assert provider.config == {"answer": "42", "api_key": SECRET}
    await manager.execute_code("c")
    assert providers.all() == [provider]
    assert manager.get_provider_name() == "one"
    assert await manager.get_provider() is provider


@pytest.mark.parametrize(("asked", "most"), [(None, 5), (3, 3), (6, 5)])
async def test_a_program_runs_no_longer_than_its_tenant_may(
    providers: Providers, backend: FakeBackend, asked: float | None, most: float
) -> None:
    own = {"acme": OwnLimits("acme", timeout=5.0)}
    async with world_over(backend, own_limits=lambda tenant: own.get(tenant, OwnLimits(tenant))) as world:
        manager = providers.manager(world.services, timeout=7.5)
        await manager.run("acme", Program("c", "python", timeout=asked))
        assert providers.own.timeout == most
        await manager.run("umbrella", Program("c", "python", timeout=asked))
        assert providers.own.timeout == asked
        providers.use("one")
        for tenant, seconds in (("acme", most), ("umbrella", asked or 8)):
            result = await manager.execute_code("c", "python", asked, tenant=tenant)
            assert result.metadata["asked"][3] == seconds


@pytest.mark.parametrize("failing", ["execute_code", "destroy_instance"])
async def test_an_instance_is_destroyed_also_when_the_program_or_destroying_fails(
    providers: Providers, failing: str
) -> None:
    providers.use("one")
    providers.told["one"].failing[failing] = KernelDied()
    manager = providers.manager()
    if failing == "execute_code":
        with pytest.raises(KernelDied):
            await manager.execute_code("c")
    else:
        with structlog.testing.capture_logs() as logged:
            assert (await manager.execute_code("c")).exit_code == 0
        assert [entry["log_level"] for entry in logged if "instance" in entry["event"]] == ["warning"] * 2
    (provider,) = providers.all()
    assert provider.calls[-1] == "destroy_instance"
    assert not provider.instances


async def test_an_instance_is_destroyed_when_its_run_is_cancelled(providers: Providers) -> None:
    providers.use("one")
    providers.told["one"].go = asyncio.Event()
    manager = providers.manager()
    running = asyncio.get_running_loop().create_task(manager.execute_code("c"))
    await until(lambda: bool(providers.all() and "execute_code" in providers.all()[0].calls))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (provider,) = providers.all()
    assert provider.calls[-1] == "destroy_instance"
    assert not provider.instances


# -- choice of the provider ------------------------------------------------------------------------------------


async def test_without_any_choice_programs_run_here(providers: Providers) -> None:
    manager = providers.manager()
    assert manager.get_provider_name() == "self_managed"
    assert (await manager.run("acme", Program("c"))).stdout == "own acme c"
    (provider,) = providers.all()
    assert provider.calls == ["initialize"]


async def test_with_an_endpoint_programs_run_elsewhere(providers: Providers) -> None:
    providers.use("self_managed", endpoint="http://elsewhere", answer="42")
    assert (await providers.manager().run("acme", Program("c"))).stdout == "42\n"


async def test_a_provider_result_becomes_an_outcome(providers: Providers) -> None:
    artifact = {
        "name": "a.csv",
        "mime_type": "text/csv",
        "size": 3,
        "content_b64": base64.b64encode(b"1,2").decode(),
    }
    told = {"status": "ok", "result_present": True, "result_value": None, "artifacts": [artifact]}
    providers.use("one")
    providers.told["one"].result = ExecutionResult("out", "err", 0, 1.5, told)
    outcome = await providers.manager().run("acme", Program("c"))
    assert outcome == Outcome(Ending.OK, "out", "err", 0, Returned(None), (Artifact("a.csv", "text/csv", b"1,2"),), 1.5)


@pytest.mark.parametrize(
    ("told", "exit_code", "ending", "code"),
    [
        ({}, 0, Ending.OK, None),
        ({}, 3, Ending.ERROR, None),
        ({"status": "unheard of"}, 3, Ending.ERROR, None),
        ({"status": ["timeout"]}, 0, Ending.OK, None),
        ({"status": "error"}, 1, Ending.ERROR, None),
        ({"status": "timeout"}, -124, Ending.TIMEOUT, "SB005"),
        ({"status": "out_of_memory"}, -137, Ending.OUT_OF_MEMORY, "SB006"),
        ({"status": "died"}, -1, Ending.DIED, "SB010"),
        ({"status": "error", "error_code": "SB003"}, 1, Ending.ERROR, "SB003"),
        ({"status": "error", "error_code": "SB999"}, 1, Ending.ERROR, None),
    ],
    ids=str,
)
async def test_every_ending_becomes_an_outcome(
    providers: Providers, told: dict[str, Any], exit_code: int, ending: Ending, code: str | None
) -> None:
    providers.use("one")
    providers.told["one"].result = ExecutionResult("", "", exit_code, 0.1, told)
    outcome = await providers.manager().run("acme", Program("c"))
    assert (outcome.ending, outcome.exit_code, outcome.returned) == (ending, exit_code, None)
    assert (outcome.error.code if outcome.error else None) == code


async def test_a_provider_set_by_hand_is_used_until_the_settings_change(providers: Providers) -> None:
    providers.use("one", answer="1")
    manager, told = providers.manager(), Behaviour()
    mine = told.make()
    await mine.initialize({"answer": "mine"})
    manager.set_provider("mine", mine)
    assert manager.get_provider_name() == "mine"
    assert (await manager.execute_code("c")).stdout == "mine\n"
    providers.use("one", answer="2")
    assert (await manager.execute_code("c")).stdout == "2\n"
    await until(lambda: mine.closed)


# -- changes ---------------------------------------------------------------------------------------------------


async def test_a_change_by_any_process_applies_from_the_next_run(providers: Providers, tmp_path: Path) -> None:
    manager = providers.manager()
    providers.use("one", answer="1")
    assert (await manager.execute_code("c")).stdout == "1\n"
    another = ProviderStore(tmp_path)
    another.put("other", {"answer": "2"}, SCHEMA, activate=True)
    assert manager.get_provider_name() == "other"
    assert (await manager.execute_code("c")).stdout == "2\n"
    another.put("other", {"answer": "3"}, SCHEMA)
    another.close()
    assert (await manager.execute_code("c")).stdout == "3\n"
    await until(lambda: [provider.closed for provider in providers.all()] == [True, True, False])


async def test_unrelated_changes_keep_the_active_provider(providers: Providers) -> None:
    manager = providers.manager()
    providers.use("one", answer="1")
    await manager.execute_code("c")
    providers.store.put("other", {"answer": "2"}, SCHEMA)
    providers.use("one", answer="1")
    await manager.execute_code("c")
    assert len(providers.all()) == 1


async def test_a_run_goes_on_with_the_provider_it_began_with(providers: Providers) -> None:
    go = providers.told["one"].go = asyncio.Event()
    manager = providers.manager()
    providers.use("one", answer="1")
    old = [asyncio.get_running_loop().create_task(manager.execute_code("c")) for _ in range(3)]
    await until(lambda: bool(providers.all()) and providers.all()[0].calls.count("execute_code") == 3)
    providers.use("other", answer="2")
    assert (await manager.execute_code("c")).stdout == "2\n"
    first = providers.told["one"].made[0]
    assert not first.closed
    go.set()
    assert {result.stdout for result in await asyncio.gather(*old)} == {"1\n"}
    await until(lambda: first.closed)


async def test_switching_under_load_loses_nothing_and_mixes_nothing(providers: Providers) -> None:
    manager = providers.manager()
    providers.use("one", answer="0")
    known = {"0"}
    told: list[str] = []

    async def client() -> None:
        for _ in range(40):
            before = providers.store.get(providers.store.active() or "") or {}
            result = await manager.execute_code("c")
            # The answer of the settings at the begin of the run or of later ones, never of earlier ones.
            assert int(result.metadata["answer"]) >= int(before["answer"])
            assert result.stdout == f"{result.metadata['answer']}\n"
            told.append(str(result.metadata["answer"]))

    async def switch() -> None:
        for number in range(1, 30):
            known.add(str(number))
            providers.use(("one", "other")[number % 2], answer=str(number))
            for _ in range(number % 7):
                await asyncio.sleep(0)

    await asyncio.gather(switch(), *(client() for _ in range(20)))
    assert len(told) == 800
    assert set(told) <= known
    assert len(set(told)) > 5
    assert (await manager.execute_code("c")).stdout == "29\n"
    await until(lambda: [provider.closed for provider in providers.all()].count(False) == 1)


async def test_concurrent_runs_set_up_a_provider_once(providers: Providers) -> None:
    providers.use("one", answer="1")
    providers.told["one"].slow = 0.02
    manager = providers.manager()
    await asyncio.gather(*(manager.execute_code("c") for _ in range(20)))
    assert len(providers.all()) == 1


async def test_cancelling_a_run_during_setup_does_not_affect_the_others(providers: Providers) -> None:
    providers.use("one", answer="1")
    providers.told["one"].slow = 0.05
    manager = providers.manager()
    loop = asyncio.get_running_loop()
    leaving, staying = (loop.create_task(manager.execute_code("c")) for _ in range(2))
    await until(lambda: bool(providers.all()))
    leaving.cancel()
    assert (await staying).stdout == "1\n"
    assert leaving.cancelled()
    assert [provider.closed for provider in providers.all()] == [True, False]


# -- providers that cannot be used -----------------------------------------------------------------------------


async def test_a_failed_setup_is_retried_after_a_pause_or_a_change(
    providers: Providers, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = providers.told["one"]
    told.ready = False
    providers.use("one", answer="1")
    manager = providers.manager()
    for _ in range(3):
        with pytest.raises(ConnectionFailed, match="one"):
            await manager.execute_code("c")
    assert len(told.made) == 1
    told.ready = True
    providers.use("one", answer="2")
    assert (await manager.execute_code("c")).stdout == "2\n"
    told.ready = False
    providers.use("one", answer="3")
    with pytest.raises(ConnectionFailed):
        await manager.execute_code("c")
    told.ready = True
    with pytest.raises(ConnectionFailed):
        await manager.execute_code("c")
    now = asyncio.get_running_loop().time
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now() + active.PAUSE)
    assert (await manager.execute_code("c")).stdout == "3\n"


async def test_no_other_provider_is_used_silently(providers: Providers, tmp_path: Path) -> None:
    manager = providers.manager()
    providers.use("other", answer="old")
    await manager.execute_code("c")
    providers.use("nowhere")
    with pytest.raises(NotInitialized, match="nowhere"):
        await manager.execute_code("c")
    providers.use("one", api_key=SECRET)
    (tmp_path / "secrets.key").write_text("00" * 32)
    with pytest.raises(SettingsUnreadable):
        await manager.execute_code("c")
    providers.store.put("one", {"strange": "1"}, {"strange": SCHEMA["answer"]})
    with pytest.raises(InvalidRequest, match="strange"):
        await manager.run("acme", Program("c"))


# -- falling back ----------------------------------------------------------------------------------------------

UNAVAILABLE = [NotInitialized, ConnectionFailed, StartFailed, BackendUnavailable]


def not_ready(providers: Providers) -> None:
    providers.told["one"].ready = False


def not_healthy(providers: Providers) -> None:
    providers.told["one"].healthy = False


def no_instance(error: type[SessionError]) -> Callable[[Providers], None]:
    def change(providers: Providers) -> None:
        providers.told["one"].failing["create_instance"] = error()

    return change


@pytest.mark.parametrize("trouble", [not_ready, not_healthy, *map(no_instance, UNAVAILABLE)])
async def test_a_configured_fallback_runs_a_program_that_was_not_begun(
    providers: Providers, trouble: Callable[[Providers], None]
) -> None:
    providers.store.put("other", {"answer": "2"}, SCHEMA)
    providers.use("one", answer="1")
    trouble(providers)
    manager = providers.manager(fallback="other")
    with structlog.testing.capture_logs() as logged:
        result = await manager.execute_code("c")
    assert (result.stdout, result.metadata["fell_back_from"]) == ("2\n", "one")
    (entry,) = [entry for entry in logged if "takes over" in entry["event"]]
    assert (entry["provider"], entry["by"], entry["log_level"]) == ("one", "other", "warning")
    providers.told["one"] = Behaviour()
    assert manager.get_provider_name() == "one"


@pytest.mark.parametrize("trouble", [not_ready, *map(no_instance, UNAVAILABLE)])
async def test_without_a_fallback_no_other_provider_runs_the_program(
    providers: Providers, trouble: Callable[[Providers], None]
) -> None:
    providers.store.put("other", {"answer": "2"}, SCHEMA)
    providers.use("one", answer="1")
    trouble(providers)
    with pytest.raises(tuple(UNAVAILABLE)):
        await providers.manager().execute_code("c")
    assert not providers.told["other"].made


@pytest.mark.parametrize("error", [InvalidRequest, QuotaExceeded])
async def test_a_refusal_is_no_reason_to_ask_somebody_else(providers: Providers, error: type[SessionError]) -> None:
    providers.use("one")
    no_instance(error)(providers)
    with pytest.raises(error):
        await providers.manager(fallback="other").execute_code("c")
    assert not providers.told["other"].made


@pytest.mark.parametrize("error", UNAVAILABLE)
async def test_a_program_that_may_have_begun_is_never_run_again(
    providers: Providers, error: type[SessionError]
) -> None:
    providers.use("one")
    providers.told["one"].failing["execute_code"] = error()
    with pytest.raises(error):
        await providers.manager(fallback="other").execute_code("c")
    assert not providers.told["other"].made


@pytest.mark.parametrize("error", UNAVAILABLE)
async def test_the_fallback_also_replaces_our_own_kernels(providers: Providers, error: type[SessionError]) -> None:
    providers.store.put("other", {"answer": "2"}, SCHEMA)
    providers.own.error = error()
    assert (await providers.manager(fallback="other").run("acme", Program("c"))).stdout == "2\n"
    with pytest.raises(error):
        await providers.manager().run("acme", Program("c"))


async def test_when_both_providers_fail_the_error_of_the_fallback_is_raised(providers: Providers) -> None:
    providers.use("one")
    not_ready(providers)
    providers.told["other"].failing["create_instance"] = StartFailed("the second one")
    with pytest.raises(StartFailed, match="the second one"):
        await providers.manager(fallback="other").execute_code("c")


async def test_a_provider_does_not_fall_back_to_itself(providers: Providers) -> None:
    providers.use("one")
    no_instance(StartFailed)(providers)
    with pytest.raises(StartFailed):
        await providers.manager(fallback="one").execute_code("c")
    assert providers.all()[0].calls.count("create_instance") == 1


async def test_a_provider_without_a_sandbox_is_not_available_in_production(providers: Providers) -> None:
    made: list[FakeProvider] = []

    def unsafe() -> FakeProvider:
        made.append(Unsafe(Behaviour()))
        return made[-1]

    makers = {"one": providers.told["one"].make, "unsafe": unsafe}
    for production in (False, True):
        rules = Rules(fallback="unsafe", production=production)
        manager = ProviderManager(providers.store, makers, rules)
        providers.use("unsafe", answer="unsafe")
        if production:
            with pytest.raises(NotInitialized, match="unsafe"):
                await manager.execute_code("c")
        else:
            assert (await manager.execute_code("c")).stdout == "unsafe\n"
        providers.use("one")
        providers.told["one"].ready = False
        if production:
            with pytest.raises(NotInitialized, match="unsafe"):
                await manager.execute_code("c")
        else:
            providers.store.put("unsafe", {"answer": "taken over"}, SCHEMA)
            assert (await manager.execute_code("c")).stdout == "taken over\n"
        await manager.close()
        assert all(each.closed for each in made if each.calls)


async def test_close_waits_for_running_programs(providers: Providers) -> None:
    providers.use("one", answer="1")
    go = providers.told["one"].go = asyncio.Event()
    manager, loop = providers.manager(), asyncio.get_running_loop()
    running = loop.create_task(manager.execute_code("c"))
    await until(lambda: bool(providers.all() and "execute_code" in providers.all()[0].calls))
    closing = loop.create_task(manager.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go.set()
    await closing
    assert (await running).stdout == "1\n"
    assert providers.all()[0].closed

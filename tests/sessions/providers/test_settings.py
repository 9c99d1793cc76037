"""Admins' operations: no secret is shown, no unusable configuration is saved, and every trial ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessions.model.errors import ConnectionFailed, InvalidRequest, SettingsUnreadable, StartFailed
from sessions.providers import settings as module
from sessions.providers.base import ExecutionResult
from sessions.providers.settings import Deployment, ProviderSettings
from sessions.providers.store import ProviderStore
from tests.fakes import until
from tests.sessions.providers.fakes import SECRET, Behaviour, FakeProvider, Unsafe

MASKED = "••••6789"


class Desk:
    """Settings of three providers, one of which is no sandbox."""

    def __init__(self, directory: Path) -> None:
        self.told = Behaviour(result=ExecutionResult("TEST_PASSED\n", "", 0, 0.1))
        self.store = ProviderStore(directory)
        self.open = self.settings(production=False)
        self.production = self.settings(production=True)

    def settings(self, *, production: bool) -> ProviderSettings:
        async def is_own(url: str) -> bool:
            await asyncio.sleep(0)
            return url == "http://itself"

        makers = {
            "self_managed": self.told.make,
            "fake": self.told.make,
            "other": self.told.make,
            "unsafe": lambda: Unsafe(Behaviour()),
        }
        return ProviderSettings(self.store, makers, Deployment(production, is_own))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    one = Desk(tmp_path)
    yield one
    one.store.close()


def fields(refusal: pytest.ExceptionInfo[InvalidRequest]) -> set[str]:
    assert SECRET not in str(refusal.value.as_dict())
    return {problem["field"] for problem in refusal.value.details["fields"]}


async def test_a_secret_is_shown_masked_and_kept_when_the_mask_is_sent_back(desk: Desk) -> None:
    await desk.open.save("fake", {"api_key": SECRET, "answer": "1"}, activate=True)
    assert desk.open.shown("fake") == {"api_key": MASKED, "answer": "1"}
    await desk.open.save("fake", {"api_key": MASKED, "answer": "2"}, activate=False)
    assert desk.store.get("fake") == {"api_key": SECRET, "answer": "2"}
    await desk.open.save("fake", {"answer": "3"}, activate=False)
    assert desk.store.get("fake") == {"answer": "3"}


async def test_a_masked_secret_is_refused_for_another_endpoint_or_provider(desk: Desk) -> None:
    await desk.open.save("fake", {"api_key": SECRET}, activate=True)
    for sent in ({"api_key": MASKED, "endpoint": "http://thief"}, {"api_key": "••••0000"}):
        for attempt in (desk.open.save("fake", sent, activate=False), desk.open.test("fake", sent)):
            with pytest.raises(InvalidRequest) as refusal:
                await attempt
            assert fields(refusal) == {"api_key"}
    with pytest.raises(InvalidRequest):
        await desk.open.save("other", {"api_key": MASKED}, activate=False)
    assert desk.store.get("fake") == {"api_key": SECRET}


@pytest.mark.parametrize(
    ("sent", "wrong"),
    [({"strange": 1}, {"strange"}), ({"answer": 1, "api_key": True}, {"answer", "api_key"})],
    ids=["unknown", "of another type"],
)
async def test_an_invalid_configuration_is_not_saved(desk: Desk, sent: dict[str, object], wrong: set[str]) -> None:
    before = desk.store.version
    with pytest.raises(InvalidRequest) as refusal:
        await desk.open.save("fake", sent, activate=True)
    assert fields(refusal) == wrong
    assert desk.store.version == before


async def test_a_configuration_that_the_provider_or_gateway_refuses_is_not_saved(desk: Desk) -> None:
    with pytest.raises(InvalidRequest, match="that is no answer"):
        await desk.open.save("fake", {"answer": "impossible"}, activate=True)
    for attempt in (
        desk.open.save("self_managed", {"endpoint": "http://itself"}, activate=True),
        desk.open.test("self_managed", {"endpoint": "http://itself"}),
    ):
        with pytest.raises(InvalidRequest, match="back to this gateway") as refusal:
            await attempt
        assert fields(refusal) == {"endpoint"}
    for name, url in (("self_managed", "http://another"), ("fake", "http://itself")):
        await desk.open.save(name, {"endpoint": url}, activate=True)


async def test_only_an_existing_configured_provider_is_activated(desk: Desk) -> None:
    for name in ("nobody", "fake"):
        with pytest.raises(InvalidRequest):
            desk.open.activate(name)
    assert desk.store.active() is None
    await desk.open.save("fake", {}, activate=False)
    assert desk.store.active() is None
    desk.open.activate("fake")
    assert desk.open.active == "fake"
    for action in (desk.open.shown, desk.open.schema):
        with pytest.raises(InvalidRequest, match="nobody"):
            action("nobody")


async def test_a_provider_without_a_sandbox_is_not_activated_in_production(desk: Desk) -> None:
    with pytest.raises(InvalidRequest, match="no sandbox"):
        await desk.production.save("unsafe", {}, activate=True)
    await desk.production.save("unsafe", {}, activate=False)
    with pytest.raises(InvalidRequest, match="no sandbox"):
        desk.production.activate("unsafe")
    assert desk.store.active() is None
    desk.open.activate("unsafe")
    assert desk.store.active() == "unsafe"


async def test_unreadable_settings_are_repaired_by_saving_them_again(desk: Desk, tmp_path: Path) -> None:
    await desk.open.save("fake", {"api_key": SECRET}, activate=True)
    (tmp_path / "secrets.key").write_text("00" * 32)
    with pytest.raises(SettingsUnreadable):
        desk.open.shown("fake")
    desk.open.activate("fake")
    with pytest.raises(InvalidRequest):
        await desk.open.save("fake", {"api_key": MASKED}, activate=True)
    await desk.open.save("fake", {"api_key": SECRET}, activate=True)
    assert desk.open.shown("fake") == {"api_key": MASKED}


# -- trials ----------------------------------------------------------------------------------------------------


def left(desk: Desk) -> list[FakeProvider]:
    """Return the providers that were set up and are not closed."""
    return [made for made in desk.told.made if made.calls and not made.closed]


async def test_a_trial_runs_a_program_with_what_was_sent_and_keeps_nothing(desk: Desk) -> None:
    await desk.open.save("fake", {"api_key": SECRET}, activate=False)
    before = desk.store.version
    trial = await desk.open.test("fake", {"api_key": MASKED, "answer": "1"})
    assert (trial.success, trial.error) == (True, None)
    assert trial.latency >= 0
    (tried,) = (made for made in desk.told.made if made.calls)
    assert tried.config == {"api_key": SECRET, "answer": "1"}
    assert tried.calls == ["initialize", "create_instance", "execute_code", "destroy_instance"]
    assert (tried.closed, desk.store.version) == (True, before)


@pytest.mark.parametrize("what", ["create_instance", "execute_code"])
async def test_a_trial_that_fails_says_why_and_leaves_nothing(desk: Desk, what: str) -> None:
    desk.told.failing[what] = StartFailed("no room")
    trial = await desk.open.test("fake", {})
    assert (trial.success, trial.message, trial.error) == (False, "no room", desk.told.failing[what])
    assert left(desk) == []


@pytest.mark.parametrize("result", [ExecutionResult("TEST_PASSED", "", 1, 0.1), ExecutionResult("", "", 0, 0.1)])
async def test_a_program_that_does_not_do_as_it_should_is_no_success(desk: Desk, result: ExecutionResult) -> None:
    desk.told.result = result
    trial = await desk.open.test("fake", {})
    assert (trial.success, trial.error, trial.result) == (False, None, result)


async def test_a_trial_has_an_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE", 0.05)
    desk.told.go = asyncio.Event()
    trial = await desk.open.test("fake", {})
    assert not trial.success
    assert isinstance(trial.error, ConnectionFailed)
    await until(lambda: left(desk) == [])


async def test_a_trial_ends_when_its_caller_is_cancelled(desk: Desk) -> None:
    desk.told.go = asyncio.Event()
    asking = asyncio.get_running_loop().create_task(desk.open.test("fake", {}))
    await until(lambda: any("execute_code" in made.calls for made in desk.told.made))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: left(desk) == [])


async def test_a_provider_that_fails_its_trial_is_not_saved(desk: Desk) -> None:
    desk.told.ready = False
    with pytest.raises(ConnectionFailed, match="failed its test"):
        await desk.open.save("fake", {}, activate=True, trial=True)
    assert (desk.store.get("fake"), desk.store.active()) == (None, None)
    desk.told.ready = True
    await desk.open.save("fake", {}, activate=True, trial=True)
    assert desk.store.active() == "fake"

"""Templates: they outlive the gateway, and tenants do not share them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessions.model.errors import InvalidRequest, QuotaExceeded, SessionExists, TemplateNotFound
from sessions.store import templates as module
from sessions.store.templates import SIZE_MAX, Templates

DEFAULT = "always-there"
CONTENT = {"cpu": 2, "env": {"A": "ü"}, "nested": [1, {"b": None}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "templates.db"


@pytest.fixture
def templates(path: Path) -> Iterator[Templates]:
    templates = Templates(path, DEFAULT)
    yield templates
    templates.close()


def names(templates: Templates, tenant: str = "acme") -> list[str]:
    return [template.name for template in templates.of(tenant)]


# -- storage ---------------------------------------------------------------------------------------------------


def test_a_template_is_stored_unchanged(templates: Templates) -> None:
    made = templates.create("acme", "mine", CONTENT)
    assert templates.get("acme", "mine") == made
    assert (made.name, made.content, made.created_at) == ("mine", CONTENT, made.updated_at)
    assert templates.create("acme", "other", {}).id != made.id


def test_templates_outlive_the_gateway(path: Path) -> None:
    before = Templates(path, DEFAULT)
    made = before.create("acme", "mine", CONTENT)
    before.create("acme", "gone", {})
    before.delete("acme", "gone")
    changed = before.update("acme", "mine", {"changed": True})
    before.close()
    after = Templates(path, DEFAULT)
    assert names(after) == [DEFAULT, "mine"]
    assert after.get("acme", "mine") == changed
    assert changed.id == made.id
    after.close()


def test_templates_are_listed_oldest_first_after_the_default(templates: Templates) -> None:
    for name in ("b", "c", "a"):
        templates.create("acme", name, {})
    templates.update("acme", "b", {"new": 1})
    assert names(templates) == [DEFAULT, "b", "c", "a"]


def test_an_update_keeps_only_id_and_creation_time(templates: Templates, monkeypatch: pytest.MonkeyPatch) -> None:
    made = templates.create("acme", "mine", CONTENT)
    monkeypatch.setattr("time.time", lambda: made.created_at + 60)
    changed = templates.update("acme", "mine", {"cpu": 1})
    assert templates.get("acme", "mine") == changed
    assert (changed.id, changed.created_at, changed.content) == (made.id, made.created_at, {"cpu": 1})
    assert changed.updated_at == made.created_at + 60


def test_no_update_is_before_the_creation(templates: Templates, monkeypatch: pytest.MonkeyPatch) -> None:
    made = templates.create("acme", "mine", CONTENT)
    monkeypatch.setattr("time.time", lambda: made.created_at - 60)
    assert templates.update("acme", "mine", {}).updated_at == made.created_at
    assert templates.get("acme", "mine").updated_at == made.created_at


def test_a_deleted_template_is_gone_and_its_name_is_free(templates: Templates) -> None:
    made = templates.create("acme", "mine", CONTENT)
    assert templates.delete("acme", "mine") == made
    for attempt in (templates.get, templates.delete, lambda tenant, name: templates.update(tenant, name, {})):
        with pytest.raises(TemplateNotFound):
            attempt("acme", "mine")
    assert templates.create("acme", "mine", {}).id != made.id


# -- tenants ---------------------------------------------------------------------------------------------------


def test_tenants_do_not_share_templates(templates: Templates) -> None:
    mine = templates.create("acme", "same", {"of": "acme"})
    theirs = templates.create("umbrella", "same", {"of": "umbrella"})
    templates.update("umbrella", "same", {"of": "umbrella", "new": 1})
    assert templates.get("acme", "same") == mine
    templates.delete("acme", "same")
    assert templates.get("umbrella", "same").id == theirs.id
    assert names(templates) == [DEFAULT]


def test_another_tenants_template_looks_like_a_missing_one(templates: Templates) -> None:
    templates.create("acme", "theirs", CONTENT)
    for attempt in (templates.get, templates.delete, lambda tenant, name: templates.update(tenant, name, {})):
        refusals = []
        for name in ("theirs", "none"):
            with pytest.raises(TemplateNotFound) as refused:
                attempt("umbrella", name)
            refusals.append(refused.value.message.replace(name, "…"))
        assert refusals[0] == refusals[1]
    assert templates.get("acme", "theirs").content == CONTENT


# -- the default template --------------------------------------------------------------------------------------


def test_the_default_template_always_exists_and_cannot_be_changed(templates: Templates) -> None:
    default = templates.get("acme", DEFAULT)
    assert (default.content, templates.get("umbrella", DEFAULT)) == ({}, default)
    for attempt in (templates.delete, lambda tenant, name: templates.update(tenant, name, CONTENT)):
        with pytest.raises(InvalidRequest, match="cannot be changed"):
            attempt("acme", DEFAULT)
    with pytest.raises(SessionExists):
        templates.create("acme", DEFAULT, CONTENT)
    assert templates.get("acme", DEFAULT) == default


def test_the_default_template_has_the_same_id_in_every_database(templates: Templates, tmp_path: Path) -> None:
    other = Templates(tmp_path / "other.db", DEFAULT)
    assert other.get("acme", DEFAULT).id == templates.get("acme", DEFAULT).id
    other.close()


# -- bounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a b", "ü", "x" * 65, "a\n", "a:b"])
def test_an_invalid_name_is_refused(templates: Templates, name: str) -> None:
    with pytest.raises(InvalidRequest):
        templates.create("acme", name, {})
    assert names(templates) == [DEFAULT]


def test_an_existing_name_is_refused(templates: Templates) -> None:
    made = templates.create("acme", "mine", CONTENT)
    with pytest.raises(SessionExists) as refused:
        templates.create("acme", "mine", {})
    assert refused.value.details == {"template": "mine"}
    assert templates.get("acme", "mine") == made


def test_deleting_a_template_makes_room_for_another(templates: Templates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PER_TENANT", 2)
    templates.create("acme", "a", {})
    templates.create("acme", "b", {})
    with pytest.raises(QuotaExceeded):
        templates.create("acme", "c", {})
    templates.create("umbrella", "c", {})
    templates.delete("acme", "a")
    templates.create("acme", "c", {})
    assert names(templates) == [DEFAULT, "b", "c"]


def test_the_size_of_a_template_is_limited(templates: Templates) -> None:
    fits = {"a": "x" * (SIZE_MAX - len('{"a":""}'))}
    made = templates.create("acme", "fits", fits)
    too_large = {"a": fits["a"] + "x"}
    for attempt in (templates.create, templates.update):
        with pytest.raises(InvalidRequest, match="bytes"):
            attempt("acme", "fits" if attempt == templates.update else "new", too_large)
    assert templates.of("acme")[1:] == [made]


def test_only_their_user_can_read_the_templates(path: Path) -> None:
    path.touch(0o644)
    templates = Templates(path, DEFAULT)
    templates.create("acme", "mine", CONTENT)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes.pop("templates.db") == 0o600
    assert modes, "SQLite keeps newer data in files beside the database"
    assert set(modes.values()) == {0o600}
    templates.close()

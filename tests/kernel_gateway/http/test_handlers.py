"""The common part of all dialects: every error has a status, a unique code, a message and a resolution."""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus

import pytest
from tornado.web import HTTPError

import kernel_gateway.errors
import sessions.model.errors
from kernel_gateway.dialects.native.models import CreateSession, Execute, Failure
from kernel_gateway.errors import STATUS, InternalError, MethodNotAllowed, NoSuchRoute, TooLarge
from kernel_gateway.http.handlers import RETRY_AFTER, _as_session_error, _host_name
from kernel_gateway.http.request_body import validated
from sessions.model.errors import InvalidRequest, KernelDied, SessionError


def below(error: type[SessionError]) -> set[type[SessionError]]:
    """Return all subclasses of an error."""
    return {kind for child in error.__subclasses__() for kind in {child} | below(child)}


ERRORS = sorted(below(SessionError), key=lambda error: error.code)


def test_every_error_has_a_status_and_nothing_else_has() -> None:
    assert set(STATUS) == set(ERRORS)
    assert len(ERRORS) >= 20


def test_every_error_is_defined_in_one_of_two_modules() -> None:
    assert {error.__module__ for error in ERRORS} == {sessions.model.errors.__name__, kernel_gateway.errors.__name__}


def test_codes_and_names_are_unique() -> None:
    for names in ([error.code for error in ERRORS], [error.__name__ for error in ERRORS]):
        assert [name for name, count in Counter(names).items() if count > 1] == []
    assert all(error.code.startswith("SB0") and len(error.code) == 5 for error in ERRORS)
    assert SessionError.code not in {error.code for error in ERRORS}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_says_what_happened_and_what_to_do(error: type[SessionError]) -> None:
    failure = Failure.model_validate({"error": error().as_dict()}).error
    assert (failure.code, failure.name) == (error.code, error.__name__)
    assert failure.message.endswith(".")
    assert failure.resolution.endswith(".")
    assert failure.message != SessionError().message


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_only_the_failures_of_a_cell_itself_have_the_status_200(error: type[SessionError]) -> None:
    ran = {"ExecutionTimeout", "OutOfMemory", "KernelDied"}
    assert (STATUS[error] is HTTPStatus.OK) == (error.__name__ in ran)
    assert STATUS[error] is HTTPStatus.OK or STATUS[error] >= HTTPStatus.BAD_REQUEST


def test_statuses_worth_a_retry_have_a_delay() -> None:
    assert set(RETRY_AFTER) == {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}
    assert min(RETRY_AFTER.values()) > 0


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (KernelDied(), 500, KernelDied),
        (HTTPError(404), 404, NoSuchRoute),
        (HTTPError(405), 405, MethodNotAllowed),
        (HTTPError(413), 413, TooLarge),
        (HTTPError(400, "a %s of the library", "word"), 400, InvalidRequest),
        (HTTPError(500), 500, InternalError),
        (RuntimeError("/srv/host/secret"), 500, InternalError),
        (None, 500, InternalError),
    ],
    ids=repr,
)
def test_any_exception_becomes_a_session_error(error: Exception | None, status: int, kind: type[SessionError]) -> None:
    failure = _as_session_error(error, status)
    assert type(failure) is kind
    assert "secret" not in failure.message
    assert "library" not in failure.message


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:8888", "localhost"),
        ("LocalHost", "localhost"),
        ("[::1]:8888", "::1"),
        ("[::1]", "::1"),
        ("evil.example:80:80", "evil.example:80"),
        ("localhost:", "localhost:"),
        ("", ""),
    ],
)
def test_the_host_name_is_read_from_a_host_header(host: str, name: str) -> None:
    assert _host_name(host) == name


def test_few_problems_of_a_body_are_named_and_many_are_counted() -> None:
    with pytest.raises(InvalidRequest, match="colour: ") as refusal:
        validated(Execute, {"code": "1", "colour": 1, "taste": 2})
    assert [problem["field"] for problem in refusal.value.details["fields"]] == ["colour", "taste"]
    with pytest.raises(InvalidRequest, match="code: Field required; cod: Extra inputs are not permitted"):
        validated(Execute, {"cod": "1"})
    with pytest.raises(InvalidRequest, match="body: Input should be an object"):
        validated(Execute, ["1"])
    with pytest.raises(InvalidRequest, match=r"limits\.memory: write a number of bytes"):
        validated(CreateSession, {"limits": {"memory": "lots"}})
    with pytest.raises(InvalidRequest, match="body: 1000 problems"):
        validated(Execute, {"code": "1"} | {f"field{number}": 1 for number in range(1000)})

"""The engine hangs, fails, breaks off and returns: running kernels are not disturbed, and the gateway recovers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from http import HTTPStatus

import pytest

from sessions.backends.docker.engine.breaker import FAILURES
from tests.attacks.vitals import wait_until
from tests.faults.conftest import Troubled
from tests.faults.health import (
    at_rest,
    create,
    end,
    error_code,
    event_loop_answers,
    meanwhile,
    nothing_is_left,
    recovers,
    refused_at_once,
)
from tests.faults.proxy import Fault

pytestmark = pytest.mark.engine

_names = itertools.count()
CREATE = "POST /containers/create"
START = "POST /containers/[0-9a-f]+/start"
INSPECT = "GET /containers/[0-9a-f]+/json"
ATTACH = "POST /containers/[0-9a-f]+/attach"
REMOVE = "DELETE /containers/.*"
EXEC = "POST /(containers/[0-9a-f]+/exec|exec/[0-9a-f]+/start)"
VOLUME = "DELETE /volumes/.*"
#: seconds that a call is left hanging
HELD = 1.0
#: calls other than the gateway's periodic ones, which do not depend on clients
CALLS_FOR_CLIENTS = r"(?!GET /(events|version|info|containers/json|volumes|images/.*|networks/.*)$).*"


def name() -> str:
    return f"fault-{next(_names)}"


def struck(troubled: Troubled) -> bool:
    return troubled.engine.rule is not None and troubled.engine.rule.struck > 0


@pytest.mark.parametrize(
    ("fault", "calls"),
    [
        (Fault.HANG, [CREATE, ATTACH, START, INSPECT]),
        (Fault.MUTE, [CREATE, START]),
        (Fault.ERROR, [CREATE, START]),
    ],
    ids=lambda value: value.value if isinstance(value, Fault) else "",
)
def test_a_failed_start_of_a_kernel_is_reported_and_leaves_nothing(
    troubled: Troubled, fault: Fault, calls: list[str]
) -> None:
    gateway = troubled.gateway
    with troubled.vitals.neighbour.calling(), event_loop_answers(gateway):
        for call in calls:
            session = name()
            troubled.engine.fail(fault, call)
            with meanwhile(functools.partial(create, gateway, session)) as outcome:
                wait_until(lambda: struck(troubled))
                if fault is not Fault.ERROR:
                    time.sleep(HELD)
                    assert not outcome, "it hangs"
                troubled.engine.heal()
            assert error_code(outcome[0]) == ("SB004" if (fault, call) == (Fault.ERROR, START) else "SB009")
            assert end(gateway, session).status_code == HTTPStatus.NOT_FOUND, "the session is not kept"
            at_rest(gateway, troubled.engine)
        nothing_is_left(gateway)
        recovers(gateway, name())
    nothing_is_left(gateway)


@pytest.mark.parametrize("calls", [REMOVE, VOLUME])
@pytest.mark.parametrize("fault", [Fault.HANG, Fault.ERROR])
def test_a_session_is_ended_though_the_engine_cannot_remove_it_yet(
    troubled: Troubled, calls: str, fault: Fault
) -> None:
    gateway, session = troubled.gateway, name()
    assert create(gateway, session).status_code == HTTPStatus.CREATED
    with troubled.vitals.neighbour.calling(), event_loop_answers(gateway):
        troubled.engine.fail(fault, calls)
        with meanwhile(lambda: end(gateway, session)) as outcome:
            wait_until(lambda: struck(troubled))
            assert gateway.call("GET", f"/v1/sessions/{session}").status_code == HTTPStatus.NOT_FOUND
            assert len(gateway.containers()) + (calls == VOLUME) == 2
            time.sleep(HELD)
            troubled.engine.heal()
        assert outcome[0].status_code == HTTPStatus.NO_CONTENT
        nothing_is_left(gateway)


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.ERROR])
def test_a_failed_file_operation_is_reported_and_the_session_continues(troubled: Troubled, fault: Fault) -> None:
    gateway, session = troubled.gateway, name()
    gateway.execute(session, "x = 42")
    with event_loop_answers(gateway):
        troubled.engine.fail(fault, EXEC)
        with meanwhile(lambda: gateway.call("PUT", f"/v1/sessions/{session}/files/a", data=b"x" * 1000)) as outcome:
            wait_until(lambda: struck(troubled))
            assert gateway.text(session, "print(x)") == "42\n", "cells need no engine"
            troubled.engine.heal()
        assert error_code(outcome[0]) in {"SB003", "SB009"}
    written = gateway.call("PUT", f"/v1/sessions/{session}/files/a", data=b"x" * 1000)
    assert written.status_code == HTTPStatus.NO_CONTENT, written.text
    end(gateway, session)
    nothing_is_left(gateway)


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.CUT])
def test_a_kernels_end_is_noticed_without_the_engines_events(troubled: Troubled, fault: Fault) -> None:
    gateway, session = troubled.gateway, name()
    gateway.execute(session, "x = 42")
    rule = troubled.engine.fail(fault, "GET /events")
    troubled.engine.cut_all()
    with event_loop_answers(gateway):
        wait_until(lambda: rule.struck > 0)
        lost = gateway.execute(session, "import os; os.kill(1, 9); os._exit(1)", timeout=60)
        assert (lost["status"], lost["state"]) == ("died", "lost")
    troubled.engine.heal()
    assert gateway.execute(session, "print(1)")["state"] == "lost"
    end(gateway, session)
    nothing_is_left(gateway)


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.ERROR])
def test_without_an_engine_sessions_are_refused_at_once_until_it_is_back(troubled: Troubled, fault: Fault) -> None:
    gateway = troubled.gateway
    doomed = name()
    assert create(gateway, doomed).status_code == HTTPStatus.CREATED
    with troubled.vitals.neighbour.calling(), event_loop_answers(gateway):
        troubled.engine.fail(fault)
        troubled.engine.cut_all()
        wait_until(lambda: not gateway.ready(), seconds=60)
        for _ in range(20):
            refused_at_once(gateway)
        assert end(gateway, doomed).status_code == HTTPStatus.NO_CONTENT
        troubled.engine.heal()
        wait_until(gateway.ready, seconds=30)
        recovers(gateway, name())
    nothing_is_left(gateway)


def test_later_starts_do_not_wait_for_starts_that_hang(troubled: Troubled) -> None:
    """The engine answers all other calls, so only a new attempt shows when it has recovered."""
    gateway = troubled.gateway
    with troubled.vitals.neighbour.calling(), event_loop_answers(gateway):
        rule = troubled.engine.fail(Fault.HANG, CREATE)
        with contextlib.ExitStack() as waiting:
            for _ in range(FAILURES):
                waiting.enter_context(meanwhile(lambda: create(gateway, name())))
            wait_until(lambda: rule.struck >= FAILURES)
        refused_at_once(gateway)
        wait_until(lambda: not gateway.ready(), seconds=60)
        troubled.engine.heal()
        wait_until(gateway.ready, seconds=60)
        recovers(gateway, name())
    nothing_is_left(gateway)


def test_nothing_is_left_whichever_call_fails(troubled: Troubled) -> None:
    """A session's whole life in which the n-th call fails, as SQLite is tested with each allocation failing in turn."""
    gateway, n = troubled.gateway, 0
    with event_loop_answers(gateway):
        while True:
            n += 1
            session = name()
            rule = troubled.engine.fail(Fault.CUT, CALLS_FOR_CLIENTS, nth=n)
            error_code(create(gateway, session))
            error_code(gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": "1"}))
            error_code(gateway.call("PUT", f"/v1/sessions/{session}/files/a", data=b"x"))
            ended = end(gateway, session)
            assert ended.status_code in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND}, ended.text
            nothing_is_left(gateway)
            if not rule.struck:
                break
            assert n < 30
    assert n > 8, "a session's life has more calls"

"""Sessions that are copied, crash or sleep in trouble: they keep variables and files, or say that they are lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any

import requests

from tests.attacks.vitals import wait_until
from tests.faults.life import step
from tests.gateways import Gateway, text_of

#: begins trouble, and ends it
Trouble = Callable[[], AbstractContextManager[None]]
Life = Callable[[Gateway, str, Trouble], None]
#: what a reply says of variables that are there
THERE = {"preserved", "rolled_back"}


def sets(number: int) -> dict[str, Any]:
    """Return a cell that sets the variable and the file to a number."""
    return {"code": f"x = {number}\nprint(open('f', 'w').write(str(x)))"}


def returns(gateway: Gateway, session: str, trouble: Trouble) -> None:
    """Take a checkpoint, return to an earlier one, and branch from it; each in trouble."""
    take, branch = step(gateway, session), f"{session}-b"
    gateway.execute(session, **sets(1))
    assert take("POST", "/checkpoints", json={"name": "one"}).ok
    gateway.execute(session, **sets(2))
    with trouble():
        take("POST", "/checkpoints", json={"name": "two"})
    assert kept(gateway, session, 2)
    with trouble():
        back = take("POST", "/rollback", json={"to": "one"})
    assert kept(gateway, session, 1 if back.ok else 2)
    with trouble():
        branched = take("POST", "/branch", json={"as": branch, "from": "one"})
    if branched.ok:
        assert kept(gateway, branch, 1)
        end(gateway, branch)
    assert kept(gateway, session, 1 if back.ok else 2)
    end(gateway, session)


def crashes(gateway: Gateway, session: str, trouble: Trouble) -> None:
    """Crash in trouble with a checkpoint from before each cell."""
    take = step(gateway, session)
    take("POST", of="/v1/sessions", json={"name": session, "checkpoints": "auto"})
    gateway.execute(session, **sets(1))
    with trouble():
        crashed = take("POST", "/execute", json={"code": "x = 2; import os; os._exit(1)"})
    told = crashed.json()["state"]
    assert told in {"rolled_back", "lost"}, crashed.text
    assert kept(gateway, session, 1) is (told == "rolled_back")
    end(gateway, session)


def sleeps(gateway: Gateway, session: str, trouble: Trouble) -> None:
    """Fall asleep and wake in trouble."""
    take = step(gateway, session)
    take("POST", of="/v1/sessions", json={"name": session, "on_idle": "sleep", "idle_timeout": 0.5})

    def shown() -> dict[str, Any]:
        told: dict[str, Any] = gateway.call("GET", f"/v1/sessions/{session}").json()
        return told

    gateway.execute(session, **sets(1))
    with trouble():
        wait_until(lambda: shown()["state"] == "asleep" or bool(shown()["sleep_problem"]), shown)
        woken = take("POST", "/execute", json={"code": "x"})
    assert not woken.ok or there(woken), woken.text
    assert kept(gateway, session, 1)
    end(gateway, session)


LIVES: dict[str, Life] = {"returns": returns, "crashes": crashes, "sleeps": sleeps}


def there(answer: requests.Response) -> bool:
    """Return whether a cell ran, and its session still had its variables."""
    return answer.ok and answer.json()["state"] in THERE


def kept(gateway: Gateway, session: str, number: int) -> bool:
    """Return whether a session's variable and file have a number; otherwise they must be lost."""
    reply = gateway.execute(session, "print(x, open('f').read())")
    if reply["state"] not in THERE or "NameError" in text_of(reply):
        assert "NameError" in text_of(reply), reply
        return False
    assert text_of(reply) == f"{number} {number}\n", reply
    return True


def end(gateway: Gateway, session: str) -> None:
    """End a session."""
    assert gateway.call("DELETE", f"/v1/sessions/{session}").status_code == HTTPStatus.NO_CONTENT

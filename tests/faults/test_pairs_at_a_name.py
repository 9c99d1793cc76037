"""Clients that come to one name at once get one session or sandbox, whatever they ask for and in which dialect.

As in `test_pairs.py`, with a real engine and over HTTP. Here the name is free at first, or its session sleeps.
"""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import requests

from tests.attacks.vitals import wait_until
from tests.faults.health import nothing_is_left
from tests.gateways import Gateway, gateway, text_of
from tests.kernel_gateway.calls import metric
from tests.kernel_gateway.e2b import Box, control

pytestmark = pytest.mark.engine

#: seconds by which the second step is later: with the first, just after its begin, or while a kernel starts
LATE = (0.0, 0.02, 0.3)
#: sessions and sandboxes that a tenant may have, and how many are free while only the origin of the branches exists
QUOTA = 10
FREE = QUOTA - 1
#: name of the session from which others are branched
ORIGIN = "origin"
#: idle seconds after which a session may sleep
IDLE = 0.05
#: seconds until sessions sleep
SOON = 120.0
#: prints whether the variable exists, and whether the file that a step writes exists
LOOKS = "import pathlib; print('x' in globals(), pathlib.Path('f').exists())"
#: allowed refusals: the session does not exist, exists already, or the tenant has as many as it may have
ABSENT, EXISTS, FULL = (404, "SB011"), (409, "SB012"), (429, "SB008")
#: what is said to a client whose file was under way when a restart replaced the container
CUT_OFF = (502, "SB003")


@dataclass
class Name:
    """A name to which clients come at once, and what they got."""

    gateway: Gateway
    name: str = field(default_factory=lambda: str(uuid.uuid4()))
    #: whether a sleeping session of this name has the variable
    sleeps: bool = False
    #: state of the variables that each cell's reply told, of the cells that ran
    told: list[str] = field(default_factory=list)
    #: the steps that were served, and the refusals
    served: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)

    @property
    def path(self) -> str:
        """Path of the session."""
        return f"/v1/sessions/{self.name}"

    def comes(self, step: str, moment: float) -> None:
        """Take a step at the given time; each client has its own connection."""
        with requests.Session() as http:
            mine = replace(self.gateway, http=http)
            time.sleep(max(0.0, moment - time.monotonic()))
            response = STEPS[step](mine, self.name)
        if not response.ok:
            body = response.json()
            self.refused[response.status_code, body["error"]["code"] if "error" in body else body["message"]] += 1
            return
        self.served[step] += 1
        if step == "execute":
            self.hear(response.json())

    def hear(self, reply: dict[str, Any]) -> bool:
        """Check that a reply says the truth about the variables; return whether the cell has ended by itself."""
        assert reply["status"] in {"ok", "died"}, reply  # its kernel may have been replaced while it ran
        self.told.append(reply["state"])
        if reply["status"] == "ok" and reply["state"] in {"new", "restarted", "lost"}:
            assert text_of(reply).startswith("False"), reply
        return bool(reply["status"] == "ok")

    def sleep(self) -> None:
        """Make the session of this name, set its variable, and let it sleep."""
        made = {"name": self.name, "on_idle": "sleep", "idle_timeout": IDLE}
        assert self.gateway.call("POST", "/v1/sessions", json=made).status_code == 201
        self.gateway.execute(self.name, "x = 1")
        self.sleeps = True

    def check_outcome(self) -> None:
        """Check that there is one session, that what was served was done, and that each loss was told."""
        seen = (self.served, self.refused, self.told)
        assert self.refused.keys() <= {ABSENT, EXISTS, CUT_OFF}, seen
        assert self.refused[CUT_OFF] <= min(self.served["restart"], 1), seen
        made = sum(self.served[step] for step in ("create", "branch", "branch from"))
        assert made <= (not self.sleeps), seen
        if not self.sleeps and not self.served:
            assert self.gateway.call("GET", self.path).status_code == 404, seen
            return
        while not self.hear(last := self.gateway.execute(self.name, LOOKS)):
            pass
        held, written = (word == "True" for word in text_of(last).split())
        began = self.sleeps or self.served["branch"] or self.served["branch from"]
        assert held is (bool(began) and not self.served["restart"]), seen
        assert written or not self.served["file"], seen
        assert ("restarted" in self.told) is bool(self.served["restart"]), seen
        assert "lost" not in self.told, seen
        assert "new" not in self.told or not began, seen
        assert self.gateway.execute(self.name, "")["state"] == "preserved", seen


def _post(path: str, **body: Any) -> Callable[[Gateway, str], requests.Response]:
    def post(serving: Gateway, name: str) -> requests.Response:
        return serving.call(
            "POST", path.format(name), json={key: text.replace("{}", name) for key, text in body.items()}
        )

    return post


#: the steps by name
STEPS: dict[str, Callable[[Gateway, str], requests.Response]] = {
    "create": _post("/v1/sessions", name="{}"),
    "branch": _post(f"/v1/sessions/{ORIGIN}/branch", **{"as": "{}"}),
    "branch from": _post(f"/v1/sessions/{ORIGIN}/branch", **{"as": "{}", "from": "moment"}),
    "execute": _post("/v1/sessions/{}/execute", code=LOOKS),
    "file": lambda serving, name: serving.call("PUT", f"/v1/sessions/{name}/files/f", data=b"f"),
    "Jupyter start": _post("/api/kernels", kernel_id="{}"),
    "restart": _post("/v1/sessions/{}/restart"),
}


@dataclass(frozen=True)
class Stage:
    """The gateway of these tests, with the neighbour's session and the origin of the branches."""

    gateway: Gateway

    def sessions(self) -> list[dict[str, Any]]:
        """Return alice's sessions, those of sandboxes also."""
        found: list[dict[str, Any]] = self.gateway.call("GET", "/v1/sessions").json()["sessions"]
        return found

    def sandboxes(self) -> list[dict[str, Any]]:
        """Return alice's sandboxes."""
        found: list[dict[str, Any]] = control(self.gateway, "GET", "/v2/sandboxes").json()
        return found

    def expected(self) -> int:
        """Return how many containers her sessions and sandboxes should have."""
        awake = [session for session in self.sessions() if session["state"] not in {"asleep", "dead"}]
        return len(awake) + len(self.sandboxes())  # that of a paused one stands still

    def check(self) -> None:
        """Check that each container belongs to a session or sandbox, and that the quota is kept."""
        assert len(self.sessions()) + len(self.sandboxes()) <= QUOTA
        wait_until(
            lambda: len(self.gateway.containers()) == self.expected(),
            lambda: (self.sessions(), self.gateway.containers()),
        )
        assert metric(self.gateway, "kernel_gateway_strays_total") == 0

    def clear(self) -> None:
        """End all but the origin."""
        for session in self.sessions():
            if session["name"] != ORIGIN:
                assert self.gateway.call("DELETE", f"/v1/sessions/{session['name']}").status_code in {204, 404}
        for box in self.sandboxes():
            assert control(self.gateway, "DELETE", f"/sandboxes/{box['sandboxID']}").status_code == 204


@pytest.fixture(scope="module")
def shared(network: str) -> Iterator[Stage]:
    """The gateway of these tests, which takes checkpoints."""
    settings: dict[str, Any] = {"memory": "256m", "disk": "16m", "golden_images": "auto"}
    settings |= {"max_concurrent_per_tenant": "60", "max_sessions_per_tenant": str(QUOTA)}
    with gateway("docker", network=network, **settings) as serving:
        serving.wait_for_sleep()
        serving.execute(ORIGIN, "x = 1")
        taken = serving.call("POST", f"/v1/sessions/{ORIGIN}/checkpoints", json={"name": "moment"})
        assert taken.status_code == 201, taken.text
        yield Stage(serving)


@pytest.fixture
def stage(shared: Stage) -> Iterator[Stage]:
    """The same gateway; after each test only the origin is left."""
    yield shared
    shared.check()
    shared.clear()
    nothing_is_left(shared.gateway)
    assert not shared.gateway.errors()
    assert shared.gateway.execute(ORIGIN, "print(x)")["outputs"][0]["text"] == "1\n"


def at_once(*calls: Callable[[], object]) -> None:
    """Make all calls at once."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def names(stage: Stage, number: int, *, asleep: bool) -> list[Name]:
    """Return free names, or those of sleeping sessions."""
    found = [Name(stage.gateway) for _ in range(number)]
    if asleep:
        at_once(*(name.sleep for name in found))
        wait_until(
            lambda: sum(session["state"] == "asleep" for session in stage.sessions()) == number, stage.sessions, SOON
        )
    return found


@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("asleep", [False, True], ids=["free", "asleep"])
def test_two_clients_at_once_at_one_name_get_one_session(stage: Stage, first: str, *, asleep: bool) -> None:
    met = names(stage, len(STEPS), asleep=asleep)
    now = time.monotonic() + 0.1
    steps: list[Callable[[], object]] = []
    for number, (name, second) in enumerate(zip(met, STEPS, strict=True)):
        steps += [
            partial(name.comes, first, now),
            partial(name.comes, second, now + LATE[number % len(LATE)]),
        ]
    at_once(*steps)
    stage.check()
    at_once(*(name.check_outcome for name in met))
    stage.check()


@pytest.mark.parametrize("asleep", [False, True], ids=["free", "asleep"])
def test_all_clients_at_once_at_one_name_get_one_session(stage: Stage, *, asleep: bool) -> None:
    met = names(stage, 3, asleep=asleep)
    now = time.monotonic() + 0.2
    at_once(*(partial(name.comes, step, now) for name in met for step in [*STEPS, "branch", "execute"]))
    stage.check()
    at_once(*(name.check_outcome for name in met))


# -- sandboxes, each with an id of its own ---------------------------------------------------------------------


#: in place of a status: the connection was cut. So E2B's clients are told that the sandbox which they use has ended
CUT = 0


@dataclass
class BoxId:
    """The id of a sandbox, to which clients come at once, and what they got."""

    gateway: Gateway
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    answers: list[tuple[str, int]] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The id that the idempotency key gives."""
        return base64.b32encode(hashlib.sha256(f"alice:{self.key}".encode()).digest())[:20].decode().lower()

    def comes(self, step: str, moment: float) -> None:
        """Take a step at the given time; each client has its own connection."""
        with requests.Session() as http:
            mine = replace(self.gateway, http=http)
            time.sleep(max(0.0, moment - time.monotonic()))
            try:
                response = BOX_STEPS[step](mine, self)
            except requests.ConnectionError:
                self.answers.append((step, CUT))
                return
        self.answers.append((step, response.status_code))
        ended = response.status_code == 503 and "SB013" in response.text  # it was killed before it had started
        assert ended or response.status_code in {200, 201, 204, 404, 409, *GONE.get(step, ())}, (step, response.text)
        if step == "create" and response.ok:
            assert response.json()["sandboxID"] == self.id


def _create(serving: Gateway, box: BoxId) -> requests.Response:
    body = {"templateID": "base", "timeout": 300}
    return control(serving, "POST", "/v2/sandboxes", headers={"Idempotency-Key": box.key}, json=body)


def _connect(serving: Gateway, box: BoxId) -> requests.Response:
    return control(serving, "POST", f"/v2/sandboxes/{box.id}/connect", json={"timeout": 300})


def _run(serving: Gateway, box: BoxId) -> requests.Response:
    told = _connect(serving, box)
    if not told.ok:
        return told
    return Box(serving, box.id, told.json()["envdAccessToken"]).call("POST", "/execute", json={"code": "1"})


#: further answers of a sandbox that is killed or paused while it is used: E2B's clients read 502 so
GONE = {"run": (502,)}
BOX_STEPS: dict[str, Callable[[Gateway, BoxId], requests.Response]] = {
    "create": _create,
    "connect": _connect,
    "run": _run,
    "pause": lambda serving, box: control(serving, "POST", f"/sandboxes/{box.id}/pause"),
    "kill": lambda serving, box: control(serving, "DELETE", f"/sandboxes/{box.id}"),
}


@pytest.mark.parametrize("first", BOX_STEPS)
@pytest.mark.parametrize("exists", [False, True], ids=["free", "exists"])
def test_two_clients_at_once_at_one_sandbox_get_one_or_none(stage: Stage, first: str, *, exists: bool) -> None:
    for seconds in (list(BOX_STEPS)[:3], list(BOX_STEPS)[3:]):
        together = [BoxId(stage.gateway) for _ in seconds]
        if exists:
            at_once(*(partial(box.comes, "create", 0.0) for box in together))
        now = time.monotonic() + 0.1
        calls: list[Callable[[], object]] = []
        for number, (box, second) in enumerate(zip(together, seconds, strict=True)):
            calls += [partial(box.comes, first, now), partial(box.comes, second, now + LATE[number])]
        at_once(*calls)
        stage.check()
        there = [box["sandboxID"] for box in stage.sandboxes()]
        assert len(there) == len(set(there))
        for box in together:
            made = exists or "create" in dict(box.answers)
            killed = ("kill", 204) in box.answers
            cut = {step for step, status in box.answers if status == CUT}
            assert not cut or (cut == {"run"} and (killed or ("pause", 204) in box.answers)), box.answers
            if not made or killed:
                assert made or box.id not in there, box.answers
            else:
                assert box.id in there, box.answers
        stage.clear()


# -- the quota -------------------------------------------------------------------------------------------------


def test_clients_at_once_at_many_names_pass_no_quota(stage: Stage) -> None:
    makes = [step for step in STEPS if step != "restart"]
    met = [Name(stage.gateway) for _ in range(3 * len(makes))]
    boxes = [BoxId(stage.gateway) for _ in range(6)]
    statuses: list[int] = []
    now = time.monotonic() + 0.2

    def box_comes(box: BoxId) -> None:
        time.sleep(max(0.0, now - time.monotonic()))
        with requests.Session() as http:
            statuses.append(_create(replace(stage.gateway, http=http), box).status_code)

    at_once(
        *(partial(name.comes, makes[number % len(makes)], now) for number, name in enumerate(met)),
        *(partial(box_comes, box) for box in boxes),
    )
    assert set(statuses) <= {201, 429}
    refused = sum((name.refused for name in met), Counter[tuple[int, str]]())
    assert refused.keys() == {FULL}
    assert sum(sum(name.served.values()) for name in met) + statuses.count(201) == FREE
    assert len(stage.sessions()) + len(stage.sandboxes()) == QUOTA

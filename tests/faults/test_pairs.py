"""Any two things that happen to one session at once leave it whole, with a real engine and over HTTP.

`tests/sessions/test_interleavings.py` tries the same pairs at every turn of the event loop, on kernels that follow a
script. Here the moments are coarse, but containers, volumes, sockets and the engine's events are real.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import docker
import pytest
import requests
from docker.errors import APIError

from kernel_gateway.app import CULL_INTERVAL
from sessions.records import UNSENT, Begin, End
from tests.attacks.cells import addresses
from tests.attacks.vitals import Neighbour, Vitals
from tests.faults.health import meanwhile, nothing_is_left
from tests.gateways import Gateway, gateway, text_of
from tests.kernel_gateway.accounts import accounts
from tests.kernel_gateway.wire import failure, until

pytestmark = pytest.mark.engine

#: seconds by which the second comes late: with the first, when that has just begun, and when most are under way
LATE = (0.0, 0.05, 0.3)
#: the same where a kernel is started, for more than a second: its container is made; it is there and has not answered
STARTING = (0.1, 0.6)
#: seconds by which a step comes later than the culler, more or less: when that looks stands in no answer
AROUND = (-0.3, 0.0, 0.3)
#: seconds that it takes to remove a container, more or less; and seconds after which it has looked for certain
REMOVAL = LOOKED = 0.5
#: seconds of rest after which the culler may end a session in those tests
IDLE = 0.05
#: a cell that runs when the second comes a little late, and has ended when it comes later
CELL = "import time; time.sleep(0.2)"
#: gives a session its variable, and tells where its container is reached
PREPARES = (
    "import pathlib, socket; x = 1; pathlib.Path('f').unlink(missing_ok=True); "
    "print(socket.gethostbyname(socket.gethostname()))"
)
#: tells whether the variable is there, and the file that a step writes
LOOKS = "import pathlib; print('x' in globals(), pathlib.Path('f').exists())"
#: kernels that are kept warm, as a gateway does by default
WARM = 1
#: what may be told to who comes at the wrong moment: there is no such session, there is one already, it was ended just
#: now; and of a file, that its container has ended
REFUSALS = {(404, "SB011"), (409, "SB012"), (503, "SB013")}
REFUSALS_OF_FILES = REFUSALS | {(502, "SB003")}

Json = dict[str, Any]


@dataclass
class Stage:
    """The gateway of these tests, and what its clients were told."""

    gateway: Gateway
    vitals: Vitals
    engine: docker.APIClient
    #: how the cells have ended that were answered
    heard: list[str] = field(default_factory=list)

    def ended(self) -> Counter[str]:
        """How alice's cells have ended by the audit, where each has one begin and one end."""
        until(lambda: all(len(records) > 1 for records in accounts(self.gateway.state_dir).values()))
        found: Counter[str] = Counter()
        for begin, end in accounts(self.gateway.state_dir).values():
            assert isinstance(begin, Begin)
            assert isinstance(end, End)
            found[end.outcome] += begin.tenant == "alice"
        return found

    def next_look(self) -> float:
        """When the culler looks at all sessions again: it rests when it has removed what it ends now."""
        self.gateway.call("POST", "/v1/sessions", json={"name": "herald", "idle_timeout": IDLE})
        until(lambda: self.gateway.call("GET", "/v1/sessions/herald").status_code == 404)
        return time.monotonic() + REMOVAL + CULL_INTERVAL


@dataclass
class Scene:
    """A session that has a variable, and what its clients were told of it."""

    stage: Stage
    name: str
    #: the engine's id of what it was prepared in
    container: str = ""
    replies: list[Json] = field(default_factory=list)
    #: steps that were served
    served: set[str] = field(default_factory=set)

    def ask(self, method: str, what: str = "", **options: Any) -> requests.Response:
        """Ask something of the session; the answer, which is true when it was served, or tells what a client can do."""
        response = self.stage.gateway.call(method, f"/v1/sessions/{self.name}{what}", **options)
        refusals = REFUSALS_OF_FILES if what.startswith("/files") else REFUSALS
        assert response.ok or failure(response) in refusals, response.text
        return response

    def make(self, **fields: Any) -> bool:
        """Ask for a new session of this name; whether it was made: there may be one."""
        response = self.stage.gateway.call("POST", "/v1/sessions", json={"name": self.name, **fields})
        assert response.ok or failure(response) in REFUSALS, response.text
        return response.ok

    def cell(self, code: str) -> Json:
        """Run a cell; its reply, which is empty when it was refused."""
        response = self.ask("POST", "/execute", json={"code": code})
        if not response.ok:
            return {}
        reply: Json = response.json()
        assert reply["status"] in {"ok", "interrupted", "died"}, reply
        assert (reply["state"] == "preserved") is (reply["state_reason"] is None), reply
        self.stage.heard.append(reply["status"])
        self.replies.append(reply)
        return reply

    def crash(self) -> bool:
        """Let somebody else kill the container; whether it was there."""
        try:
            self.stage.engine.kill(self.container)
        except APIError:
            return False
        return True

    def prepare(self) -> None:
        """Let there be the session and its variable."""
        address = text_of(self.cell(PREPARES)).strip()
        self.container = next(item["Id"] for item in self.stage.gateway.containers() if address in addresses(item))
        self.replies.clear()

    def comes(self, step: str, moment: float = 0.0) -> None:
        """Take a step when it is time for it."""
        time.sleep(max(0.0, moment - time.monotonic()))
        if STEPS[step](self):
            self.served.add(step)

    def both_come(self, first: str, second: str, late: float) -> None:
        """Take two steps, the second a little later than the first."""
        now = time.monotonic()
        with meanwhile(partial(self.comes, first, now)):
            self.comes(second, now + late)
        self.has_ended_well()

    def has_ended_well(self) -> None:
        """It takes cells. What was served was done, nothing else was lost, and what is lost was told, and only once."""
        while (last := self.cell(LOOKS))["status"] != "ok":
            assert last["status"] == "died", "it may have been sent before the kernel's end was known"
        held, written = (word == "True" for word in text_of(last).split())
        told = [reply["state_reason"] for reply in self.replies if reply["state"] != "preserved"]
        culled = any("was idle" in reason for reason in told)
        seen = (self.served, held, written, self.replies)
        assert held is not bool(told), seen
        assert held is not (culled or bool(self.served & COSTS_VARIABLES)), seen
        assert written or culled or "file" not in self.served or self.served & COSTS_FILES, seen
        again = self.cell("")
        assert again["state"] == "preserved" or "was idle" in again["state_reason"], seen
        until(lambda: self.ask("GET").json().get("state") == "idle")


#: what can happen; true when it has. No warm kernel fits a session that is created.
STEPS: dict[str, Callable[[Scene], object]] = {
    "create": lambda scene: scene.make(limits={"memory": "200m"}),
    "execute": lambda scene: scene.cell(CELL),
    "interrupt": lambda scene: scene.ask("POST", "/interrupt"),
    "restart": lambda scene: scene.ask("POST", "/restart"),
    "delete": lambda scene: scene.ask("DELETE"),
    "crash": Scene.crash,
    "file": lambda scene: scene.ask("PUT", "/files/f", data=b"f"),
}
COSTS_FILES = {"create", "delete", "crash"}
COSTS_VARIABLES = COSTS_FILES | {"restart"}
#: what takes a kernel away, and what starts another
STARTS = [("delete", "create"), ("crash", "execute"), ("crash", "restart"), ("crash", "file")]
SESSIONS = [f"pair-{number}" for number in range(len(LATE))]


@pytest.fixture(scope="module")
def shared(network: str) -> Iterator[Stage]:
    """The gateway of these tests, with sessions on it, and another tenant's."""
    settings = {"pool_size": str(WARM), "pool_max": str(WARM), "memory": "256m", "disk": "16m"}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(docker.from_env()))
        serving = stack.enter_context(gateway("docker", must_be_ready=True, network=network, **settings))
        for name in SESSIONS:
            serving.execute(name, "")
        yield Stage(serving, Vitals(serving, Neighbour(serving), containers=1 + WARM + len(SESSIONS)), client.api)


@pytest.fixture
def stage(shared: Stage) -> Iterator[Stage]:
    """The same; after each test there are the sessions' containers and no more, and what has run is written down."""
    before = shared.ended()
    shared.heard.clear()
    yield shared
    nothing_is_left(shared.gateway, containers=shared.vitals.containers)
    assert {**(shared.ended() - before), UNSENT: 0} == {**Counter(shared.heard), UNSENT: 0}
    shared.vitals.check()


def side_by_side(
    play: Callable[[Scene, float], None], stage: Stage, names: list[str], lates: tuple[float, ...]
) -> None:
    """Play all that can be late, each in a session of its own."""
    with ThreadPoolExecutor(len(lates)) as pool:
        list(pool.map(play, [Scene(stage, name) for name in names], lates))


@pytest.mark.parametrize("second", STEPS)
@pytest.mark.parametrize("first", STEPS)
def test_two_things_at_once(stage: Stage, first: str, second: str) -> None:
    def play(scene: Scene, late: float) -> None:
        scene.prepare()
        scene.both_come(first, second, late)

    side_by_side(play, stage, SESSIONS, LATE)


@pytest.mark.parametrize("second", STEPS)
@pytest.mark.parametrize(("before", "first"), STARTS)
def test_what_comes_while_a_kernel_starts(stage: Stage, before: str, first: str, second: str) -> None:
    def play(scene: Scene, late: float) -> None:
        scene.prepare()
        scene.comes(before)
        until(lambda: scene.ask("GET").json().get("state") in {"dead", None})
        scene.both_come(first, second, late)

    side_by_side(play, stage, SESSIONS, STARTING)


@pytest.mark.parametrize("step", STEPS)
def test_what_comes_when_the_culler_does(stage: Stage, step: str) -> None:
    look = stage.next_look()

    def play(scene: Scene, late: float) -> None:
        scene.make(idle_timeout=IDLE)
        scene.prepare()
        scene.comes(step, look + late)
        time.sleep(max(0.0, look + LOOKED - time.monotonic()))
        scene.has_ended_well()
        scene.ask("DELETE")

    side_by_side(play, stage, [f"idle-{late}" for late in AROUND], AROUND)

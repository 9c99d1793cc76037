"""Any two steps on one session at once leave it whole, with a real engine and over HTTP.

`tests/sessions/session/test_interleavings.py` tries the same pairs at every iteration of the event loop, on scripted
kernels.
Here the moments are coarse, but containers, volumes, sockets and the engine's events are real.
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
from sessions.store.records import UNSENT, Begin, End
from tests.attacks.cells import addresses
from tests.attacks.vitals import Neighbour, Vitals
from tests.faults.health import meanwhile, nothing_is_left
from tests.gateways import Gateway, gateway, text_of
from tests.kernel_gateway.accounts import accounts
from tests.kernel_gateway.calls import failure, until

pytestmark = pytest.mark.engine

#: seconds between the steps: the second starts with the first, just after its begin, or when most steps are under way
LATE = (0.0, 0.05, 0.3)
#: the same during the start of a kernel (over one second): its container is being made; it exists but has not answered
STARTING = (0.1, 0.6)
#: approximate seconds between the culler's check and a step: no answer shows the exact time of the check
AROUND = (-0.3, 0.0, 0.3)
#: approximate seconds to remove a container; and seconds after which the culler's check is certainly done
REMOVAL = LOOKED = 0.5
#: idle seconds after which the culler may end a session in these tests
IDLE = 0.05
#: a cell that still runs when the second step is a little late, and has ended when it is later
CELL = "import time; time.sleep(0.2)"
#: sets the session's variable, and prints the address of its container
PREPARES = (
    "import pathlib, socket; x = 1; pathlib.Path('f').unlink(missing_ok=True); "
    "print(socket.gethostbyname(socket.gethostname()))"
)
#: prints whether the variable exists, and whether the file that a step writes exists
LOOKS = "import pathlib; print('x' in globals(), pathlib.Path('f').exists())"
#: number of warm kernels, as by default
WARM = 1
#: allowed answers to a request at the wrong moment: the session does not exist, exists already, or has just ended; for
#: a file also: its container has ended
REFUSALS = {(404, "SB011"), (409, "SB012"), (503, "SB013")}
REFUSALS_OF_FILES = REFUSALS | {(502, "SB003")}

Json = dict[str, Any]


@dataclass
class Stage:
    """The gateway of these tests, and the results that its clients got."""

    gateway: Gateway
    vitals: Vitals
    engine: docker.APIClient
    #: statuses of the cells that were answered
    heard: list[str] = field(default_factory=list)

    def ended(self) -> Counter[str]:
        """Count the outcomes of alice's cells in the audit, where each cell has one begin and one end."""
        until(lambda: all(len(records) > 1 for records in accounts(self.gateway.state_dir).values()))
        found: Counter[str] = Counter()
        for begin, end in accounts(self.gateway.state_dir).values():
            assert isinstance(begin, Begin)
            assert isinstance(end, End)
            found[end.outcome] += begin.tenant == "alice"
        return found

    def next_look(self) -> float:
        """Return the time of the culler's next check: it rests after it has removed the session that it ends now."""
        self.gateway.call("POST", "/v1/sessions", json={"name": "herald", "idle_timeout": IDLE})
        until(lambda: self.gateway.call("GET", "/v1/sessions/herald").status_code == 404)
        return time.monotonic() + REMOVAL + CULL_INTERVAL


@dataclass
class Scene:
    """A session with a variable, and the results that its clients got."""

    stage: Stage
    name: str
    #: the engine's id of the container in which it was prepared
    container: str = ""
    replies: list[Json] = field(default_factory=list)
    #: steps that were served
    served: set[str] = field(default_factory=set)

    def ask(self, method: str, what: str = "", **options: Any) -> requests.Response:
        """Send a request for the session and return the response, which must be a success or an allowed refusal."""
        response = self.stage.gateway.call(method, f"/v1/sessions/{self.name}{what}", **options)
        refusals = REFUSALS_OF_FILES if what.startswith("/files") else REFUSALS
        assert response.ok or failure(response) in refusals, response.text
        return response

    def make(self, **fields: Any) -> bool:
        """Request a new session of this name; return whether it was made, as one may exist."""
        response = self.stage.gateway.call("POST", "/v1/sessions", json={"name": self.name, **fields})
        assert response.ok or failure(response) in REFUSALS, response.text
        return response.ok

    def cell(self, code: str) -> Json:
        """Run a cell and return its reply, which is empty when the cell was refused."""
        response = self.ask("POST", "/execute", json={"code": code})
        if not response.ok:
            return {}
        reply: Json = response.json()
        assert reply["status"] in {"ok", "interrupted", "died"}, reply
        assert (reply["state"] in {"new", "preserved"}) is (reply["state_reason"] is None), reply
        self.stage.heard.append(reply["status"])
        self.replies.append(reply)
        return reply

    def crash(self) -> bool:
        """Kill the container behind the gateway's back; return whether it existed."""
        try:
            self.stage.engine.kill(self.container)
        except APIError:
            return False
        return True

    def prepare(self) -> None:
        """Start the session and set its variable."""
        address = text_of(self.cell(PREPARES)).strip()
        self.container = next(item["Id"] for item in self.stage.gateway.containers() if address in addresses(item))
        self.replies.clear()

    def comes(self, step: str, moment: float = 0.0) -> None:
        """Take a step at the given time."""
        time.sleep(max(0.0, moment - time.monotonic()))
        if STEPS[step](self):
            self.served.add(step)

    def both_come(self, first: str, second: str, late: float) -> None:
        """Take two steps, the second a little later than the first."""
        now = time.monotonic()
        with meanwhile(partial(self.comes, first, now)):
            self.comes(second, now + late)
        self.check_outcome()

    def check_outcome(self) -> None:
        """Check that the session runs cells, that served steps were done, and that each loss was reported once."""
        while (last := self.cell(LOOKS))["status"] != "ok":
            assert last["status"] == "died", "the cell may have been sent before the kernel's end was known"
        held, written = (word == "True" for word in text_of(last).split())
        told = [reply["state_reason"] for reply in self.replies if reply["state"] in {"restarted", "lost"}]
        culled = any("was idle" in reason for reason in told)
        seen = (self.served, held, written, self.replies)
        assert held is not bool(told), seen
        assert held is not (culled or bool(self.served & COSTS_VARIABLES)), seen
        assert written or culled or "file" not in self.served or self.served & COSTS_FILES, seen
        again = self.cell("")
        assert again["state"] == "preserved" or "was idle" in again["state_reason"], seen
        until(lambda: self.ask("GET").json().get("state") == "idle")


#: the steps by name; each returns a true value when it was done. No warm kernel fits the session of "create".
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
#: pairs of a step that ends a kernel and a step that starts another
STARTS = [("delete", "create"), ("crash", "execute"), ("crash", "restart"), ("crash", "file")]
SESSIONS = [f"pair-{number}" for number in range(len(LATE))]


@pytest.fixture(scope="module")
def shared(network: str) -> Iterator[Stage]:
    """The gateway of these tests, with its sessions and one of another tenant."""
    settings = {"pool_size": str(WARM), "pool_max": str(WARM), "memory": "256m", "disk": "16m"}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(docker.from_env()))
        serving = stack.enter_context(gateway("docker", must_be_ready=True, network=network, **settings))
        for name in SESSIONS:
            serving.execute(name, "")
        yield Stage(serving, Vitals(serving, Neighbour(serving), containers=1 + WARM + len(SESSIONS)), client.api)


@pytest.fixture
def stage(shared: Stage) -> Iterator[Stage]:
    """The same gateway; after each test only the sessions' containers exist, and the audit lists all cells that ran."""
    before = shared.ended()
    shared.heard.clear()
    yield shared
    nothing_is_left(shared.gateway, containers=shared.vitals.containers)
    assert {**(shared.ended() - before), UNSENT: 0} == {**Counter(shared.heard), UNSENT: 0}
    shared.vitals.check()


def side_by_side(
    play: Callable[[Scene, float], None], stage: Stage, names: list[str], lates: tuple[float, ...]
) -> None:
    """Play the scene once for each delay, each time in a separate session."""
    with ThreadPoolExecutor(len(lates)) as pool:
        list(pool.map(play, [Scene(stage, name) for name in names], lates))


@pytest.mark.parametrize("second", STEPS)
@pytest.mark.parametrize("first", STEPS)
def test_two_steps_at_once_leave_the_session_whole(stage: Stage, first: str, second: str) -> None:
    def play(scene: Scene, late: float) -> None:
        scene.prepare()
        scene.both_come(first, second, late)

    side_by_side(play, stage, SESSIONS, LATE)


@pytest.mark.parametrize("second", STEPS)
@pytest.mark.parametrize(("before", "first"), STARTS)
def test_two_steps_during_a_start_leave_the_session_whole(stage: Stage, before: str, first: str, second: str) -> None:
    def play(scene: Scene, late: float) -> None:
        scene.prepare()
        scene.comes(before)
        until(lambda: scene.ask("GET").json().get("state") in {"dead", None})
        scene.both_come(first, second, late)

    side_by_side(play, stage, SESSIONS, STARTING)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_beside_the_culler_leaves_the_session_whole(stage: Stage, step: str) -> None:
    look = stage.next_look()

    def play(scene: Scene, late: float) -> None:
        scene.make(idle_timeout=IDLE)
        scene.prepare()
        scene.comes(step, look + late)
        time.sleep(max(0.0, look + LOOKED - time.monotonic()))
        scene.check_outcome()
        scene.ask("DELETE")

    side_by_side(play, stage, [f"idle-{late}" for late in AROUND], AROUND)

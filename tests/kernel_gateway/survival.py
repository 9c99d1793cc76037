"""What happens to sessions: the events of the table in docs/state.md of what survives what."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError

from sessions.backends.docker.profile import DISKS_LABEL
from tests import gateways
from tests.faults.proxy import Fault, proxy
from tests.gateways import Gateway
from tests.kernel_gateway.calls import until

#: the session as it begins and as it is changed: variable and file have the same value
WRITE = "import pathlib\nx = {0}\nprint(pathlib.Path('file').write_text('{0}'))\n"


@dataclass(frozen=True)
class Life:
    """A session, and the gateways that it may live in."""

    name: str
    shared: Gateway
    #: returns the gateway whose sessions can sleep
    with_sleep: Callable[[], Gateway]
    #: gateways of this session alone end with it
    stack: ExitStack
    state_dir: Path

    def own(self, isolation: str = "docker", *, golden_images: str = "off", keep_sessions: str = "false") -> Gateway:
        """Start a gateway for this session alone, the next one on the same state."""
        return self.stack.enter_context(
            gateways.gateway(
                isolation, state_dir=str(self.state_dir), golden_images=golden_images, keep_sessions=keep_sessions
            )
        )

    def begin(self, gateway: Gateway, **fields: Any) -> Gateway:
        """Make the session, and give variable and file the first value, by a cell that `retry` sends again."""
        made = gateway.call("POST", "/v1/sessions", json={"name": self.name, **fields})
        assert made.status_code == 201, made.text
        assert self.retry(gateway).json()["status"] == "ok"
        return gateway

    def retry(self, gateway: Gateway) -> Any:
        """Send the first cell, which has an idempotency key, perhaps again."""
        return self.ask(gateway, "POST", "/execute", {"code": WRITE.format(1), "idempotency_key": self.name})

    def change(self, gateway: Gateway, then: str = "", **fields: Any) -> dict[str, Any]:
        """Give variable and file the second value, and return the reply."""
        return gateway.execute(self.name, WRITE.format(2) + then, **fields)

    def ask(self, gateway: Gateway, method: str, what: str = "", body: Any = None) -> Any:
        return gateway.call(method, f"/v1/sessions/{self.name}{what}", json=body)

    def notebook(self, gateway: Gateway) -> list[str]:
        """Return the sources of the notebook's cells with code."""
        cells = self.ask(gateway, "GET", "/notebook").json()["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]

    def wait(self, gateway: Gateway, state: str) -> None:
        until(lambda: self.ask(gateway, "GET").json()["state"] == state)


#: what happens to a session, from its beginning on; returns the gateway that has it then
Event = Callable[[Life], Gateway]

# -- events ----------------------------------------------------------------------------------------------------


def cell(then: str, *, status: str, auto: bool = False, **fields: Any) -> Event:
    """A cell changes both, and then does something that ends it with this status."""

    def happens(life: Life) -> Gateway:
        gateway = life.begin(life.with_sleep(), checkpoints="auto") if auto else life.begin(life.shared)
        reply = life.change(gateway, then, **fields)
        assert reply["status"] == status, reply
        return gateway

    return happens


def interrupt(life: Life) -> Gateway:
    gateway = life.begin(life.shared)
    with ThreadPoolExecutor(1) as client:
        running = client.submit(life.change, gateway, "import time; time.sleep(300)", timeout=300)
        until(lambda: life.ask(gateway, "GET", "/files/file").text == "2")
        assert life.ask(gateway, "POST", "/interrupt").ok
        assert running.result()["status"] == "interrupted"
    return gateway


def rollback(life: Life) -> Gateway:
    gateway = life.begin(life.with_sleep())
    assert life.ask(gateway, "POST", "/checkpoints", {"name": "one"}).ok
    life.change(gateway)
    assert life.ask(gateway, "POST", "/rollback", {"to": "one"}).ok
    return gateway


def restart(life: Life) -> Gateway:
    gateway = life.begin(life.shared)
    life.change(gateway)
    assert life.ask(gateway, "POST", "/restart").ok
    return gateway


def fall_asleep(life: Life) -> Gateway:
    gateway = life.begin(life.with_sleep(), on_idle="sleep", idle_timeout=1)
    life.change(gateway)
    life.wait(gateway, "asleep")
    return gateway


def cull(life: Life) -> Gateway:
    gateway = life.begin(life.shared, on_idle="end", idle_timeout=1)
    life.change(gateway)
    until(lambda: life.ask(gateway, "GET").status_code == 404)
    return gateway


def end(life: Life) -> Gateway:
    gateway = life.begin(life.shared)
    life.change(gateway)
    assert life.ask(gateway, "DELETE").ok
    return gateway


def kill(isolation: str) -> Event:
    def happens(life: Life) -> Gateway:
        gateway = life.begin(life.own(isolation))
        life.change(gateway)
        gateway.process.kill()
        gateway.process.wait()
        return life.own(isolation)

    return happens


def stop(isolation: str, *, keep: bool) -> Event:
    def happens(life: Life) -> Gateway:
        gateway = life.begin(life.own(isolation, keep_sessions=str(keep)))
        life.change(gateway)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(60) == 0
        return life.own(isolation)

    return happens


def end_containers(gateway: Gateway) -> None:
    """End all that the engine runs for a gateway, as the engine's own end does."""
    labels = [f"{label}={gateway.instance}" for label in ("kernel-gateway.instance", DISKS_LABEL)]
    with contextlib.closing(docker.from_env()) as client:

        def running() -> list[Any]:
            return [each for label in labels for each in client.containers.list(filters={"label": label})]

        for container in running():
            with contextlib.suppress(APIError):  # the disks' helper ends on its own when its gateway has ended
                container.kill()
        until(lambda: not running())


def restart_engine(life: Life) -> Gateway:
    """The engine is away, and returns without containers. `tests/engine/test_fresh.py` restarts a real one."""
    engine = life.stack.enter_context(proxy())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine.url)  # for the gateway alone
        gateway = life.own()
    life.begin(gateway)
    life.change(gateway)
    engine.fail(Fault.REFUSE)
    engine.cut_all()
    end_containers(gateway)
    until(lambda: not gateway.ready())
    engine.heal()
    until(gateway.ready)
    life.wait(gateway, "dead")
    return gateway


def restart_machine(life: Life) -> Gateway:
    """Gateway and containers are gone. `tests/engine/test_fresh.py` takes away more."""
    gateway = life.begin(life.own())
    life.change(gateway)
    gateway.process.kill()
    gateway.process.wait()
    end_containers(gateway)
    return life.own()


def asleep_meanwhile(*, machine: bool) -> Event:
    """The gateway is killed while the session sleeps, or the whole machine is restarted."""

    def happens(life: Life) -> Gateway:
        gateway = life.own(golden_images="auto")
        gateway.wait_for_sleep()
        life.begin(gateway, on_idle="sleep", idle_timeout=1)
        life.change(gateway)
        life.wait(gateway, "asleep")
        gateway.process.kill()
        gateway.process.wait()
        if machine:
            end_containers(gateway)
        return life.own(golden_images="auto")

    return happens


#: code that ends its kernel, the status of its cell, and how long it may run
DEATHS: dict[str, tuple[str, str, float]] = {
    "out of memory": ("held = []\nwhile True: held.append(bytearray(8 * 2**20))", "died", 60),
    "exit": ("import os; os._exit(1)", "died", 60),
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died", 60),
    "no interrupt": (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "timeout",
        2,
    ),
}


def deaths(*, auto: bool) -> dict[str, Event]:
    return {
        name: cell(code, status=status, auto=auto, timeout=seconds) for name, (code, status, seconds) in DEATHS.items()
    }


#: the events of the rows that each table of the page has
EVERYWHERE: dict[str, dict[str, Event]] = {
    "an error, an interrupt, a timeout that the cell obeys": {
        "error": cell("1 / 0", status="error"),
        "interrupt": interrupt,
        "timeout": cell("import time; time.sleep(300)", status="timeout", timeout=2),
    },
    "the kernel dies: out of memory, `os._exit`, a crash, a cell that ignores interrupts": deaths(auto=False),
    "a restart that a client asked for": {"restart": restart},
}


def by_name(table: Iterable[str], events: Mapping[str, Mapping[str, Event]]) -> dict[str, tuple[str, Event]]:
    """Return the row and the event of each test, by the row's number in the table and the event's name."""
    return {
        f"{number} {name}": (row, event)
        for number, row in enumerate(table, 1)
        for name, event in events.get(row, {}).items()
    }

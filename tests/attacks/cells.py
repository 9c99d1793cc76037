"""An attacker: it runs hostile cells in its own session, and checks the responses."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.attacks import probes
from tests.figures import hold
from tests.gateways import Gateway, text_of

#: seconds after a cell's timeout to wait for its end
PATIENCE = 60.0
#: ignores interrupts and is ended with its kernel: the control for the lateness of any cell's end
STUBBORN = "import time\nwhile True:\n    try: time.sleep(1)\n    except BaseException: pass"
#: prefix of a probe's answer, which separates it from other text of the cell
MARK = "probe-answer:"

Json = dict[str, Any]


@dataclass(frozen=True)
class Ran:
    """The response of one streamed execution."""

    events: list[Json]
    #: seconds from the request to the end of its response
    seconds: float

    @property
    def result(self) -> Json:
        return self.events[-1]

    @property
    def status(self) -> str:
        return str(self.result["status"])

    @property
    def state(self) -> str:
        return str(self.result["state"])

    @property
    def error_code(self) -> str | None:
        return self.result["error"] and str(self.result["error"]["code"])

    @property
    def outputs(self) -> list[Json]:
        return [event["output"] for event in self.events if event["type"] == "output"]

    @property
    def text(self) -> str:
        return text_of({"outputs": self.outputs})


@dataclass(frozen=True)
class Attacker:
    """A tenant with one session."""

    gateway: Gateway
    session: str
    tenant: str = "alice"
    #: measures the seconds after a cell's deadline in which its end is expected; None: not checked
    late: Callable[[], float] | None = None

    def run(self, code: str, *, timeout: float = 20.0, **fields: Any) -> Ran:
        """Run a cell as a stream, which must end in time with exactly one result."""
        began = time.monotonic()
        response = self.gateway.call(
            "POST",
            f"/v1/sessions/{self.session}/execute",
            tenant=self.tenant,
            json={"code": code, "timeout": timeout, **fields},
            headers={"Accept": "application/x-ndjson"},
            timeout=timeout + PATIENCE,
        )
        ran = Ran([json.loads(line) for line in response.content.splitlines()], time.monotonic() - began)
        assert response.status_code == 200, response.text[:2000]
        assert [event["type"] for event in ran.events].count("result") == 1, ran.events[-3:]
        assert ran.events[-1]["type"] == "result"
        if self.late:
            hold("the end of a cell after its deadline", max(0.0, ran.seconds - timeout), self.late)
        return ran

    def lateness(self) -> float:
        """Return the seconds between the deadline and the end of a cell that ignores interrupts. The kernel is lost."""
        ran = self.run(STUBBORN, timeout=1.0)
        assert (ran.status, ran.state) == ("timeout", "lost"), ran.result
        return ran.seconds - 1.0

    def expect(self, status: str, code: str, **options: Any) -> Ran:
        """Run a cell that must end with the given status."""
        ran = self.run(code, **options)
        assert ran.status == status, (ran.result, ran.text[-2000:])
        return ran

    def text(self, code: str, **options: Any) -> str:
        """Run a cell that must succeed, and return its text."""
        return self.expect("ok", code, **options).text

    def probe(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run one of the probes in the session, and return its answer."""
        return answer_in(self.text(call_of(function, *arguments), **options))

    def still_works(self) -> None:
        """Check that the kernel is still the same, and runs cells."""
        ran = self.expect("ok", "print(6 * 7)")
        assert ran.text == "42\n"
        assert ran.state in {"new", "preserved"}, ran.result

    def works_again(self) -> Ran:
        """Check that the loss of the kernel is reported once, and that the session works after it."""
        first = self.expect("ok", "print(6 * 7)")
        assert (first.text, first.state) == ("42\n", "lost"), first.result
        self.still_works()
        return first

    def recovers(self) -> None:
        """Check that the session runs cells, and reports a lost state at most once."""
        first = self.expect("ok", "print(6 * 7)")
        assert "42\n" in first.text
        assert first.state in {"new", "preserved", "lost"}
        self.still_works()

    def end(self) -> None:
        """End the session; the gateway may have ended it already."""
        ended = self.gateway.call("DELETE", f"/v1/sessions/{self.session}", tenant=self.tenant)
        assert ended.status_code in {204, 404}, ended.text

    @property
    def container(self) -> Json:
        """The engine's record of the session's container."""
        said = self.text("import socket; print('at', socket.gethostbyname(socket.gethostname()), '!')")
        address = said.partition("at ")[2].partition(" !")[0]  # other processes of the session may print text too
        return next(item for item in self.gateway.containers() if address in addresses(item))


def addresses(container: Json) -> list[str]:
    """Return the addresses of a container."""
    networks = container["NetworkSettings"]["Networks"].values()
    return [network["IPAddress"] for network in networks if network["IPAddress"]]


def call_of(function: Callable[..., Any], *arguments: Any) -> str:
    """Return a Python program that calls one of the probes; see `answer_in`."""
    called = f"{function.__name__}(*{arguments!r})"
    return f"{inspect.getsource(probes)}\nimport json\nprint({MARK!r} + json.dumps({called}))\n"


def answer_in(text: str) -> Any:
    """Return a probe's answer from the text of its program."""
    line = next((line for line in text.splitlines() if line.startswith(MARK)), None)
    assert line is not None, f"no answer in {text[-2000:]!r}"
    return json.loads(line.removeprefix(MARK))

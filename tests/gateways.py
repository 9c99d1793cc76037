"""Real gateways for tests: the gateway's command as a child process, and a small client for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import requests

#: network of the tests, so that a gateway in use on this machine is not disturbed
NETWORK = "kernel-gateway-tests"
KEYS = {"alice": "alice-key-0001", "bob": "bob-key-000001"}
START_TIMEOUT = 90.0


@dataclass
class Growth:
    """Peak of a gateway's resident bytes, beyond those before."""

    bytes: int = 0


@dataclass
class Gateway:
    """A gateway that serves."""

    url: str
    state_dir: Path
    log: Path
    process: subprocess.Popen[bytes]
    isolation: str
    #: file with the certificate to trust; True: the certificates that the machine trusts
    trusted: str | bool = True
    http: requests.Session = field(default_factory=requests.Session)
    #: bytes of the log that have been checked
    seen: int = 0

    @property
    def instance(self) -> str:
        """The label of its containers."""
        return (self.state_dir / "instance").read_text().strip()

    def call(self, method: str, path: str, *, tenant: str | None = "alice", **options: Any) -> requests.Response:
        """Send a request with a tenant's key; None: without a key."""
        headers = options.pop("headers", {}) | ({"Authorization": f"Bearer {KEYS[tenant]}"} if tenant else {})
        options.setdefault("timeout", 120)
        options.setdefault("verify", self.trusted)
        return self.http.request(method, f"{self.url}{path}", headers=headers, **options)

    def execute(self, session: str, code: str, *, tenant: str = "alice", **fields: Any) -> dict[str, Any]:
        """Run a cell and return the reply's JSON."""
        response = self.call("POST", f"/v1/sessions/{session}/execute", tenant=tenant, json={"code": code, **fields})
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply

    def text(self, session: str, code: str, **options: Any) -> str:
        """Run a cell and return its outputs as plain text."""
        return text_of(self.execute(session, code, **options))

    def kernels(self) -> list[str]:
        """Return the ids of a tenant's kernels in the Jupyter dialect."""
        return [kernel["id"] for kernel in self.call("GET", "/api/kernels").json()]

    def containers(self) -> list[dict[str, Any]]:
        """Return the engine's records of this gateway's containers."""
        with contextlib.closing(docker.from_env()) as client:
            found: list[dict[str, Any]] = client.api.containers(
                all=True, filters={"label": f"kernel-gateway.instance={self.instance}"}
            )
            return found

    def admin_key(self) -> str:
        """Make a new key of an admin with the operator's command."""
        command = [sys.executable, "-m", "kernel_gateway", "keys", "--state-dir", str(self.state_dir)]
        made = subprocess.run([*command, "add", "ops", "--role", "admin"], check=True, capture_output=True, text=True)
        return made.stdout.strip()

    def memory(self) -> int:
        """Return the resident bytes of the gateway's process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @contextlib.contextmanager
    def growth(self) -> Iterator[Growth]:
        """Measure the growth of memory; the system records the peak. Source: proc(5), clear_refs, VmHWM."""
        files = Path(f"/proc/{self.process.pid}")
        (files / "clear_refs").write_text("5")
        before, growth = self.memory(), Growth()
        yield growth
        peak = (files / "status").read_text().partition("VmHWM:")[2].split()[0]
        growth.bytes = int(peak) * 1024 - before

    def logged(self) -> list[dict[str, Any]]:
        """Return the log's records."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def errors(self) -> list[dict[str, Any]]:
        """Return the errors logged since the last call."""
        with self.log.open("rb") as file:
            file.seek(self.seen)
            lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        self.seen += sum(map(len, whole))
        records = [json.loads(line) for line in whole if line.startswith(b"{")]
        return [record for record in records if record["level"] in {"error", "critical"}]

    def ready(self) -> bool:
        """Return whether the gateway can start kernels."""
        return self.call("GET", "/readyz", tenant=None).status_code == 200

    def wait_for_sleep(self) -> None:
        """Wait until kernels can sleep and be copied: the gateway first proves that they can be continued."""
        deadline = time.monotonic() + START_TIMEOUT
        while not (told := self.call("GET", "/readyz", tenant=None).json()["sleep"])["on"]:
            assert time.monotonic() < deadline, told
            time.sleep(0.2)


def text_of(reply: dict[str, Any]) -> str:
    """Return a reply's outputs as plain text."""
    parts = []
    for output in reply["outputs"]:
        if output["output_type"] == "stream":
            parts.append(output["text"])
        elif output["output_type"] == "error":
            parts.append(f"{output['ename']}: {output['evalue']}")
        else:
            parts.append(output["data"].get("text/plain", ""))
    return "".join(parts)


@contextlib.contextmanager
def gateway(
    isolation: str,
    *flags: str,
    must_be_ready: bool = True,
    log: str = "",
    stdout: str = os.devnull,
    under: Sequence[str] = (),
    command: Sequence[str] = (sys.executable, "-m", "kernel_gateway"),
    **settings: str,
) -> Iterator[Gateway]:
    """A separate gateway, ended afterwards with its containers, unless it keeps them or has ended already.

    Args:
        isolation: isolation of its kernels.
        *flags: further flags of `serve`.
        must_be_ready: True to fail unless the gateway can start kernels.
        stdout: file of its output; it writes some only if that is a terminal.
        under: command that starts the gateway's command, with its arguments.
        command: the gateway's command.
        log: file of its log; empty: a file in its state directory.
        **settings: further settings, by environment variable; without `state_dir` it gets a temporary one.
    """
    with contextlib.ExitStack() as stack:
        directory = settings.get("state_dir") or stack.enter_context(tempfile.TemporaryDirectory(prefix="kgw-test-"))
        state_dir = Path(directory)
        log_file = Path(log) if log else state_dir / "log"
        with log_file.open("ab") as errors, Path(stdout).open("wb") as output:
            begun = errors.tell()
            process = subprocess.Popen(
                [*under, *command, "serve", *flags],
                env=os.environ  # noqa: TID251 - a child gets this environment, and settings on top
                | {
                    "KERNEL_GATEWAY_PORT": "0",
                    "KERNEL_GATEWAY_ISOLATION": isolation,
                    "KERNEL_GATEWAY_NETWORK": NETWORK,
                    "KERNEL_GATEWAY_POOL_SIZE": "0",  # else each gateway starts a kernel that its test does not use
                    "KERNEL_GATEWAY_SANDBOX_POOL_SIZE": "0",
                    "KERNEL_GATEWAY_GOLDEN_IMAGES": "off",  # the same holds for a golden image, and it takes 170 MB
                    "KERNEL_GATEWAY_PRELOAD": "",  # importing in warm kernels costs more than most tests
                    "KERNEL_GATEWAY_STATE_DIR": directory,
                    "KERNEL_GATEWAY_KEYS": ",".join(f"{tenant}:{key}" for tenant, key in KEYS.items()),
                }
                | {f"KERNEL_GATEWAY_{name.upper()}": value for name, value in settings.items()},
                stdout=output,
                stderr=errors,
            )
        try:
            deadline = time.monotonic() + START_TIMEOUT
            serving = Gateway(_address(process, log_file, begun), state_dir, log_file, process, isolation)
            if serving.url.startswith("https://"):
                own = state_dir / "tls.pem"
                serving.trusted = settings.get("tls_certificate", str(own))
            with serving.http:
                while must_be_ready and not serving.ready():  # the gateway tries again on its own
                    assert time.monotonic() < deadline, log_file.read_text()[-3000:]
                    time.sleep(0.2)
                yield serving
        finally:
            _end(process)


@contextlib.contextmanager
def terminal() -> Iterator[tuple[Callable[[], str], str]]:
    """A terminal: a function that returns what was written to it meanwhile, and its file for a program's output."""
    ours, programs = os.openpty()
    try:
        yield lambda: os.read(ours, 65536).decode().replace("\r\n", "\n"), os.ttyname(programs)
    finally:
        os.close(ours)
        os.close(programs)


def _address(process: subprocess.Popen[bytes], log: Path, begun: int) -> str:
    """Read from the log, behind its first `begun` bytes, where the gateway listens.

    The line is written after the sandbox was proven or found missing.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        for line in log.read_bytes()[begun:].splitlines(keepends=True):
            if b'"the gateway listens"' in line and line.endswith(b"\n"):
                return str(json.loads(line)["url"])
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.05)
    raise AssertionError("the gateway does not start: " + log.read_text()[-3000:])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise

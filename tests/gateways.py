"""Real gateways for tests: the command itself as a child process, and a small client for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import requests

#: of the tests' own, so that a gateway in use on this machine is left alone
NETWORK = "kernel-gateway-tests"
KEYS = {"alice": "alice-key-0001", "bob": "bob-key-000001"}
START_TIMEOUT = 90.0


@dataclass
class Growth:
    """How many resident bytes more than before a gateway has had at most."""

    bytes: int = 0


@dataclass
class Gateway:
    """A gateway that serves."""

    url: str
    state_dir: Path
    log: Path
    process: subprocess.Popen[bytes]
    isolation: str
    #: file with the certificate to trust; True: those that the machine trusts
    trusted: str | bool = True
    http: requests.Session = field(default_factory=requests.Session)
    #: how many bytes of the log have been looked at
    seen: int = 0

    @property
    def instance(self) -> str:
        """The label of its containers."""
        return (self.state_dir / "instance").read_text().strip()

    def call(self, method: str, path: str, *, tenant: str | None = "alice", **options: Any) -> requests.Response:
        """One request as a tenant; None: without a key."""
        headers = options.pop("headers", {}) | ({"Authorization": f"Bearer {KEYS[tenant]}"} if tenant else {})
        options.setdefault("timeout", 120)
        options.setdefault("verify", self.trusted)
        return self.http.request(method, f"{self.url}{path}", headers=headers, **options)

    def execute(self, session: str, code: str, *, tenant: str = "alice", **fields: Any) -> dict[str, Any]:
        """Run a cell; the reply's JSON."""
        response = self.call("POST", f"/v1/sessions/{session}/execute", tenant=tenant, json={"code": code, **fields})
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply

    def text(self, session: str, code: str, **options: Any) -> str:
        """What a cell prints and shows as plain text."""
        return text_of(self.execute(session, code, **options))

    def kernels(self) -> list[str]:
        """A tenant's kernels, by the ids that Jupyter's clients know."""
        return [kernel["id"] for kernel in self.call("GET", "/api/kernels").json()]

    def containers(self) -> list[dict[str, Any]]:
        """What the engine has of this gateway."""
        with contextlib.closing(docker.from_env()) as client:
            found: list[dict[str, Any]] = client.api.containers(
                all=True, filters={"label": f"kernel-gateway.instance={self.instance}"}
            )
            return found

    def admin_key(self) -> str:
        """A new key of an admin, made as an operator makes one."""
        command = [sys.executable, "-m", "kernel_gateway", "keys", "--state-dir", str(self.state_dir)]
        made = subprocess.run([*command, "add", "ops", "--role", "admin"], check=True, capture_output=True, text=True)
        return made.stdout.strip()

    def memory(self) -> int:
        """Resident bytes of the gateway's process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @contextlib.contextmanager
    def growth(self) -> Iterator[Growth]:
        """Watch its memory; the system itself keeps the peak, so none is missed. Source: proc(5), clear_refs, VmHWM."""
        files = Path(f"/proc/{self.process.pid}")
        (files / "clear_refs").write_text("5")
        before, growth = self.memory(), Growth()
        yield growth
        peak = (files / "status").read_text().partition("VmHWM:")[2].split()[0]
        growth.bytes = int(peak) * 1024 - before

    def logged(self) -> list[dict[str, Any]]:
        """The log's records."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def errors(self) -> list[dict[str, Any]]:
        """The errors it has logged since this was last asked."""
        with self.log.open("rb") as file:
            file.seek(self.seen)
            lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        self.seen += sum(map(len, whole))
        records = [json.loads(line) for line in whole if line.startswith(b"{")]
        return [record for record in records if record["level"] in {"error", "critical"}]

    def ready(self) -> bool:
        """Whether it can start kernels."""
        return self.call("GET", "/readyz", tenant=None).status_code == 200


def text_of(reply: dict[str, Any]) -> str:
    """A reply's outputs as plain text."""
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
    isolation: str, *flags: str, must_be_ready: bool = True, log: str = "", **settings: str
) -> Iterator[Gateway]:
    """A gateway of its own, ended afterwards, with all its containers unless it keeps them or is gone already.

    Args:
        isolation: where its kernels run.
        *flags: more of `serve`.
        must_be_ready: fail unless it can start kernels.
        log: the file that its log goes to; empty: one in its state directory.
        **settings: more settings, by environment variable; without `state_dir` it has one that goes with it.
    """
    with contextlib.ExitStack() as stack:
        directory = settings.get("state_dir") or stack.enter_context(tempfile.TemporaryDirectory(prefix="kgw-test-"))
        state_dir = Path(directory)
        log_file = Path(log) if log else state_dir / "log"
        with log_file.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "kernel_gateway", "serve", *flags],
                env=os.environ  # noqa: TID251 - a child gets this process's own, and settings on top
                | {
                    "KERNEL_GATEWAY_PORT": "0",
                    "KERNEL_GATEWAY_ISOLATION": isolation,
                    "KERNEL_GATEWAY_NETWORK": NETWORK,
                    "KERNEL_GATEWAY_POOL_SIZE": "0",  # else each starts a kernel that its test does not ask for
                    "KERNEL_GATEWAY_STATE_DIR": directory,
                    "KERNEL_GATEWAY_KEYS": ",".join(f"{tenant}:{key}" for tenant, key in KEYS.items()),
                }
                | {f"KERNEL_GATEWAY_{name.upper()}": value for name, value in settings.items()},
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        try:
            deadline = time.monotonic() + START_TIMEOUT
            serving = Gateway(_address(process, log_file), state_dir, log_file, process, isolation)
            if serving.url.startswith("https://"):
                own = state_dir / "tls.pem"
                serving.trusted = settings.get("tls_certificate", str(own))
            with serving.http:
                while must_be_ready and not serving.ready():  # it tries again by itself
                    assert time.monotonic() < deadline, log_file.read_text()[-3000:]
                    time.sleep(0.2)
                yield serving
        finally:
            _end(process)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Read the banner, which comes when the sandbox was proven or found missing."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if select.select([process.stdout], [], [], 0.5)[0]:
            line = process.stdout.readline().decode()
            if line.startswith("kernel-gateway listens on "):
                return line.split()[-1]
            assert line, log.read_text()[-3000:]
    raise AssertionError("the gateway does not start: " + log.read_text()[-3000:])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()

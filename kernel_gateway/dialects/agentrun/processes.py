"""Runs commands in a sandbox, and lists and ends its processes."""

from __future__ import annotations

from time import time
from typing import Any
from uuid import uuid4

from kernel_gateway.dialects.agentrun.base import AgentRunHandler
from kernel_gateway.dialects.agentrun.models import Command
from kernel_gateway.times import rfc3339
from sessions.guest.paths import seen_path
from sessions.guest.processes import Process, find_process, kill_process, list_processes
from sessions.sandbox.sandbox import Sandbox

_MIB = 1024**2
#: the status of a process, by Linux's letter for its state
STATES = {"R": "running", "S": "running", "D": "running", "I": "running", "T": "stopped", "t": "stopped"}


def process_model(process: Process) -> dict[str, Any]:
    """Return a process as clients see it."""
    return {
        "processId": str(process.pid),
        "pid": process.pid,
        "status": STATES.get(process.state, "completed"),
        "command": process.command,
        "tag": "",
        "createdAt": rfc3339(process.started_at),
    }


class CommandHandler(AgentRunHandler):
    """`/sandboxes/{id}/processes/cmd`."""

    async def post(self, sandbox_id: str) -> None:
        """Run a shell command and wait for its end."""
        body = self.body(Command)
        await self.run_until_client_leaves(self._run(self.sandbox(sandbox_id), body))

    async def _run(self, sandbox: Sandbox, body: Command) -> None:
        settings = self.tenant_settings
        seconds = min(body.timeout or settings.execute_timeout, settings.max_execute_timeout)
        ended = await sandbox.commands.run(body.command, body.cwd or "", seconds)
        took = round(ended.duration * 1000)
        self.finish_json(
            {
                "executionId": str(uuid4()),
                "status": "timeout" if ended.timed_out else "completed",
                "result": {
                    "exitCode": ended.exit_code,
                    "stdout": ended.stdout,
                    "stderr": ended.stderr,
                    "cwd": body.cwd or seen_path(""),
                    "executionTimeMs": took,
                    "truncated": ended.truncated,
                },
                "executionTimeMs": took,
            }
        )


class ProcessesHandler(AgentRunHandler):
    """`/sandboxes/{id}/processes`."""

    async def get(self, sandbox_id: str) -> None:
        """List the sandbox's processes."""
        listing = await list_processes(self.sandbox(sandbox_id))
        items = [process_model(process) for process in listing.processes]
        self.finish_json({"items": items, "total": len(items), "truncated": listing.truncated})


class ProcessHandler(AgentRunHandler):
    """`/sandboxes/{id}/processes/{pid}`."""

    async def get(self, sandbox_id: str, pid: str) -> None:
        """Describe the process."""
        sandbox = self.sandbox(sandbox_id)
        process = await find_process(sandbox, int(pid))
        self.finish_json(
            process_model(process)
            | {
                "working_dir": process.directory,
                "environment": dict(sandbox.spec.env),
                "resourceUsage": {
                    "cpuPercent": round(100 * process.cpu / max(1.0, time() - process.started_at), 1),
                    "memoryMb": round(process.memory / _MIB, 1),
                },
            }
        )

    async def delete(self, sandbox_id: str, pid: str) -> None:
        """End the process."""
        if await kill_process(self.sandbox(sandbox_id), int(pid)):
            told = {"stopped": True, "stopped_at": rfc3339(time()), "message": "the process has ended"}
        else:
            told = {"stopped": False, "message": "the process was killed, but has not ended yet"}
        self.finish_json({"pid": pid} | told)

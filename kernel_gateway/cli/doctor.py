"""`kernel-gateway doctor`: check what isolated kernels need on this machine, and prove what is promised there."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections import deque
from contextlib import aclosing

from kernel_gateway.cli.settings import add_settings, settings_from
from kernel_gateway.config import Settings
from kernel_gateway.isolation import examine
from kernel_gateway.observe import logs
from kernel_gateway.state_dir import AlreadyRunning
from sessions.backends.abilities import Finding

#: as a shell says it of a command that Ctrl-C has ended
_INTERRUPTED = 130
#: warnings of the log that are shown with a promise that is not kept
_WARNINGS = 5
#: begin of the details of a finding that is no problem but should be known
_WARNING = "WARNING: "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_settings(parser)
    parser.add_argument(
        "--prove",
        action="store_true",
        help="also run what is promised on this engine, in about a minute: start, walls, interrupt, freeze, "
        "checkpoints, sleep, a full workspace, a removed container; nothing is left behind",
    )


def main(arguments: argparse.Namespace) -> int:
    """Print the result of every check.

    Returns:
        0 when all checks pass, else 1; 130 when a signal has ended the proof.
    """
    settings = settings_from(arguments)
    if not arguments.prove:
        return _check(settings)
    if settings.isolation == "process":
        print("nothing to prove: isolation `process` is no sandbox")
        return 1
    if settings.isolation == "kubernetes":
        print("--prove needs a Docker engine; without --prove, the check tries the isolation in the cluster, too")
        return 1
    from sessions.backends.docker.isolation.outside import network_as_before  # noqa: PLC0415 - takes a tenth of a start

    with network_as_before(settings.network):
        return _check(settings, prove=True) or asyncio.run(_prove(settings))


def _check(settings: Settings, *, prove: bool = False) -> int:
    well, off = True, []
    for finding in examine(settings, tried=not prove):
        print(_line(finding), flush=True)
        well = well and finding.ok
        off += [finding.name] if finding.off else []
    if not well:
        print("not ready: fix the first problem, then run this again")
        return 1
    if not prove:
        print(f"kernels can run; off: {', '.join(off)}" if off else "all is well")
    return 0


def _line(finding: Finding) -> str:
    if finding.detail.startswith(_WARNING):
        return f"WARNING  {finding.name}: {finding.detail.removeprefix(_WARNING)}"
    if finding.ok:
        return f"ok       {finding.name}: {finding.detail}"
    return f"PROBLEM  {finding.name}: {finding.problem}\n         fix: {finding.fix}"


async def _prove(settings: Settings) -> int:
    """Print a verdict on each promise. A signal ends the proof, which then removes what it has made."""
    proof = asyncio.current_task()
    loop = asyncio.get_running_loop()
    signals: list[int] = []

    def end(number: int) -> None:
        if not signals and proof is not None:  # a second one would end the removal
            print("\nended by a signal: what was made is being removed", flush=True)
            proof.cancel()
        signals.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    try:
        return await _tell(settings)
    except asyncio.CancelledError:
        if signals:
            return _INTERRUPTED
        raise
    except (AlreadyRunning, OSError) as error:
        print(f"PROBLEM  the proof cannot begin: {error}")
        return 1


async def _tell(settings: Settings) -> int:
    from kernel_gateway.proving import verdicts  # noqa: PLC0415 - importing the service is slow
    from sessions.backends.docker.engine.versions import versions  # noqa: PLC0415 - as above

    warnings: deque[str] = deque(maxlen=_WARNINGS)
    logs.collect_warnings(warnings)
    found = await asyncio.to_thread(versions, settings.runtime)
    print("versions:", ", ".join(f"{part} {version}" for part, version in found.items()), flush=True)
    broken = []
    async with aclosing(verdicts(settings, lambda name: print(f"{name} … ", end="", flush=True))) as told:
        async for verdict in told:
            print(verdict, flush=True)
            if verdict.broken:
                broken.append(verdict.name)
                print(*(f"    log: {warning}\n" for warning in warnings), sep="", end="", flush=True)
            warnings.clear()
    if broken:
        print(f"not all that is promised works here: {', '.join(broken)}")
        return 1
    print("all that is promised works here")
    return 0

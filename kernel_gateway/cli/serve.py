"""`kernel-gateway serve`: run the gateway."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from pathlib import Path

import structlog

from kernel_gateway.app import Service
from kernel_gateway.cli.settings import add_settings, settings_from
from kernel_gateway.config import Settings
from kernel_gateway.observe import logs
from kernel_gateway.setting_types import MIB
from kernel_gateway.state_dir import AlreadyRunning
from kernel_gateway.wire import descriptors
from sessions.backends.abilities import Ability
from sessions.model.tasks import spawn
from sessions.upkeep.heap import keep_freed_memory

add_arguments = add_settings
log = structlog.get_logger()

#: signals that end the gateway in order. SIGHUP comes when its terminal is closed
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: argparse.Namespace) -> int:
    """Serve until a signal of `STOPS`, then wait for running cells; a second signal ends the wait.

    Returns:
        0 after an orderly end, 1 when the gateway cannot start.
    """
    logs.set_up()
    descriptors.raise_limit()
    keep_freed_memory()
    try:
        service = Service(settings_from(arguments))
        asyncio.run(_serve(service))
    except (AlreadyRunning, OSError) as error:
        if sys.stderr.isatty():
            print(f"kernel-gateway: {error}", file=sys.stderr)
        else:
            log.error("the gateway cannot start", error=str(error))  # noqa: TRY400 - expected: no traceback
        return 1
    return 0


async def _serve(service: Service) -> None:
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in STOPS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores it
            loop.add_signal_handler(number, signals.put_nowait, number)
    try:
        await service.start()
        gc.freeze()  # loaded objects stay for good: no collection, nor the exit, needs to scan them
        if sys.stdout.isatty():
            print(banner(service), flush=True)
        log.info("the gateway listens", **_start_facts(service))
        stop = signal.Signals(await signals.get())
        log.info("the gateway stops", signal=stop.name, sessions=len(service.registry.all()), kept=len(service.kept()))
        waiting = {spawn(service.drain(), "drain"), spawn(signals.get(), "second signal")}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
    finally:
        await service.stop()
    log.info("the gateway has stopped")


def _url(service: Service) -> str:
    scheme = "http" if service.certificate is None else "https"
    return f"{scheme}://{service.settings.host}:{service.port}"


def _shown(ability: Ability) -> str:
    return f"{'on' if ability.on else 'off'}, {ability.detail}"


def _start_facts(service: Service) -> dict[str, object]:
    """Return what the log says about a start. It has no key, and the banner is only on a terminal."""
    trouble = service.readiness.trouble
    facts = {
        "url": _url(service),
        "isolation": service.backend.isolation,
        "golden_images": _shown(service.backend.golden_images),
        "sleep": sleep_text(service.settings, service.backend.sleep.ability),
        "key_file": str(service.local_key[1]) if service.local_key else None,
        "certificate": str(_for_clients(service) or service.certificate) if service.certificate else None,
        "trouble": f"{trouble.code}: {trouble.message}" if trouble else None,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _for_clients(service: Service) -> Path | None:
    """Return the certificate that clients must trust, if the gateway has made its own."""
    return service.state_dir / "tls.pem" if service.certificate and not service.settings.tls_certificate else None


def banner(service: Service) -> str:
    """Return the text for the operator at a terminal: address, isolation, key, and a call to paste."""
    key = service.local_key[0] if service.local_key else "$KEY"  # a shell expands it within double quotes
    url = _url(service)
    lines = [f"kernel-gateway listens on {url}", f"isolation: {service.backend.isolation}"]
    lines.append(f"golden images: {_shown(service.backend.golden_images)}")
    if sleep := sleep_text(service.settings, service.backend.sleep.ability):
        lines.append(f"sleep: {sleep}")
    if not service.settings.keep_sessions:
        lines.append("Ctrl-C ends all sessions with their files, also those that sleep (`--keep-sessions` keeps them)")
    if trouble := service.readiness.trouble:
        lines += [f"NOT READY ({trouble.code}): {trouble.message}", f"  {trouble.resolution}"]
    own = _for_clients(service)
    if own:
        lines.append(f"certificate for clients to trust: {own}  (for example as SSL_CERT_FILE)")
    if service.local_key:
        lines.append(f"key of tenant local: {key}  (also in {service.local_key[1]})")
    trust = f"--cacert {own} " if own else ""
    lines.append("try:")
    lines.append(
        f'  curl -s {trust}{url}/v1/sessions/demo/execute -H "Authorization: Bearer {key}" '
        """-d '{"code": "x = 40 + 2; x"}'"""
    )
    return "\n".join(lines)


def sleep_text(settings: Settings, ability: Ability) -> str | None:
    """Return whether idle sessions sleep, and what that takes, or why they do not; None if they shall not."""
    if settings.on_idle == "end":
        return None
    if ability.on:
        return f"on, {ability.detail}; {settings.sleep_disk // MIB} MiB for all (`sleep_disk`)"
    meanwhile = "are ended" if settings.on_idle == "auto" else "stay awake"
    return f"off, {ability.detail}; until it is on, idle sessions {meanwhile}"

"""Proofs of the walls around a kernel, each with a control: the same attempt succeeds where there is no wall."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import closing

from sessions.model.tasks import shielded, spawn
from sessions.proving import probes
from sessions.proving.ground import Ground, NothingToTry, Refused

#: an address that nobody has (RFC 5737): the route to it is the route to the internet
_ANYWHERE = "198.51.100.1"
#: hosts on the internet. The host makes an empty connection to them; a kernel must not reach them.
_INTERNET: list[list[str | int]] = [["1.1.1.1", 443], ["8.8.8.8", 443], ["9.9.9.9", 443]]
#: a folder of the image where every user may make files if the image is writable, and a folder that is writable
_IN_IMAGE, _OWN = "/var/tmp", "/tmp"  # noqa: S108 - directories in the sandbox


async def proof(ground: Ground) -> str:
    """The gateway itself finds that the runtime is gVisor, and that kernels reach neither the host nor one another."""
    # Shielded: the check's thread cannot be stopped, and its containers use the network until it has ended.
    if (
        not await shielded(spawn(ground.readiness.check(), "proof of the sandbox"))
        and (trouble := ground.readiness.trouble) is not None
    ):
        raise trouble
    return ground.backend.isolation


async def host(ground: Ground) -> str:
    """A kernel reaches no port of the host, neither at the host's address on the kernels' network nor at another."""
    kernel = (await ground.container("main")).connection_info.ip
    with closing(socket.create_server(("0.0.0.0", 0))) as listener:  # noqa: S104 - like any service of the host
        port = listener.getsockname()[1]
        addresses = {address for other in (kernel, _ANYWHERE) if (address := _own_address_towards(other))}
        targets = [[address, port] for address in sorted(addresses)]
        await _out_of_reach(ground, targets, "the host")
    return f"{len(targets)} addresses"


async def peers(ground: Ground) -> str:
    """A kernel does not reach the ports of another kernel, which the gateway uses."""
    peer = (await ground.container("peer")).connection_info
    await _out_of_reach(ground, [[*peer.endpoint("shell")]], "another kernel")
    return ""


async def internet(ground: Ground) -> str:
    """A kernel does not reach what the host reaches on the internet."""
    targets = await asyncio.to_thread(probes.reached, _INTERNET)
    if not targets:
        raise NothingToTry(f"this machine itself reaches none of {_shown(_INTERNET)}")
    await _out_of_reach(ground, targets, "the internet")
    return f"{len(targets)} addresses that this machine reaches"


async def _out_of_reach(ground: Ground, targets: list[list[str | int]], what: str) -> None:
    """Check that a kernel reaches none of the targets, all of which this machine reaches.

    Raises:
        Refused: when the kernel reaches a target, or when the attempt proves nothing.
    """
    control = await asyncio.to_thread(probes.reached, targets)
    if unreached := [target for target in targets if target not in control]:
        raise Refused(f"this machine itself does not reach {_shown(unreached)}, so the attempt shows nothing")
    if not await ground.probe("main", probes.reaches_itself):
        raise Refused("code in a kernel does not reach even itself, so the attempt shows nothing")
    if reached := await ground.probe("main", probes.reached, targets):
        raise Refused(f"a kernel reaches {what}: {_shown(reached)}")


def _shown(targets: list[list[str | int]]) -> str:
    return ", ".join(":".join(map(str, target)) for target in targets)


def _own_address_towards(address: str) -> str:
    """Return this machine's own address on the route to another address. Empty means no route. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((address, 9))
        except OSError:
            return ""
        return str(way.getsockname()[0])


async def image(ground: Ground) -> str:
    """The root file system is read-only, also where its mode would allow every user to write."""
    if _IN_IMAGE not in await ground.probe("main", probes.open_to_all, [_IN_IMAGE, _OWN]):
        raise Refused(f"the image has no {_IN_IMAGE} in which every user may write, so there is nothing to try")
    found = await ground.probe("main", probes.writable, [_IN_IMAGE, _OWN])
    if _OWN not in found:
        raise Refused(f"a kernel cannot write to {_OWN} either, so the attempt shows nothing")
    if _IN_IMAGE in found:
        raise Refused(f"a kernel can write to {_IN_IMAGE} of its image")
    return ""


async def privileges(ground: Ground) -> str:
    """A kernel's user is not root, has no capability, and can get none."""
    found = await ground.probe("main", probes.privileges)
    if os.geteuid() == 0 and not probes.privileges()["CapBnd"]:
        raise Refused("root of this machine has no capability either, so this shows nothing")
    if has := [f"{name} {value:#x}" for name, value in found.items() if name != "uid" and value]:
        raise Refused(f"a kernel has capabilities: {', '.join(has)}")
    if not found["uid"]:
        raise Refused("a kernel is root in its container")
    return f"user {found['uid']}"

"""The host's rules for the kernels' bridge: nothing new comes from it into the host or through it.

Answers to connections that the host has made pass: that is how the gateway talks to kernels. What depends on an
order stands in a chain of its own, which is replaced as a whole; each other rule may stand anywhere, and twice.
So several gateways may put up the rules of one bridge at the same time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from sessions.errors import NotInitialized

#: bridged packets pass the firewall only when this is 1
BRIDGE_NF = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_HAS_IPV6 = Path("/proc/net/if_inet6")
_TIMEOUT = 20


def chain_name(bridge: str) -> str:
    """The bridge's own chain."""
    return f"{bridge.upper()}-IN"


def chain_rules(bridge: str) -> list[str]:
    """What stands in it, in the form in which iptables lists it."""
    chain = chain_name(bridge)
    return [f"-A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", f"-A {chain} -j DROP"]


def rules(bridge: str) -> list[tuple[str, list[str]]]:
    """The rules outside of it: the program that sets them, then chain and rule."""
    drop = ["-i", bridge, "-j", "DROP"]
    found = [
        ("iptables", ["INPUT", "-i", bridge, "-j", chain_name(bridge)]),
        ("iptables", ["DOCKER-USER", *drop]),
    ]
    # Kernels have no IPv6; the bridge itself has a link-local address.
    return found + ([("ip6tables", ["INPUT", *drop]), ("ip6tables", ["FORWARD", *drop])] if _HAS_IPV6.exists() else [])


def commands(bridge: str) -> str:
    """What an operator can run by hand."""
    own = [f"iptables -N {chain_name(bridge)}", *(f"iptables {rule}" for rule in chain_rules(bridge))]
    return "; ".join([*own, *(f"{program} -I {' '.join(rule)}" for program, rule in rules(bridge))])


def put_up(bridge: str) -> bool | None:
    """Put up what is missing.

    Returns:
        whether something was; None when this user may not look.

    Raises:
        NotInitialized: it cannot be put up.
    """
    if os.geteuid() != 0:
        return None
    if BRIDGE_NF.exists() and BRIDGE_NF.read_text().strip() != "1":
        raise NotInitialized("kernels could reach one another: sysctl -w net.bridge.bridge-nf-call-iptables=1")
    changed = _put_up_chain(bridge)
    for program, (chain, *rule) in rules(bridge):
        if _run(program, "-C", chain, *rule).returncode != 0:
            _must(program, "-I", chain, *rule)
            changed = True
    return changed


def _put_up_chain(bridge: str) -> bool:
    chain = chain_name(bridge)
    listed = _run("iptables", "-S", chain).stdout.splitlines()[1:]
    if listed == chain_rules(bridge):
        return False
    # One transaction: there is no moment in which the chain is empty, or in another order.
    _must(
        "iptables-restore",
        "--noflush",
        text="\n".join(["*filter", f":{chain} - [0:0]", *chain_rules(bridge), "COMMIT", ""]),
    )
    return True


def _must(program: str, *arguments: str, text: str = "") -> None:
    done = _run(program, *arguments, text=text)
    if done.returncode != 0:
        raise NotInitialized(f"a firewall rule cannot be set: {program} {' '.join(arguments)}: {done.stderr.strip()}")


def _run(program: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    path = shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
    if path is None:
        raise NotInitialized(f"{program} is not installed; the kernels' network cannot be closed without it")
    return subprocess.run(  # noqa: S603 - a fixed program with arguments of our own
        [path, "-w", "5", *arguments], input=text, capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )

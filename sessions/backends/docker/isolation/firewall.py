"""The host's firewall rules for the kernels' bridge. They drop new connections from the bridge, to the host or beyond.

Answers to connections that the host has opened may pass, because the gateway talks to kernels this way. Rules whose
order matters are in a separate chain, which is replaced as a whole. Each other rule may be at any position, also twice.
So several gateways may set the rules of one bridge at the same time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from sessions.model.errors import NotInitialized

#: setting of Linux; the firewall filters packets between containers of one bridge only if it is 1
BRIDGE_NF = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_HAS_IPV6 = Path("/proc/net/if_inet6")
_TIMEOUT = 20


class Rules(Enum):
    """The state in which a bridge's rules were found."""

    SET = "rules are set"
    MISSING = "rules were missing and are set now"
    HIDDEN = "this user may not read the rules"


def chain_name(bridge: str) -> str:
    """Return the name of the bridge's own chain."""
    return f"{bridge.upper()}-IN"


def chain_rules(bridge: str) -> list[str]:
    """Return the rules of the bridge's own chain, in the form in which iptables lists them."""
    chain = chain_name(bridge)
    return [f"-A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", f"-A {chain} -j DROP"]


def way_out_name(bridge: str) -> str:
    """Return the name of the chain for packets from the bridge to other places than the host."""
    return f"{bridge.upper()}-OUT"


def rules(bridge: str, way_out: Sequence[str] | None = None) -> list[tuple[str, list[str]]]:
    """Return the rules outside the bridge's chains.

    Args:
        bridge: name of the bridge.
        way_out: as in `ensure_rules`.

    Returns:
        pairs of the program that sets a rule, and its chain followed by the rule's words.
    """
    drop = ["-i", bridge, "-j", "DROP"]
    beyond = "DROP" if way_out is None else way_out_name(bridge)
    found = [
        ("iptables", ["INPUT", "-i", bridge, "-j", chain_name(bridge)]),
        ("iptables", ["DOCKER-USER", "-i", bridge, "-j", beyond]),
    ]
    # Kernels have no IPv6, but the bridge itself has a link-local address.
    return found + ([("ip6tables", ["INPUT", *drop]), ("ip6tables", ["FORWARD", *drop])] if _HAS_IPV6.exists() else [])


def commands(bridge: str) -> str:
    """Return the shell commands with which an operator can set all rules."""
    own = [f"iptables -N {chain_name(bridge)}", *(f"iptables {rule}" for rule in chain_rules(bridge))]
    return "; ".join([*own, *(f"{program} -I {' '.join(rule)}" for program, rule in rules(bridge))])


def ensure_rules(bridge: str, way_out: Sequence[str] | None = None) -> Rules:
    """Set the rules that are missing.

    Args:
        bridge: name of the bridge.
        way_out: rules for packets from the bridge to other places than the host, in the form in which iptables lists
            them, without their chain. None means that no packet may leave the bridge.

    Raises:
        NotInitialized: when a rule cannot be set.
    """
    if os.geteuid() != 0:
        return Rules.HIDDEN
    if BRIDGE_NF.exists() and BRIDGE_NF.read_text().strip() != "1":
        raise NotInitialized("kernels could reach one another: sysctl -w net.bridge.bridge-nf-call-iptables=1")
    changed = _ensure_chain(chain_name(bridge), chain_rules(bridge))
    if way_out is not None:
        chain = way_out_name(bridge)
        changed = _ensure_chain(chain, [f"-A {chain} {rule}" for rule in way_out]) or changed
    for program, (chain, *rule) in rules(bridge, way_out):
        if _run(program, "-C", chain, *rule).returncode != 0:
            _run_checked(program, "-I", chain, *rule)
            changed = True
    return Rules.MISSING if changed else Rules.SET


def remove_rules(bridge: str, way_out: Sequence[str] | None = None) -> None:
    """Remove the rules and chains of a bridge that was removed. A rule that is missing or cannot be removed is skipped.

    Args:
        bridge: name of the bridge.
        way_out: as in `ensure_rules`.

    Raises:
        NotInitialized: when a program is not installed, or does not end in time.
    """
    for program, (chain, *rule) in rules(bridge, way_out):
        _run(program, "-D", chain, *rule)
    for action in ("-F", "-X"):
        for chain in (chain_name(bridge), way_out_name(bridge)):
            _run("iptables", action, chain)


def _ensure_chain(chain: str, wanted: list[str]) -> bool:
    listed = _run("iptables", "-S", chain).stdout.splitlines()[1:]
    if listed == wanted:
        return False
    # This is one transaction, so the chain is never empty or in another order.
    _run_checked(
        "iptables-restore",
        "--noflush",
        text="\n".join(["*filter", f":{chain} - [0:0]", *wanted, "COMMIT", ""]),
    )
    return True


def _run_checked(program: str, *arguments: str, text: str = "") -> None:
    done = _run(program, *arguments, text=text)
    if done.returncode != 0:
        raise NotInitialized(f"a firewall rule cannot be set: {program} {' '.join(arguments)}: {done.stderr.strip()}")


def _run(program: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    path = shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
    if path is None:
        raise NotInitialized(f"{program} is not installed; the kernels' network cannot be closed without it")
    try:
        return subprocess.run(  # noqa: S603 - a fixed program with our own arguments
            [path, "-w", "5", *arguments], input=text, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInitialized(f"{program} did not end within {_TIMEOUT} s") from None

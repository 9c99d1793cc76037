"""What a proof does to an engine from outside the gateway, and how it leaves the engine as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from docker.errors import APIError, NotFound

from sessions.backends.docker.engine.breaker import fails
from sessions.backends.docker.engine.engine import CONNECTION_ERRORS, connect
from sessions.backends.docker.isolation import firewall
from sessions.backends.docker.isolation.network import bridge_name
from sessions.model.errors import BackendUnavailable, SessionError


def remove_container(container: str) -> None:
    """Remove a container behind the gateway's back. Blocks.

    Raises:
        BackendUnavailable: when the engine refuses, or does not answer.
    """
    try:
        with closing(connect()) as api:
            api.remove_container(container, force=True)
    except APIError as error:
        raise fails("remove a container from outside", error) from error
    except CONNECTION_ERRORS as error:
        raise BackendUnavailable(f"the engine did not remove a container: {str(error)[:200]}") from error


@contextmanager
def network_as_before(network: str) -> Iterator[None]:
    """Remove the kernels' network and its firewall rules at the end, unless it is there now or others use it then."""
    was_there = _is_there(network)
    try:
        yield
    finally:
        if not was_there:
            _forget(network)


def _is_there(network: str) -> bool:
    """Return whether there is a network. Where no engine answers, nothing is made, so nothing is to be removed."""
    try:
        with closing(connect()) as api:
            api.inspect_network(network)
    except NotFound:
        return False
    except (APIError, SessionError, *CONNECTION_ERRORS):
        return True
    return True


def _forget(network: str) -> None:
    try:
        with closing(connect()) as api:
            api.remove_network(network)
        firewall.remove_rules(bridge_name(network))
    except (APIError, SessionError, *CONNECTION_ERRORS):  # a gateway uses it by now, or the engine has ended
        return

"""Changes that a proof makes at an engine from outside the gateway, and how it undoes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from docker.errors import APIError, NotFound

from sessions.backends.docker.engine.breaker import engine_failed
from sessions.backends.docker.engine.engine import CONNECTION_ERRORS, connect
from sessions.backends.docker.isolation import firewall
from sessions.backends.docker.isolation.network import bridge_name
from sessions.model.errors import BackendUnavailable, SessionError


def remove_container(container: str) -> None:
    """Remove a container without telling the gateway. Blocks.

    Raises:
        BackendUnavailable: when the engine refuses, or does not answer.
    """
    try:
        with closing(connect()) as api:
            api.remove_container(container, force=True)
    except APIError as error:
        raise engine_failed("remove a container from outside", error) from error
    except CONNECTION_ERRORS as error:
        raise BackendUnavailable(f"the engine did not remove a container: {str(error)[:200]}") from error


@contextmanager
def network_as_before(network: str) -> Iterator[None]:
    """Remove the kernels' network and its firewall rules at the end of the `with` block, if they did not exist before.

    They stay if another gateway uses them by then.
    """
    was_there = _is_there(network)
    try:
        yield
    finally:
        if not was_there:
            _forget(network)


def _is_there(network: str) -> bool:
    """Return whether a network exists. True if no engine answers, because then nothing is made or removed either."""
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
    except (APIError, SessionError, *CONNECTION_ERRORS):  # a gateway uses the network by now, or the engine has ended
        return

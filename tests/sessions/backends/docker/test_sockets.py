"""Which connections of a sandbox end when its memory is continued with."""

from __future__ import annotations

import pytest

from sessions.backends.docker.checkpoint.sockets import shows_outside_connections

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINE = "   0: 020012AC:A1B2 {remote} {state} 00000000:00000000 00:00000000 00000000 65532        0 9 1 0 0 0 0 0 0\n"
LISTENS = LINE.format(remote="00000000:0000", state="0A")
INSIDE = LINE.format(remote="0100007F:C351", state="01")


@pytest.mark.parametrize("state", ["01", "02", "08"])
def test_a_connection_to_another_host_is_found(state: str) -> None:
    assert shows_outside_connections(HEAD + LISTENS + INSIDE + LINE.format(remote="FE0012AC:0C38", state=state))


@pytest.mark.parametrize("table", ["", HEAD, HEAD + LISTENS + INSIDE, "nonsense\n1 2\n"])
def test_nothing_else_is_one(table: str) -> None:
    assert not shows_outside_connections(table)
    assert not shows_outside_connections(HEAD + LINE.format(remote="FE0012AC:0C38", state="06"))  # it has ended

"""Which connections are accepted, without sockets."""

from __future__ import annotations

from collections import Counter
from unittest.mock import Mock

import pytest

from kernel_gateway.wire.admission import Admission, peer_name
from kernel_gateway.wire.connections import Connection


class Door:
    """An admission whose connections end as soon as they are dropped."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self.refused: Counter[str] = Counter()
        self.admission = Admission(most, most_per_address, lambda reason: self.refused.update([reason]))

    def enter(self, host: str) -> Connection | None:
        connection = self.admission.admit(host)
        if connection is not None:
            connection.drop = connection.report_end  # type: ignore[method-assign]  # there is no stream
        return connection

    def at_work(self, host: str) -> Connection:
        connection = self.enter(host)
        assert connection is not None
        connection.end_head_time()
        connection.assign("acme")
        return connection

    def close(self) -> None:
        while self.admission.make_room():
            pass


@pytest.fixture
async def door() -> Door:
    """A door for 32 connections, 4 of each address."""
    return Door(32, 4)


async def test_a_spare_connection_makes_room_for_a_new_one_of_its_address(door: Door) -> None:
    spare = [door.enter("192.0.2.1") for _ in range(4)]
    other = door.enter("192.0.2.2")
    assert door.enter("192.0.2.1")
    assert [connection.ended for connection in spare if connection] == [True, False, False, False]
    assert other is not None
    assert not other.ended
    assert (door.admission.open, door.refused) == (5, Counter())
    door.close()


async def test_connections_at_work_are_kept_and_further_ones_of_the_address_refused(door: Door) -> None:
    working = [door.at_work("192.0.2.1") for _ in range(4)]
    assert door.enter("192.0.2.1") is None
    assert door.enter("192.0.2.2")
    assert door.refused == {"address": 1}
    door.admission.mark_spare(working[0])  # it has been answered
    assert door.enter("192.0.2.1")
    assert [connection.ended for connection in working] == [True, False, False, False]
    door.close()


async def test_the_last_places_are_for_this_machine(door: Door) -> None:
    for number in range(30):
        door.at_work(f"192.0.2.{number}")
    assert door.enter("198.51.100.1") is None
    assert [door.at_work("127.0.0.1").ended for _ in range(2)] == [False, False]
    assert door.enter("127.0.0.1") is None
    assert door.refused == {"total": 2}


async def test_the_address_with_most_spare_connections_makes_room(door: Door) -> None:
    for number in range(26):
        door.at_work(f"192.0.2.{number}")
    lonely = door.enter("198.51.100.1")
    many = [door.enter("198.51.100.2") for _ in range(3)]
    assert door.enter("198.51.100.3")
    assert lonely is not None
    assert not lonely.ended
    assert [connection.ended for connection in many if connection] == [True, False, False]
    door.close()


async def test_nothing_is_remembered_of_connections_that_have_ended(door: Door) -> None:
    for number in range(100):
        door.at_work(f"192.0.2.{number}").report_end()
    connection = door.enter("192.0.2.1")
    assert connection is not None
    connection.report_end()
    connection.assign("acme")
    door.admission.mark_spare(connection)
    told = Mock()
    connection.when_ended(told)  # too late to be told later
    told.assert_called_once_with()
    assert (door.admission.open, door.admission._peers) == (0, {})


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
        ("2001:db8:1:3::1", "2001:db8:1:3::"),
        ("::1", "::1"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_a_client_counts_by_its_network(host: str, name: str) -> None:
    assert peer_name(host) == name

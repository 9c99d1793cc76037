"""Admission: no tenant exceeds its limit, none waits without need, and a flood delays only its own tenant."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from sessions.tenants.admission import Admission, Ticket


def jain(shares: Sequence[float]) -> float:
    """Return how even shares are: 1 if all are equal, 1/n if one has all. Source: Jain, Chiu, Hawe (1984)."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def test_the_index_differs_for_even_and_uneven_shares() -> None:
    assert jain([3] * 20) == 1
    assert jain([20, *[0] * 19]) == 1 / 20


def served(wanted: dict[str, int], *, per_tenant: int, in_all: int, ends: int) -> Counter[str]:
    """Return begun executions by tenant, after `ends` have ended; tenants ask for all their executions at once."""
    admission, begun, running = Admission(per_tenant, in_all), Counter[str](), deque[str]()

    def begin(tenant: str) -> None:
        begun[tenant] += 1
        running.append(tenant)

    for tenant, number in wanted.items():
        for _ in range(number):
            if admission.enter(tenant):
                begin(tenant)
            else:
                admission.wait(tenant, lambda tenant=tenant: begin(tenant))  # type: ignore[misc]
    for _ in range(ends):
        admission.leave(running.popleft())
    return begun


def test_a_flood_of_one_tenant_leaves_equal_shares_to_twenty_tenants() -> None:
    wanted = {f"tenant-{number}": 1000 if number == 0 else 40 for number in range(20)}
    begun = served(wanted, per_tenant=10, in_all=20, ends=400)
    assert jain([begun[tenant] for tenant in wanted]) > 0.9
    # Control: one queue for all, as without tenants.
    assert jain([1000, *[0] * 19]) < 0.1


def test_twenty_waiting_tenants_share_twenty_slots_equally() -> None:
    wanted = {f"tenant-{number}": 100 for number in range(20)}
    begun = served(wanted, per_tenant=10, in_all=20, ends=2000 - 20)
    assert set(begun.values()) == {100}


def test_a_tenant_at_its_limit_does_not_delay_others() -> None:
    admission = Admission(1, 2)
    assert admission.enter("a")
    woken: list[str] = []
    admission.wait("a", lambda: woken.append("a"))
    assert admission.enter("b")
    admission.wait("b", lambda: woken.append("b"))
    admission.leave("b")
    assert woken == ["b"]
    assert (admission.running, admission.waiting) == (2, 1)


def test_executions_of_a_tenant_are_admitted_in_order() -> None:
    admission, woken = Admission(1, 1), list[int]()
    assert admission.enter("a")
    for number in range(5):
        admission.wait("a", lambda number=number: woken.append(number))  # type: ignore[misc]
    for _ in range(5):
        admission.leave("a")
    assert woken == list(range(5))


def test_a_withdrawn_ticket_frees_its_place_before_and_after_admission() -> None:
    admission = Admission(1, 1)
    assert admission.enter("a")
    waiting, admitted = admission.wait("a", lambda: None), admission.wait("b", lambda: None)
    admission.withdraw(waiting)
    admission.leave("a")
    assert admitted.admitted
    admission.withdraw(admitted)
    assert (admission.running, admission.waiting) == (0, 0)
    assert not admission._running._had
    assert not admission._queues


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "end", "give up"]))))
def test_limits_always_hold_and_nothing_waits_without_need(events: list[tuple[str, str]]) -> None:
    admission = Admission(2, 4)
    running, queues = Counter[str](), {tenant: list[Ticket]() for tenant in "abc"}

    def wake(tenant: str) -> None:
        running[tenant] += 1
        queues[tenant].pop(0)

    for tenant, event in events:
        if event == "ask":
            if admission.enter(tenant):
                running[tenant] += 1
            else:
                queues[tenant].append(admission.wait(tenant, lambda tenant=tenant: wake(tenant)))  # type: ignore[misc]
        elif event == "end" and running[tenant]:
            running[tenant] -= 1
            admission.leave(tenant)
        elif event == "give up" and queues[tenant]:
            admission.withdraw(queues[tenant].pop())
        assert max(running.values(), default=0) <= 2
        assert admission.running == running.total() <= 4
        assert admission.waiting == sum(map(len, queues.values()))
        assert all(running[who] == 2 or running.total() == 4 for who, queue in queues.items() if queue)

"""Admission: nobody gets more than it may, nobody waits without need, and a flood holds up only its own tenant."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from sessions.admission import Admission, Place


def jain(shares: Sequence[float]) -> float:
    """How even shares are: 1 when they are all the same, 1/n when one has all. Source: Jain, Chiu, Hawe (1984)."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def test_the_index_tells_even_from_uneven() -> None:
    assert jain([3] * 20) == 1
    assert jain([20, *[0] * 19]) == 1 / 20


def served(wanted: dict[str, int], *, per_tenant: int, in_all: int, ends: int) -> Counter[str]:
    """Who had how many executions when so many had ended, of tenants that ask for all they want at once."""
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


def test_twenty_tenants_are_served_alike_whatever_the_first_of_them_asks_for() -> None:
    wanted = {f"tenant-{number}": 1000 if number == 0 else 40 for number in range(20)}
    begun = served(wanted, per_tenant=10, in_all=20, ends=400)
    assert jain([begun[tenant] for tenant in wanted]) > 0.9
    # The control: one line for all, as it would be without tenants.
    assert jain([1000, *[0] * 19]) < 0.1


def test_as_many_as_there_are_slots_share_them_at_once_when_all_of_them_wait() -> None:
    wanted = {f"tenant-{number}": 100 for number in range(20)}
    begun = served(wanted, per_tenant=10, in_all=20, ends=2000 - 20)
    assert set(begun.values()) == {100}


def test_a_tenant_at_its_limit_holds_up_nobody_else() -> None:
    admission = Admission(1, 2)
    assert admission.enter("a")
    woken: list[str] = []
    admission.wait("a", lambda: woken.append("a"))
    assert admission.enter("b")
    admission.wait("b", lambda: woken.append("b"))
    admission.leave("b")
    assert woken == ["b"]
    assert (admission.running, admission.waiting) == (2, 1)


def test_the_first_of_a_tenant_is_served_first() -> None:
    admission, woken = Admission(1, 1), list[int]()
    assert admission.enter("a")
    for number in range(5):
        admission.wait("a", lambda number=number: woken.append(number))  # type: ignore[misc]
    for _ in range(5):
        admission.leave("a")
    assert woken == list(range(5))


def test_a_place_that_is_given_up_is_nobodys_also_when_its_turn_has_come() -> None:
    admission = Admission(1, 1)
    assert admission.enter("a")
    waiting, admitted = admission.wait("a", lambda: None), admission.wait("b", lambda: None)
    admission.withdraw(waiting)
    admission.leave("a")
    assert admitted.admitted
    admission.withdraw(admitted)
    assert (admission.running, admission.waiting) == (0, 0)
    assert not admission._running
    assert not admission._lines


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "end", "give up"]))))
def test_whatever_happens_the_limits_hold_and_nobody_waits_for_nothing(events: list[tuple[str, str]]) -> None:
    admission = Admission(2, 4)
    running, lines = Counter[str](), {tenant: list[Place]() for tenant in "abc"}

    def wake(tenant: str) -> None:
        running[tenant] += 1
        lines[tenant].pop(0)

    for tenant, event in events:
        if event == "ask":
            if admission.enter(tenant):
                running[tenant] += 1
            else:
                lines[tenant].append(admission.wait(tenant, lambda tenant=tenant: wake(tenant)))  # type: ignore[misc]
        elif event == "end" and running[tenant]:
            running[tenant] -= 1
            admission.leave(tenant)
        elif event == "give up" and lines[tenant]:
            admission.withdraw(lines[tenant].pop())
        assert max(running.values(), default=0) <= 2
        assert admission.running == running.total() <= 4
        assert admission.waiting == sum(map(len, lines.values()))
        assert all(running[who] == 2 or running.total() == 4 for who, line in lines.items() if line)

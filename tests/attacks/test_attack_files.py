"""Hostile code beside the files tool and the processes tool: both run in its sandbox, as its user."""

from __future__ import annotations

import pytest
import requests

from tests.attacks.cells import Attacker

pytestmark = [pytest.mark.engine, pytest.mark.measured]

#: swaps a directory of the workspace and a link to /etc until it is ended, and at most for five minutes
SWAPPER = """
import os, subprocess, sys
os.mkdir("place")
open("place/passwd", "w").write("own")
os.symlink("/etc", "trap")
swap = '''
import os, time
end = time.monotonic() + 300
while time.monotonic() < end:
    for source, target in ("place", "aside"), ("trap", "place"), ("place", "trap"), ("aside", "place"):
        os.rename(source, target)
    if not os.path.exists("place/passwd"):
        open("place/passwd", "w").write("own")
'''
swapper = subprocess.Popen([sys.executable, "-c", swap])
"""
#: checks a path and opens it afterwards, as long as that leads nowhere else, and at most for a minute
OLD_WAY = """
import os, time
caught, end = 0, time.monotonic() + 60
while not caught and time.monotonic() < end:
    try:
        real = os.path.realpath("place/passwd")
        if real.startswith(os.getcwd() + "/"):
            with os.fdopen(os.open(real, os.O_RDONLY | os.O_NOFOLLOW)) as file:
                caught += "root:" in file.read()
    except OSError:
        pass
print(caught)
"""
TRIES = 60


def test_a_directory_swapped_for_a_link_shows_nothing_of_the_container(evil: Attacker) -> None:
    evil.expect("ok", SWAPPER)
    assert evil.text(OLD_WAY, timeout=90).strip() == "1", "control: the swap catches a check followed by an opening"
    files = f"/v1/sessions/{evil.session}/files"
    read = 0
    for _ in range(TRIES):
        answer = evil.gateway.call("GET", f"{files}/place/passwd", tenant=evil.tenant)
        assert answer.status_code in {200, 400, 404}, answer.text
        assert "root:" not in answer.text
        read += answer.text == "own"
    assert read, "control: the file was never read"
    evil.expect("ok", "assert swapper.poll() is None, 'control: it swaps until now'; swapper.kill(); swapper.wait()")
    evil.still_works()


def test_a_directory_swapped_for_a_link_lets_no_move_reach_out_of_the_workspace(evil: Attacker) -> None:
    outside = "import os; os.mkdir('/tmp/outside'); open('/tmp/outside/passwd', 'w').write('root: not yours')"
    evil.expect("ok", outside + SWAPPER.replace("/etc", "/tmp/outside"))
    assert evil.text(OLD_WAY, timeout=90).strip() == "1", "control: the swap catches a check followed by an opening"
    moved = 0
    for number in range(TRIES // 2):
        body = {"from": "place/passwd", "to": f"loot-{number}"}
        answer = evil.gateway.call("POST", f"/v1/sessions/{evil.session}/move", json=body, tenant=evil.tenant)
        assert answer.status_code in {200, 400, 404}, answer.text
        moved += answer.ok
    assert moved, "control: the file was never moved"
    evil.expect("ok", "assert swapper.poll() is None, 'control: it swaps until now'; swapper.kill(); swapper.wait()")
    assert evil.text("print(open('/tmp/outside/passwd').read())").strip() == "root: not yours"
    loot = evil.text("import glob; print(*[open(name).read() for name in glob.glob('loot-*')])")
    assert set(loot.split()) == {"own"}
    evil.still_works()


#: sends a signal to the program that runs the tools, and prints how many such programs there were
SIGNAL_TOOLBOX = """
import os, signal
def command(pid):
    try:
        return open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError:
        return b""
found = [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and b"/toolbox.py" in command(pid)]
for pid in found:
    os.kill(pid, signal.%s)
print(len(found))
"""


def test_code_that_ends_the_gateways_tools_delays_only_its_own_files(evil: Attacker) -> None:
    files = f"/v1/sessions/{evil.session}/files"
    evil.expect("ok", "open('mine', 'w').write('own')")
    for _ in range(3):
        assert evil.gateway.call("GET", f"{files}/mine", tenant=evil.tenant).text == "own"
        assert evil.text(SIGNAL_TOOLBOX % "SIGKILL").strip() == "1", "control: there is a program to end"
        evil.gateway.call("GET", f"{files}/mine", tenant=evil.tenant)  # it may be the one that notices the end
    assert evil.gateway.call("GET", f"{files}/mine", tenant=evil.tenant).text == "own"
    evil.still_works()


def test_code_that_stops_the_gateways_tools_can_be_ended(evil: Attacker) -> None:
    files = f"/v1/sessions/{evil.session}/files"
    evil.expect("ok", "open('mine', 'w').write('own')")
    assert evil.gateway.call("GET", f"{files}/mine", tenant=evil.tenant).text == "own"
    assert evil.text(SIGNAL_TOOLBOX % "SIGSTOP").strip() == "1", "control: there is a program to stop"
    with pytest.raises(requests.exceptions.Timeout):
        evil.gateway.call("GET", f"{files}/mine", tenant=evil.tenant, timeout=2)
    evil.still_works()
    assert evil.gateway.call("DELETE", f"/v1/sessions/{evil.session}", tenant=evil.tenant).ok

"""Memory that large messages have used is kept for the next ones, until it is trimmed."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: prints the pages that the system gives to a process that writes and reads a large text for the third time
PAGES = """
import ctypes, resource, orjson
from sessions.upkeep.heap import keep_freed_memory, trim_heap
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: pages of one size
TEXT = "x" * 8_000_000
{first}
def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    orjson.loads(orjson.dumps(TEXT))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
use(); use()
{then}
print(use())
"""
#: of one copy of the text
TEXT_PAGES = 8_000_000 // 4096


@pytest.mark.parametrize(
    ("first", "then", "given"),
    [("keep_freed_memory()", "", False), ("", "", True), ("keep_freed_memory()", "trim_heap()", True)],
)
def test_freed_memory_is_used_again_until_it_is_trimmed(first: str, then: str, *, given: bool) -> None:
    code = PAGES.format(first=first, then=then)
    pages = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert (pages > TEXT_PAGES) is given

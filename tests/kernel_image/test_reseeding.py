"""What a process that is restored from a checkpoint renews; `test_restored.py` looks at real ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kernel_image

#: prints whether the key of `multiprocessing` and the state of `random` have changed
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import multiprocessing, random
from python_kernel.reseeding import RandomSources
sources, before = RandomSources(), (multiprocessing.current_process().authkey, random.getstate())
sources.reseed()
print(multiprocessing.current_process().authkey != before[0], random.getstate() != before[1])
"""


def test_the_key_of_multiprocessing_and_the_state_of_random_are_renewed() -> None:
    folder = str(Path(kernel_image.__file__).parent)
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]

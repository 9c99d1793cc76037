"""What each language promises, and what it cannot do: the contract in each folder of `kernel_image/kernelspecs/`.

`contract.toml` beside `kernel.json` has two tables:

- `cells`: code for each name in `CELLS`, in this language.
- `cannot`: promises that the language does not keep, each with the reason. The suite runs their cells all the same, and
  fails if the promise is kept after all.

`tests/kernel_gateway/test_language_contract.py` runs the cells. The page docs/languages.md shows what languages cannot
do.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sessions.backends.base import KERNEL_IMAGE
from sessions.model.kernelspecs import KernelSpec, KernelSpecs

#: what a user gets of each language
PROMISES = {
    "result": "the value of a cell is its result",
    "print": "stdout and stderr arrive apart and complete, in Unicode",
    "child": "output of child processes belongs to the cell",
    "error": "an error is an error message, and the variables stay",
    "error_class": "an error has the name of its class, and its text",
    "interrupt_wait": "an interrupt ends a cell that waits, and the variables stay",
    "interrupt_compute": "an interrupt ends a cell that computes, its code stops, and the variables stay",
    "deadline": "a deadline does the same",
    "input": "code can ask for input",
    "files": "code and API see the same files",
    "environment": "code sees the environment of its session",
    "arguments": "`arguments` of a cell are passed to `main`",
    "checkpoint": "a session returns to its checkpoint (in gVisor)",
}
#: what each cell of a contract does
CELLS = {
    "keep": "sets a variable to 41",
    "change": "sets this variable to 1",
    "kept": "prints this variable plus one, as one line",
    "result": "has the value 42, and prints nothing",
    "print": "prints `grüße ☃` as one line",
    "complain": "prints `oh nö` to stderr as one line",
    "lines": "prints the numbers from 0 to 9999, one per line",
    "child": "runs the program `echo` with the word `child`, which inherits the standard output",
    "fail": "fails with the text `no luck`",
    "error_class": "no code: the name of the class of this error",
    "wait": "creates the file `begun`, and then waits for five minutes",
    "compute": "creates the file `begun`, and then counts in a variable, without an end and without a pause",
    "counted": "prints the variable of `compute`",
    "ask": "asks for a line, with the prompt `name? ` if the language has prompts, and prints it as one line",
    "write": "writes `grüße` without a line end into the file `ä.txt`",
    "read": "prints the file `ö.txt`, and a line end",
    "environment": "prints the environment variable `WHO` as one line",
    "session": "prints the environment variable `KERNEL_GATEWAY_SESSION` as one line",
    "main": "defines `main`, with the arguments `text` and `number`, which prints both with a blank between them",
}
#: the file that names Debian's packages of a language that only an image of its own has
DEBIAN = "debian.txt"


@dataclass(frozen=True, slots=True, eq=False)  # each is itself: a dict cannot be hashed
class Contract:
    """The contract of one language."""

    spec: KernelSpec
    #: folder of the language
    folder: Path
    #: code by the names in `CELLS`
    cells: dict[str, str]
    #: reasons by the names in `PROMISES`
    cannot: dict[str, str]


@cache
def contracts(directory: Path = KERNEL_IMAGE / "kernelspecs") -> tuple[Contract, ...]:
    """Return the contracts of all languages, in the order of their names.

    Args:
        directory: folder of the languages' folders.

    Raises:
        AssertionError: when a language has no contract, or one that is not complete.
    """
    return tuple(_read(directory / spec.name, spec) for spec in KernelSpecs(directory).all)


def _read(folder: Path, spec: KernelSpec) -> Contract:
    file = folder / "contract.toml"
    assert file.exists(), f"{spec.name} has no contract.toml"
    content = tomllib.loads(file.read_text())
    cells, cannot = content.pop("cells", {}), content.pop("cannot", {})
    assert not content, f"{file}: only `cells` and `cannot` are known"
    assert cells.keys() == CELLS.keys(), f"{file}: missing or unknown cells: {sorted(cells.keys() ^ CELLS.keys())}"
    assert cannot.keys() <= PROMISES.keys(), f"{file}: no such promises: {sorted(cannot.keys() - PROMISES.keys())}"
    assert all(cannot.values()), f"{file}: a promise that is not kept needs a reason"
    return Contract(spec, folder, cells, cannot)

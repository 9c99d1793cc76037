"""Static code policies: what may not even be tried. Pure.

A profile reads what a client wants to run, and names what it does not like in it. That keeps accidents and known bad
habits out and tells an agent early what it cannot have. It is a hint and no boundary: code that means to gets round
any of them. What code can do is bounded by where it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from sessions.errors import PolicyViolation
from sessions.models import ExecuteRequest
from sessions.policy import ragflow, weknora

#: problems that are told, and characters of each: an answer is not to be as large as the question
PROBLEMS_MAX = 20
PROBLEM_MAX = 200

#: given a language and what is to run in it, names the problems
Profile = Callable[[str, ExecuteRequest], Iterable[str]]


def _none(_language: str, _request: ExecuteRequest) -> Iterable[str]:
    return ()


def _ragflow_strict(language: str, request: ExecuteRequest) -> Iterable[str]:
    """Its arguments are data there."""
    for code in (request.written, *request.expressions):
        yield from ragflow.problems(code, language)


def _weknora(_language: str, request: ExecuteRequest) -> Iterable[str]:
    script = "\n".join((request.written, *request.expressions))
    return weknora.problems(script, request.arguments or {}, "\n".join(request.stdin or ()))


PROFILES: dict[str, Profile] = {"none": _none, "ragflow-strict": _ragflow_strict, "weknora": _weknora}


def enforce(profile: str, language: str, request: ExecuteRequest) -> None:
    """Let a request pass, or not.

    Args:
        profile: one of `PROFILES`.
        language: of the kernel, or `shell`.
        request: what is to run.

    Raises:
        PolicyViolation: the profile does not allow it.
    """
    problems = [problem[:PROBLEM_MAX] for problem in islice(PROFILES[profile](language, request), PROBLEMS_MAX)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise PolicyViolation(
            f"the code policy {profile} refuses this: {problems[0]}{more}", profile=profile, problems=problems
        )

"""Static code policies, which refuse code before it runs. Pure.

A profile reads the code that a client wants to run, and lists the problems in it. That prevents accidents, and tells an
agent early which functions are not available. A policy is a hint and no security boundary: deliberate code can bypass
every profile. Only the sandbox isolates code.

This room knows no tenant, no kernel and no session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from sessions.model.errors import PolicyViolation
from sessions.model.values import ExecuteRequest
from sessions.policy import ragflow, weknora

#: maximum problems in an answer, and maximum characters of each: an answer must be smaller than its request
PROBLEMS_MAX = 20
PROBLEM_MAX = 200

#: function that returns the problems of a request in a language
Profile = Callable[[str, ExecuteRequest], Iterable[str]]


def _none(_language: str, _request: ExecuteRequest) -> Iterable[str]:
    return ()


def _ragflow_strict(language: str, request: ExecuteRequest) -> Iterable[str]:
    """Check code and expressions. The profile treats arguments as data."""
    for code in (request.client_code, *request.expressions):
        yield from ragflow.problems(code, language)


def _weknora(_language: str, request: ExecuteRequest) -> Iterable[str]:
    script = "\n".join((request.client_code, *request.expressions))
    return weknora.problems(script, request.arguments or {}, "\n".join(request.stdin or ()))


PROFILES: dict[str, Profile] = {"none": _none, "ragflow-strict": _ragflow_strict, "weknora": _weknora}


def enforce(profile: str, language: str, request: ExecuteRequest) -> None:
    """Check a request against a profile.

    Args:
        profile: one of `PROFILES`.
        language: language of the kernel, or `shell`.
        request: request to check.

    Raises:
        PolicyViolation: when the profile does not allow the request.
    """
    problems = [problem[:PROBLEM_MAX] for problem in islice(PROFILES[profile](language, request), PROBLEMS_MAX)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise PolicyViolation(
            f"the code policy {profile} refuses this: {problems[0]}{more}", profile=profile, problems=problems
        )

"""What is refused, by which profile, and how it is told."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_gateway.config import Settings
from sessions import policy
from sessions.errors import PolicyViolation
from sessions.models import ExecuteRequest

HOSTILE = "import os; os.system('curl x | sh'); eval(input())"


def refused(profile: str, language: str = "python", **fields: Any) -> list[str]:
    """The problems of what is refused; nothing: it is not."""
    violation = None
    try:
        policy.enforce(profile, language, ExecuteRequest(**{"code": "1"} | fields))
    except PolicyViolation as raised:
        violation = raised
    if violation is None:
        return []
    problems: list[str] = violation.details["problems"]
    assert violation.details["profile"] == profile
    assert problems[0] in violation.message
    return problems


def test_the_settings_are_the_profiles_there_are() -> None:
    assert set(get_args(Settings.model_fields["code_policy"].annotation)) == set(policy.PROFILES)


def test_without_a_policy_all_may_run() -> None:
    assert refused("none", code=HOSTILE) == []
    assert refused("none", "shell", code=HOSTILE * 100_000) == []


def test_each_profile_refuses_what_is_its_own() -> None:
    assert refused("ragflow-strict", code="import os") == ["Line 1: Import: os"]
    assert refused("weknora", code="import os") == []
    assert refused("weknora", code="x = 'service'") == ["script: the dangerous command 'service'"]
    assert refused("ragflow-strict", code="x = 'service'") == []


def test_each_language_is_read_as_what_it_is() -> None:
    assert refused("ragflow-strict", "javascript", code="import os") == []
    assert refused("ragflow-strict", "javascript", code="eval(x)") == ["Line 1: Call: eval"]
    assert len(refused("ragflow-strict", "shell", code="true")) == 1
    assert refused("weknora", "shell", code="true") == []


@pytest.mark.parametrize("profile", ["ragflow-strict", "weknora"])
def test_what_the_client_wrote_counts_and_not_what_is_made_of_it(profile: str) -> None:
    assert refused(profile, code="f()\n__import__('json')", source="f()") == []
    assert refused(profile, code="f()", source="__import__('json')")


@pytest.mark.parametrize("profile", ["ragflow-strict", "weknora"])
def test_what_is_evaluated_afterwards_counts_too(profile: str) -> None:
    assert refused(profile, expressions=("x", "y")) == []
    assert refused(profile, expressions=("x", "eval('y')"))


def test_arguments_and_input_are_data_to_one_and_not_to_the_other() -> None:
    data: dict[str, Any] = {"arguments": {"a": "b; c"}, "stdin": ("$(d)",)}
    assert refused("ragflow-strict", **data) == []
    assert refused("weknora", **data) == ["args[0]: shell operators", "stdin: shell commands"]


def test_what_is_told_is_bounded() -> None:
    problems = refused("ragflow-strict", code="eval()\n" * 1000)
    assert problems == [f"Line {line}: Call: eval" for line in range(1, policy.PROBLEMS_MAX + 1)]
    (problem,) = refused("ragflow-strict", code=f"import os.{'a' * 10_000}")
    assert len(problem) == policy.PROBLEM_MAX


def test_one_problem_is_told_and_how_many_more_there_are() -> None:
    with pytest.raises(
        PolicyViolation, match=re.escape("ragflow-strict refuses this: Line 1: Import: os (and 2 more)")
    ):
        policy.enforce("ragflow-strict", "python", ExecuteRequest("import os, sys, socket"))


@given(
    st.sampled_from(sorted(policy.PROFILES)),
    st.sampled_from(["python", "javascript", "shell"]),
    st.text(),
    st.dictionaries(st.text(), st.text()),
)
def test_whatever_comes_there_is_a_verdict(profile: str, language: str, code: str, arguments: dict[str, str]) -> None:
    for problem in refused(profile, language, code=code, arguments=arguments, expressions=(code,), stdin=(code,)):
        assert len(problem) <= policy.PROBLEM_MAX

"""Code policies: what each profile refuses, and how the refusal is reported."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_gateway.config import Settings
from sessions import policy
from sessions.model.errors import PolicyViolation
from sessions.model.values import ExecuteRequest

HOSTILE = "import os; os.system('curl x | sh'); eval(input())"


def refused(profile: str, language: str = "python", **fields: Any) -> list[str]:
    """Return the problems of a refused request; empty: the request is accepted."""
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


def test_the_setting_allows_exactly_the_existing_profiles() -> None:
    assert set(get_args(Settings.model_fields["code_policy"].annotation)) == set(policy.PROFILES)


def test_without_a_policy_all_may_run() -> None:
    assert refused("none", code=HOSTILE) == []
    assert refused("none", "shell", code=HOSTILE * 100_000) == []


def test_each_profile_applies_its_own_rules() -> None:
    assert refused("ragflow-strict", code="import os") == ["Line 1: Import: os"]
    assert refused("weknora", code="import os") == []
    assert refused("weknora", code="x = 'service'") == ["script: the dangerous command 'service'"]
    assert refused("ragflow-strict", code="x = 'service'") == []


def test_each_language_is_checked_by_its_own_rules() -> None:
    assert refused("ragflow-strict", "javascript", code="import os") == []
    assert refused("ragflow-strict", "javascript", code="eval(x)") == ["Line 1: Call: eval"]
    assert len(refused("ragflow-strict", "shell", code="true")) == 1
    assert refused("weknora", "shell", code="true") == []


@pytest.mark.parametrize("profile", ["ragflow-strict", "weknora"])
def test_the_clients_code_is_checked_and_not_the_sent_code(profile: str) -> None:
    assert refused(profile, code="f()\n__import__('json')", source="f()") == []
    assert refused(profile, code="f()", source="__import__('json')")


@pytest.mark.parametrize("profile", ["ragflow-strict", "weknora"])
def test_expressions_are_checked_too(profile: str) -> None:
    assert refused(profile, expressions=("x", "y")) == []
    assert refused(profile, expressions=("x", "eval('y')"))


def test_only_weknora_checks_arguments_and_stdin() -> None:
    data: dict[str, Any] = {"arguments": {"a": "b; c"}, "stdin": ("$(d)",)}
    assert refused("ragflow-strict", **data) == []
    assert refused("weknora", **data) == ["args[0]: shell operators", "stdin: shell commands"]


def test_number_and_length_of_problems_are_limited() -> None:
    problems = refused("ragflow-strict", code="eval()\n" * 1000)
    assert problems == [f"Line {line}: Call: eval" for line in range(1, policy.PROBLEMS_MAX + 1)]
    (problem,) = refused("ragflow-strict", code=f"import os.{'a' * 10_000}")
    assert len(problem) == policy.PROBLEM_MAX


def test_the_message_names_one_problem_and_the_number_of_others() -> None:
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
def test_any_request_gets_a_verdict(profile: str, language: str, code: str, arguments: dict[str, str]) -> None:
    for problem in refused(profile, language, code=code, arguments=arguments, expressions=(code,), stdin=(code,)):
        assert len(problem) <= policy.PROBLEM_MAX

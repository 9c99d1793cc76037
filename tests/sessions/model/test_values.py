"""Names, limits and environments: each has one reading, and all else is refused."""

from __future__ import annotations

import math
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import InvalidRequest
from sessions.model.values import CPUS_MIN, MEMORY_MIN, NAME, Limits, SessionKey, valid_env, valid_name

NAMES = st.from_regex(NAME, fullmatch=True)
#: characters that are separators somewhere, or look like other characters
SEPARATING = ":/\\.%\0\n\r\t @*?#|&;<>{}$'\"\u200b\u202e\u2024\uff21éa1-_"
HOSTILE = st.text(st.sampled_from(SEPARATING) | st.characters(), max_size=70)
SECRET = b"0123456789abcdef-the-hmac-key"


# -- names -----------------------------------------------------------------------------------------------------


@given(NAMES, NAMES, NAMES, NAMES)
def test_no_two_keys_read_the_same(tenant: str, name: str, other_tenant: str, other_name: str) -> None:
    one, other = SessionKey(tenant, name), SessionKey(other_tenant, other_name)
    assert (str(one) == str(other)) == (one == other)


@given(NAMES, NAMES)
def test_a_key_can_be_read_back(tenant: str, name: str) -> None:
    assert str(SessionKey(tenant, name)).split(":") == [tenant, name]


@given(HOSTILE)
def test_a_name_is_plain_ascii_or_refused(name: str) -> None:
    plain = 1 <= len(name) <= 64 and set(name) <= set(string.ascii_letters + string.digits + "._-")
    if plain and name[0] not in "._-":
        assert valid_name("session", name) == name
    else:
        with pytest.raises(InvalidRequest):
            valid_name("session", name)


@pytest.mark.parametrize("name", ["a", "A", "0", "a" * 64, "a.b", "a-b", "a_b", "a..b", "1.2.3.4"])
def test_a_plain_name_is_accepted(name: str) -> None:
    assert SessionKey(name, name).name == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../etc", ".hidden", "-rf", "_x", "a/b", "a\\b", "a:b", "a b", "a%2fb", "a*", "a" * 65),
        *("a\n", "\na", "a\nb", "a\0", "a\r", "a\t", "a\x1b[0m"),
        *("é", "\u0430", "\uff21", "a\u200b", "a\u202eb", "1²", "\u0663", "\ud800"),
        *(None, 1, b"a", ["a"], {"a": 1}, True),
    ],
)
def test_any_other_name_is_refused(name: object) -> None:
    for tenant, session in ((name, "good"), ("good", name)):
        with pytest.raises(InvalidRequest):
            SessionKey(tenant, session)  # type: ignore[arg-type]


def test_a_refusal_says_which_field() -> None:
    with pytest.raises(InvalidRequest) as refused:
        SessionKey("good", "bad:")
    assert refused.value.details == {"field": "session"}


# -- limits ----------------------------------------------------------------------------------------------------


def test_limits_can_be_lowered() -> None:
    lowered = Limits().narrowed({"memory": MEMORY_MIN, "cpus": CPUS_MIN})
    assert lowered == Limits(memory=MEMORY_MIN, cpus=CPUS_MIN)


@pytest.mark.parametrize(
    ("name", "asked", "least", "shown"),
    [
        ("memory", MEMORY_MIN - 1, 134217728, "128 MiB and at most 512 MiB"),
        ("cpus", 0.09, 0.1, "0.1 and at most 1.0"),
        ("processes", 15.9, 16, "16 and at most 64"),
        ("disk", 1, 1048576, "1 MiB and at most 256 MiB"),
    ],
)
def test_a_limit_below_what_a_kernel_needs_is_refused_with_the_bound(
    name: str, asked: float, least: float, shown: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"limit {name} must be at least {shown}$") as refused:
        Limits().narrowed({name: asked})
    assert (refused.value.details["field"], refused.value.details["min"]) == (f"limits.{name}", least)


def test_a_limit_may_stay_unchanged() -> None:
    assert Limits().narrowed({name: getattr(Limits(), name) for name in Limits.__slots__}) == Limits()


def test_limits_keep_their_types() -> None:
    lowered = Limits().narrowed({"processes": 17.9, "cpus": 1})
    assert (type(lowered.processes), type(lowered.cpus)) == (int, float)


@pytest.mark.parametrize("asked", [0, -1, 2**62, 0.0, -math.inf, math.inf, math.nan])
@pytest.mark.parametrize("name", Limits.__slots__)
def test_a_limit_cannot_be_raised_or_taken_away(name: str, asked: float) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Limits().narrowed({name: asked})
    assert refused.value.details["field"] == f"limits.{name}"


def test_a_limit_is_never_rounded_to_zero() -> None:
    with pytest.raises(InvalidRequest):
        Limits().narrowed({"output": 0.5})


def test_a_refused_unknown_limit_lists_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="memory, cpus, processes, disk, output"):
        Limits().narrowed({"gpu": 1})


@given(st.dictionaries(st.sampled_from(Limits.__slots__), st.floats() | st.floats(0, 2) | st.integers()))
def test_narrowing_never_raises_a_limit(asked: dict[str, float]) -> None:
    try:
        lowered = Limits().narrowed(asked)
    except InvalidRequest:
        return
    for name in Limits.__slots__:
        assert 0 < getattr(lowered, name) <= getattr(Limits(), name)


# -- environment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["API_KEY", "_x", "a1", "OPENAI_API_BASE", "PATHS", "MY_PYTHONPATH", "LDAP"])
def test_an_ordinary_variable_may_be_set(name: str) -> None:
    assert valid_env({name: "value with = and ü"}) == {name: "value with = and ü"}


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHON", "PYTHONHOME"),
        *("IPYTHONDIR", "JUPYTER_PATH", "DENO_DIR", "KERNEL_GATEWAY_KEYS", "PATH", "HOME", "SHELL"),
        *("", "1a", "a-b", "a=b", "a b", "a\n", "LD_PRELOAD\n", "é", "a\0", "a" * 129),
    ],
)
def test_a_variable_that_changes_what_is_loaded_cannot_be_set(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        valid_env({"FINE": "1", name: "1"})
    assert refused.value.details == {"field": "env"}


def test_a_value_holds_no_nul() -> None:
    with pytest.raises(InvalidRequest):
        valid_env({"FINE": "a\0b"})


def test_the_size_of_an_environment_is_limited() -> None:
    assert valid_env({"A": "x" * (32 * 1024 - 1)})
    with pytest.raises(InvalidRequest):
        valid_env({"A": "x" * (32 * 1024)})


def test_an_environment_is_measured_in_bytes() -> None:
    with pytest.raises(InvalidRequest):
        valid_env({"A": "ü" * (20 * 1024)})


def test_a_value_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        valid_env({"A": "\ud800"})


# -- connections -----------------------------------------------------------------------------------------------


def _info(**changes: bytes) -> ConnectionInfo:
    ports = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
    return ConnectionInfo("tcp", "10.0.0.2", **ports, key=SECRET, **changes)  # type: ignore[arg-type]


def test_a_connection_shows_no_secret() -> None:
    info = _info(curve_publickey=b"the-public-key", curve_secretkey=b"the-secret-key")
    for secret in ("hmac-key", "public-key", "secret-key"):
        assert secret not in f"{info} {info!r}"
    assert "10.0.0.2" in repr(info)


def test_a_connection_knows_its_endpoints() -> None:
    assert _info().url("iopub") == "tcp://10.0.0.2:2"
    assert ConnectionInfo("ipc", "/run/k", 1, 2, 3, 4, 5, SECRET).url("control") == "ipc:///run/k-4"


def test_the_connection_file_has_everything_a_kernel_needs() -> None:
    assert _info().file()["key"] == SECRET.decode()
    assert _info().file()["signature_scheme"] == "hmac-sha256"
    assert replace(_info(), signature="hmac-blake2b").file()["signature_scheme"] == "hmac-blake2b"
    assert "curve_secretkey" not in _info().file()
    encrypted = _info(curve_publickey=b"p", curve_secretkey=b"s").file()
    assert (encrypted["curve_publickey"], encrypted["curve_secretkey"]) == ("p", "s")

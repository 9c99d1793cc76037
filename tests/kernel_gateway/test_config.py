"""Settings: fields, flags and environment variables are one set; invalid values are refused before the start."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from kernel_gateway.cli import main
from kernel_gateway.cli.settings import add_settings, settings_from
from kernel_gateway.client_config import Client, load_client
from kernel_gateway.config import RENAMED, Settings, load, settings_by_group
from kernel_gateway.setting_types import TenantForm, ToolServerForm
from sessions.model.errors import InvalidRequest
from sessions.model.tenant_limits import OwnLimits
from sessions.model.values import Limits

#: for each setting a value that is not its default, as text and as parsed
OTHER: dict[str, tuple[str, Any]] = {
    "host": ("localhost", "localhost"),
    "port": ("0", 0),
    "allowed_hosts": ("a.example, b.example", ["a.example", "b.example"]),
    "allowed_origins": ("https://a.example, http://b:80", ["https://a.example", "http://b:80"]),
    "isolation": ("docker", "docker"),
    "runtime": ("runc", "runc"),
    "image": ("image:1", "image:1"),
    "images": ("image:2, image:3", ["image:2", "image:3"]),
    "wheels": ("/srv/wheels", Path("/srv/wheels")),
    "network": ("other", "other"),
    "kubernetes_config": ("kubeconfig", Path("kubeconfig")),
    "kubernetes_namespace": ("kernels", "kernels"),
    "kubernetes_runtime_class": ("runc", "runc"),
    "kubernetes_image_pull_policy": ("Never", "Never"),
    "kubernetes_node_selector": ("pool=kernels, disk=", {"pool": "kernels", "disk": ""}),
    "kubernetes_tolerations": ('[{"key": "a", "operator": "Exists"}]', [{"key": "a", "operator": "Exists"}]),
    "kubernetes_priority_class": ("low", "low"),
    "kubernetes_lost_node_seconds": ("30", 30),
    "kubernetes_gateway_label": ("app=gateway", {"app": "gateway"}),
    "kubernetes_gateway_address": ("192.0.2.1, 10.0.0.0/24", ["192.0.2.1/32", "10.0.0.0/24"]),
    "egress_allow": ("a.example, b.example:8080", ["a.example", "b.example:8080"]),
    "egress_tenants": ("team, other", ["team", "other"]),
    "egress_dns": ("192.0.2.53, 192.0.2.54", ["192.0.2.53", "192.0.2.54"]),
    "egress_image": ("proxy:1", "proxy:1"),
    "keys": ("team:a-long-key", {"a-long-key": "team"}),
    "access_keys": ("team:id:a-long-secret", {"id": ("team", "a-long-secret")}),
    "admin_key": ("a-long-admin-key", "a-long-admin-key"),
    "fallback_provider": ("e2b", "e2b"),
    "librechat_keys": ("librechat.pem", Path("librechat.pem")),
    "stored_disk": ("2g", 2 * 1024**3),
    "stored_for": ("7200", 7200.0),
    "secrets_key_file": ("key.hex", Path("key.hex")),
    "tls": ("true", True),
    "tls_certificate": ("cert.pem", Path("cert.pem")),
    "idle_timeout": ("1.5", 1.5),
    "max_idle_timeout": ("1000", 1000),
    "max_lifetime": ("60", 60),
    "max_pause": ("60", 60),
    "cull_connected": ("true", True),
    "ping_interval": ("5", 5.0),
    "drain_timeout": ("2.5", 2.5),
    "keep_sessions": ("true", True),
    "pool_size": ("0", 0),
    "pool_max": ("8", 8),
    "sandbox_pool_size": ("3", 3),
    "preload": ("numpy, scipy.stats", ["numpy", "scipy.stats"]),
    "golden_images": ("off", "off"),
    "golden_disk": ("512m", 512 * 1024**2),
    "on_idle": ("sleep", "sleep"),
    "sleep_for": ("7200", 7200.0),
    "sleep_disk": ("8g", 8 * 1024**3),
    "max_connections": ("64", 64),
    "max_connections_per_address": ("8", 8),
    "max_sockets": ("9", 9),
    "max_sockets_per_tenant": ("6", 6),
    "max_sockets_per_session": ("2", 2),
    "max_port_connections": ("30", 30),
    "max_port_connections_per_tenant": ("20", 20),
    "max_port_connections_per_session": ("10", 10),
    "max_incoming_bytes_per_tenant": ("64m", 64 * 1024**2),
    "max_incoming_bytes": ("300m", 300 * 1024**2),
    "max_kept_bytes_per_tenant": ("32m", 32 * 1024**2),
    "max_kept_bytes": ("64m", 64 * 1024**2),
    "max_unread_bytes_per_tenant": ("16m", 16 * 1024**2),
    "max_unread_bytes": ("48m", 48 * 1024**2),
    "message_timeout": ("7", 7.0),
    "max_sessions_per_tenant": ("1", 1),
    "max_share_per_tenant": ("0.25", 0.25),
    "max_concurrent_per_tenant": ("2", 2),
    "max_concurrent": ("3", 3),
    "max_queued_per_tenant": ("0", 0),
    "queue_timeout": ("1.5", 1.5),
    "quota_window": ("60", 60),
    "max_execution_seconds": ("600", 600),
    "max_total_output_bytes": ("1m", 1024**2),
    "max_upload_bytes": ("2m", 2 * 1024**2),
    "audit_retention": ("30", 30),
    "admin_looks": ("true", True),
    "tenants": (
        '{"acme": {"sessions": 2, "memory": "256m"}}',
        {"acme": TenantForm.model_validate({"sessions": 2, "memory": 256 * 1024**2})},
    ),
    "tool_servers": (
        '{"tea": {"url": "https://tea.example/mcp", "tenants": ["acme"], "credential": "Bearer 1"}}',
        {
            "tea": ToolServerForm.model_validate(
                {"url": "https://tea.example/mcp", "tenants": ["acme"], "credential": "Bearer 1"}
            )
        },
    ),
    "code_policy": ("weknora", "weknora"),
    "memory": ("1g", 1024**3),
    "max_total_memory": ("64g", 64 * 1024**3),
    "cpus": ("0.5", 0.5),
    "temporary": ("100m", 100 * 1024**2),
    "kernels_weight": ("2.5", 2.5),
    "processes": ("32", 32),
    "disk": ("1m", 1024**2),
    "files": ("memory", "memory"),
    "execute_timeout": ("1", 1),
    "max_execute_timeout": ("100", 100),
    "mcp_answer_after": ("20", 20),
    "max_output_bytes": ("1000", 1000),
    "state_dir": ("elsewhere", Path("elsewhere")),
}
NAMES = sorted(Settings.model_fields)


def settings(**values: Any) -> Settings:
    """Return settings with some values."""
    return Settings.model_validate(values)


def flags() -> argparse.ArgumentParser:
    """Return a parser with the flags of `serve`."""
    parser = argparse.ArgumentParser()
    add_settings(parser)
    return parser


# -- one set ---------------------------------------------------------------------------------------------------


def test_every_field_has_a_description_and_a_test_value() -> None:
    assert sorted(OTHER) == NAMES
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert not field.is_required(), name


def test_every_setting_is_in_a_group_and_the_help_shows_it_there() -> None:
    grouped = settings_by_group()
    assert sorted(name for members in grouped.values() for name in members) == NAMES
    shown = {group.title: [action.dest for action in group._group_actions] for group in flags()._action_groups}
    assert {subject: [*members] for subject, members in grouped.items()}.items() <= shown.items()
    assert all(grouped.values())


def test_a_setting_without_a_group_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Settings.model_fields, "colour", FieldInfo(default="red"))
    with pytest.raises(TypeError, match="colour has no group"):
        settings_by_group()


def test_flags_and_fields_are_one_set() -> None:
    assert sorted(action.dest for action in flags()._actions if action.dest not in {"help", "config"}) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_sets_its_field(name: str) -> None:
    text, value = OTHER[name]
    given = settings_from(flags().parse_args([f"--{name.replace('_', '-')}", text]))
    assert getattr(given, name) == value != getattr(settings(), name)


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_sets_its_field_and_a_flag_wins_over_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = OTHER[name]
    monkeypatch.setenv(f"KERNEL_GATEWAY_{name.upper()}", text)
    assert getattr(settings(), name) == value
    default = Settings.model_fields[name].get_default()
    if isinstance(default, str | int | float | Path):
        again = settings_from(flags().parse_args([f"--{name.replace('_', '-')}", str(default)]))
        assert getattr(again, name) == getattr(settings(**{name: default}), name) != value


@pytest.mark.parametrize("name", NAMES)
def test_a_file_sets_its_field(name: str, tmp_path: Path) -> None:
    text, value = OTHER[name]
    file = tmp_path / "gateway.toml"
    file.write_text(f"{name} = {json.dumps(text)}\n")
    assert getattr(load({}, file), name) == value != getattr(settings(), name)


def test_a_variable_wins_over_the_file_and_a_flag_over_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('port = 1\nhost = "localhost"\nstate_dir = "elsewhere"\n')
    monkeypatch.setenv("KERNEL_GATEWAY_CONFIG", str(file))
    monkeypatch.setenv("KERNEL_GATEWAY_PORT", "2")
    monkeypatch.setenv("KERNEL_GATEWAY_HOST", "::1")
    given = load({"port": 3})
    assert (given.port, given.host, given.state_dir) == (3, "::1", Path("elsewhere"))


#: settings that the gateway and the commands that call it both read, each in its own way
SHARED = sorted({each.name for each in fields(Client)} & Settings.model_fields.keys())


@pytest.mark.parametrize("name", SHARED)
def test_commands_find_a_setting_where_the_gateway_finds_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(**flags: str) -> tuple[Any, Any]:
        return getattr(load_client(flags), name), getattr(load(flags), name)

    assert both() == (Settings.model_fields[name].default,) * 2
    (tmp_path / "a.toml").write_text(f'{name} = "file"\nport = 1\n')
    monkeypatch.setenv("KERNEL_GATEWAY_CONFIG", str(tmp_path / "a.toml"))
    assert both() == (Path("file"),) * 2
    monkeypatch.setenv(f"KERNEL_GATEWAY_{name.upper()}", "variable")
    assert both() == (Path("variable"),) * 2
    assert both(**{name: "flag"}) == (Path("flag"),) * 2


def test_a_file_has_tomls_own_types_too(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'port = 1\ncpus = 2.5\ntls = true\nmemory = 268435456\n[keys]\n"a-long-key" = "team"\n'
    )
    given = load({}, tmp_path / "a.toml")
    assert (given.port, given.cpus, given.tls, given.memory) == (1, 2.5, True, 256 * 1024**2)
    assert given.keys == {"a-long-key": "team"}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("colour = 1\nport = 1\n", "colour is no setting"),
        ("[serve]\nport = 1\n", "serve is no setting"),
        ("port = 'many'\n", "port: "),
        ("port\n", "gateway.toml: Expected '='"),
        (b"\xff", "gateway.toml: "),
        (None, "gateway.toml: [Errno 2] No such file"),
    ],
)
def test_a_wrong_file_is_refused_by_name(
    content: str | bytes | None, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["doctor", "--config", str(file)]) == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("switch", [["--tls"], ["--tls", "true"], ["--allowed-hosts", "a.example", "--tls"]])
def test_a_switch_needs_no_value(switch: list[str]) -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    assert settings_from(parser.parse_args([*switch, "--port", "0"])).tls is True
    assert settings_from(parser.parse_args(["--tls", "false"])).tls is False


@pytest.mark.parametrize(
    "values",
    [{"wheels": "/srv/wheels"}, {"egress_allow": "a.example", "egress_tenants": "*", "egress_dns": "192.0.2.53"}],
)
def test_what_a_cluster_lacks_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="isolation `kubernetes` has no egress proxy and no directory of wheels"):
        settings(isolation="kubernetes", **values)


def test_a_clusters_memory_is_not_this_machines() -> None:
    assert settings(isolation="kubernetes").total_memory == 0
    assert settings(isolation="kubernetes", max_total_memory="1g").total_memory == 1024**3


@pytest.mark.parametrize("text", ["name", "=value", "a=b,c"])
def test_labels_have_names_and_values(text: str) -> None:
    with pytest.raises(ValidationError, match="each must be name=value"):
        settings(kubernetes_node_selector=text)


def test_other_environment_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings()
    for name in ("PORT", "HOST", "KEYS", "KG_PORT", "KERNEL_GATEWAY_URL"):
        monkeypatch.setenv(name, "1")
    assert settings() == before
    assert load({}) == before


def test_a_misspelt_environment_variable_is_refused_with_the_right_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_GATEWAY_ALLOWED_HOST", "example.org")
    with pytest.raises(InvalidRequest, match="ALLOWED_HOST is no setting; did you mean KERNEL_GATEWAY_ALLOWED_HOSTS"):
        load({})


@pytest.mark.parametrize(("former", "present"), RENAMED.items())
def test_the_former_name_of_a_setting_is_refused_with_its_present_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, former: str, present: str
) -> None:
    (tmp_path / "a.toml").write_text(f'{former} = "1"\n')
    with pytest.raises(InvalidRequest, match=f"a.toml: {former} is no setting; did you mean {present}[?]"):
        load({}, tmp_path / "a.toml")
    flag, now = (f"--{name.replace('_', '-')}" for name in (former, present))
    with pytest.raises(SystemExit) as ended:
        main(["serve", flag, "1"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: unrecognized arguments: {flag} 1; did you mean {now}?\n")
    monkeypatch.setenv(f"KERNEL_GATEWAY_{former.upper()}", "1")
    with pytest.raises(InvalidRequest, match=f"did you mean KERNEL_GATEWAY_{present.upper()}[?]"):
        load({})
    assert present in Settings.model_fields


def test_the_defaults_are_the_promised_ones() -> None:
    given = settings()
    assert (given.host, given.port, given.isolation, given.runtime) == ("127.0.0.1", 8888, "auto", "runsc")
    assert (given.image, given.network) == ("kernel-gateway/python:latest", "kernel-gateway")
    assert (given.idle_timeout, given.max_lifetime, given.pool_size) == (300, 0, 1)
    assert (given.max_sessions_per_tenant, given.max_concurrent_per_tenant) == (50, 10)
    assert (given.execute_timeout, given.max_execute_timeout) == (30, 600)
    assert given.limits == Limits(512 * 1024**2, 1.0, 64, 256 * 1024**2, 10 * 1024**2)
    assert given.keys == {}


# -- what follows from settings ------------------------------------------------------------------------------------


def test_all_kernels_together_may_be_promised_twice_the_machines_memory() -> None:
    machine = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert settings().total_memory == 2 * machine
    assert settings(max_total_memory="1g").total_memory == 1024**3
    assert settings(max_total_memory=0).total_memory == 0


# -- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("512m", 512 * 1024**2), ("1g", 1024**3), ("10K", 10240), ("7", 7), ("7b", 7), (" 1mb ", 1024**2), (7, 7)],
)
def test_sizes_have_units(text: object, value: int) -> None:
    assert settings(disk=text).disk == value


@pytest.mark.parametrize("text", ["", "m", "1.5g", "-1", "0", "0m", "1t", "1 m", "many", "1mm", "0x10", None, [], "²"])
def test_an_invalid_size_is_refused(text: object) -> None:
    with pytest.raises(ValidationError):
        settings(disk=text)


@pytest.mark.parametrize(
    "text", ["notebooks.example", "https://a/b", "https://a/", "https://a b", "https://u@a", "a,*.b"]
)
def test_an_invalid_origin_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is no origin"):
        settings(allowed_origins=text)
    assert settings(allowed_origins="*").allowed_origins == ["*"]


def test_keys_are_pairs_of_tenant_and_key() -> None:
    given = settings(keys=" team:a-long-key , other:another-key,team:third:with:colons,")
    assert given.keys == {"a-long-key": "team", "another-key": "other", "third:with:colons": "team"}


@pytest.mark.parametrize(
    "text",
    [
        "a-long-key",
        "team:",
        "team:short",
        ":a-long-key",
        "a/b:a-long-key",
        "-x:a-long-key",
        "team :a-long-key",
        "é:a-long-key",
    ],
)
def test_an_invalid_pair_of_tenant_and_key_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        settings(keys=f"good:good-long-key,{text}")
    told = [problem["msg"] for problem in refusal.value.errors(include_input=False)]
    assert "good-long-key" not in str(told)
    assert "a-long-key" not in str(told)


def test_one_key_belongs_to_one_tenant() -> None:
    with pytest.raises(ValidationError):
        settings(keys="one:the-same-key,other:the-same-key")


@pytest.mark.parametrize("values", [{"admin_key": "short"}, {"admin_key": "a-long-key", "keys": "team:a-long-key"}])
def test_an_admin_key_must_be_long_and_not_a_tenants_key(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"port": -1},
        {"port": 65536},
        {"port": "http"},
        {"isolation": "none"},
        {"isolation": "Docker"},
        {"idle_timeout": 0},
        {"idle_timeout": -1},
        {"max_lifetime": -1},
        {"pool_size": -1},
        {"preload": "numpy, not-a-module"},
        {"preload": "os; print()"},
        {"pool_max": -1},
        {"sandbox_pool_size": -1},
        {"max_sessions_per_tenant": 0},
        {"max_concurrent_per_tenant": 0},
        {"cpus": 0},
        {"processes": 0},
        {"execute_timeout": 0},
        {"execute_timeout": 601},
        {"execute_timeout": 30, "max_execute_timeout": 20},
        {"max_output_bytes": "0"},
        {"idle_timeout": "nan"},
        {"idle_timeout": "inf"},
        {"cpus": "nan"},
        {"cpus": "inf"},
        {"kernels_weight": 0},
        {"kernels_weight": 101},
        {"kernels_weight": "nan"},
        {"max_lifetime": "nan"},
        {"max_execute_timeout": "inf"},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(**values)


def test_only_images_of_the_list_can_be_asked_for() -> None:
    given = settings(image="usual:1", images="other:2,other:3")
    assert [given.valid_image(image) for image in (None, "usual:1", "other:3")] == ["", "", "other:3"]
    with pytest.raises(InvalidRequest, match="known: usual:1, other:2, other:3") as refused:
        given.valid_image("other:4")
    assert refused.value.details == {"field": "image"}


def test_wheels_are_named_by_an_absolute_path() -> None:
    with pytest.raises(ValidationError, match="wheels must be an absolute path"):
        settings(wheels="wheels")


# -- limits of single tenants ----------------------------------------------------------------------------------

LISTED = {"egress_allow": "a.example", "egress_tenants": "acme", "egress_dns": "192.0.2.53"}


def test_the_gateways_settings_are_the_most_for_each_limit_of_a_tenant() -> None:
    given = settings(images="stats:1", **LISTED)
    most = given.most_of("acme")
    assert (most.sessions, most.timeout) == (given.max_sessions_per_tenant, given.max_execute_timeout)
    assert (most.memory, most.cpus, most.disk) == (given.memory, given.cpus, given.disk)
    assert (most.images, most.egress, given.most_of("other").egress) == (frozenset({"stats:1"}), True, False)
    assert settings(**LISTED | {"egress_tenants": "*"}).most_of("other").egress
    assert not settings(**LISTED | {"egress_allow": ""}).most_of("acme").egress


def test_a_file_has_a_table_for_each_tenant(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'images = "stats:1,maps:2"\n'
        '[tenants.acme]\nsessions = 5\nmemory = "256m"\ncpus = 1\nimages = ["stats:1"]\negress = false\n'
        '[tenants.other]\ntimeout = 60\ndisk = "64m"\n'
    )
    acme = OwnLimits("acme", sessions=5, memory=256 * 1024**2, cpus=1.0, images=frozenset({"stats:1"}), egress=False)
    assert load({}, tmp_path / "a.toml").fixed_limits == {
        "acme": acme,
        "other": OwnLimits("other", timeout=60.0, disk=64 * 1024**2),
    }


@pytest.mark.parametrize(
    ("tenants", "told"),
    [
        ("[1]", "valid dictionary"),
        ("{", "no JSON"),
        ('{"a:b": {}}', "tenant must be 1 to 64"),
        ('{"acme": {"session": 1}}', "Extra inputs"),
        ('{"acme": {"sessions": 0}}', "greater than 0"),
        ('{"acme": {"sessions": "5"}}', "valid integer"),
        ('{"acme": {"memory": "64m"}}', "at least 128m"),
        ('{"acme": {"cpus": 0.05}}', "greater than or equal to 0.1"),
        ('{"acme": {"timeout": 0}}', "greater than 0"),
        ('{"acme": {"memory": "1g"}}', "tenants.acme: memory must be at most 512 MiB: the gateway's setting `memory`"),
        ('{"acme": {"egress": true}}', "tenants.acme: egress needs the gateway's settings"),
        ('{"acme": {"images": "stats:1"}}', "tenants.acme: images: 'stats:1' is not in the gateway's setting `images`"),
    ],
)
def test_a_limit_that_no_tenant_may_have_is_refused_at_the_start(tenants: str, told: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(told)):
        settings(tenants=tenants)


def test_a_tenant_sees_its_own_limits_as_the_settings() -> None:
    given = settings(images="stats:1,maps:2")
    assert given.of_tenant(OwnLimits("acme")) is given
    own = OwnLimits("acme", memory=128 * 1024**2, cpus=0.5, disk=1024**2, timeout=10.0, images=frozenset({"stats:1"}))
    seen = given.of_tenant(own)
    assert seen.limits == Limits(128 * 1024**2, 0.5, 64, 1024**2, 10 * 1024**2)
    assert (seen.execute_timeout, seen.max_execute_timeout, seen.valid_timeout(None)) == (10, 10, 10)
    assert seen.valid_image("stats:1") == "stats:1"
    note = "this is the limit of tenant 'acme', which an admin of the gateway can change"
    with pytest.raises(InvalidRequest, match=f"timeout must be at most 10 s: {note}"):
        seen.valid_timeout(11)
    with pytest.raises(InvalidRequest, match=f"image must be one of the usual image, stats:1: {note}"):
        seen.valid_image("maps:2")
    assert given.valid_timeout(11) == 11
    assert given.valid_image("maps:2") == "maps:2"
    with pytest.raises(InvalidRequest, match=r"timeout must be at most 600 s$"):
        given.valid_timeout(601)
    assert given.of_tenant(OwnLimits("acme", timeout=100.0)).valid_timeout(None) == given.execute_timeout


# -- safety ----------------------------------------------------------------------------------------------------

KEYS = "team:a-long-key"
REACHABLE = ["192.0.2.1", "::", "0.0.0.0", "gateway.example", "", "localhost.example", "127.0.0.1.example"]  # noqa: S104
LOOPBACK = ["127.0.0.1", "127.1.2.3", "::1", "localhost"]


@pytest.mark.parametrize("host", REACHABLE)
def test_an_address_that_others_can_reach_needs_keys(host: str) -> None:
    with pytest.raises(ValidationError, match="not loopback: set keys"):
        settings(host=host, isolation="docker")
    assert not settings(host=host, isolation="docker", keys=KEYS).loopback


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "egress_dns"),
        ({"egress_dns": "192.0.2.53", "isolation": "process"}, "sandbox"),
        ({"egress_dns": "127.0.0.53"}, "this machine's own"),
    ],
)
def test_listed_hosts_need_a_name_server_and_a_sandbox(values: dict[str, Any], problem: str) -> None:
    listed = {"egress_allow": "pypi.example", "egress_tenants": "team"}
    assert settings(**listed, egress_dns="192.0.2.53").egress
    with pytest.raises(ValidationError, match=problem):
        settings(**listed | values)
    for alone in listed.items():
        assert not settings(**dict([alone])).egress, "nobody may, or nothing is listed"


def test_a_pattern_is_no_listed_host() -> None:
    with pytest.raises(ValidationError, match="no exact host"):
        settings(egress_allow="pypi.example,*.example.org")


@pytest.mark.parametrize("host", REACHABLE)
def test_an_address_that_others_can_reach_needs_a_sandbox(host: str) -> None:
    with pytest.raises(ValidationError, match="no sandbox"):
        settings(host=host, isolation="process", keys=KEYS)
    settings(host=host, isolation="auto", keys=KEYS)


def test_a_fallback_provider_without_a_sandbox_is_allowed_on_loopback_only() -> None:
    with pytest.raises(ValidationError, match="no sandbox"):
        settings(host="192.0.2.1", keys=KEYS, fallback_provider="local")
    settings(host="192.0.2.1", keys=KEYS, fallback_provider="e2b")
    assert settings(fallback_provider="local").fallback_provider == "local"


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_needs_neither_keys_nor_a_sandbox(host: str) -> None:
    assert settings(host=host, isolation="process").loopback


@pytest.mark.parametrize("show", [repr, str])
def test_secrets_are_not_shown(show: Any) -> None:
    assert "a-long-key" not in show(settings(keys=KEYS))
    assert "a-long-key" not in show(settings(admin_key="a-long-key"))
    assert "a-long-key" not in show(Client(key="a-long-key"))


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        settings().port = 1


# -- the client ------------------------------------------------------------------------------------------------


def test_a_client_uses_a_given_key_or_the_key_in_the_state_directory(tmp_path: Path) -> None:
    assert Client(state_dir=tmp_path).credential() == ""
    (tmp_path / "key").write_text("left-for-you\n")
    assert Client(state_dir=tmp_path).credential() == "left-for-you"
    assert Client(state_dir=tmp_path, key="given").credential() == "given"


# -- servers of tools ------------------------------------------------------------------------------------------


def test_the_example_of_a_tool_server_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/operating.md").read_text()
    (tmp_path / "settings.toml").write_text(page.partition("```toml\n[tool_servers")[2].partition("```")[0])
    example = "[tool_servers" + (tmp_path / "settings.toml").read_text()
    secret = tmp_path / "tea"
    (tmp_path / "settings.toml").write_text(example.replace("/etc/kernel-gateway/tea", str(secret)))
    tea = load({}, tmp_path / "settings.toml").tool_servers["tea"]
    assert (tea.tenants, tea.timeout, tea.secrets()) == (["team-a"], 30, [])
    secret.write_text("Bearer a-long-token\n")
    assert tea.headers() == {"Authorization": "Bearer a-long-token"}
    assert tea.secrets() == ["Bearer a-long-token", "a-long-token"]


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("tea-house", {}, "is no name of a server"),
        ("import", {}, "is no name of a server"),
        ("ToolError", {}, "is no name of a server"),
        ("tea", {"url": "ftp://tea.example"}, "write http"),
        ("tea", {"url": "https://user:word@tea.example"}, "use `credential`"),
        ("tea", {"credential": "a", "credential_file": "b"}, "not both"),
        ("tea", {"credential": "a\nHost: b"}, "printable"),
    ],
)
def test_a_tool_server_that_cannot_be_one_is_refused(name: str, more: dict[str, str], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        settings(tool_servers={name: {"url": "https://tea.example/mcp", "tenants": ["*"]} | more})


def test_the_credential_of_a_tool_server_is_not_shown() -> None:
    given = settings(tool_servers=OTHER["tool_servers"][0].replace("Bearer 1", "Bearer a-long-token"))
    assert "a-long-token" not in repr(given) + repr(given.tool_servers) + str(given.model_dump())
    assert given.tool_servers["tea"].headers() == {"Authorization": "Bearer a-long-token"}, "control"

"""The wall around kernels, line by line: the test that finds the loss of each line, or what the line is good for.

`tests/mutate.py` says what a line is. A new line of these places has to be added here; `tests/test_mutate.py` fails
until it is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """A line that keeps something out."""

    #: the test that must fail without the line, as pytest names it
    by: str
    #: weaker text in place of the line; None: the line is removed
    weaker: str | None = None


def _by(file: str, test: str, weaker: str | None = None) -> Found:
    return Found(f"tests/{file}::{test}", weaker)


def _profile(test: str, weaker: str | None = None) -> Found:
    return _by("attacks/test_attack_profile.py", test, weaker)


def _firewall(test: str) -> Found:
    return _by("sessions/backends/docker/test_firewall.py", test)


def _network(test: str, weaker: str | None = None) -> Found:
    return _by("sessions/backends/docker/test_network.py", test, weaker)


def _docker(test: str, weaker: str | None = None) -> Found:
    return _by("sessions/backends/docker/test_docker.py", test, weaker)


def _contract(test: str, weaker: str | None = None) -> Found:
    return _by("sessions/backends/test_contract.py", test, weaker)


#: reasons of lines that keep nothing out
GIVES = "gives the kernel something, and keeps nothing out"
DEFAULT = "says what the engine does without it"
PLACE = "says where something is"

_SIZES = "test_folders_hold_so_much_and_no_more[runsc-{}]"
_OWN = _profile("test_folders_are_the_kernels_own")
_MEMORY = "test_folders_are_memory_and_refuse_devices_and_set_uid_files"
_SHARED = _docker("TestProfile::test_sharing_a_workspace_also_shares_tmp_and_changes_nothing_else")
_DISK = _docker("TestProfile::test_a_workspace_on_disk_is_the_device_that_was_made_for_it")
_DISKS = _docker("TestProfile::test_the_disks_of_a_workspace_have_its_limits_and_are_its_own")
_HELPER = _docker("TestProfile::test_the_helper_has_loop_devices_and_its_images_and_nothing_else")
_MADE = _profile("test_a_container_is_made_for_nobody_and_without_the_operators_proxy")
_NETWORK = "test_the_gateways_own_network_is_accepted_and_closed"
_OPTION = "{_BRIDGE_OPTION}"

#: lines that must not be added
ADDED = (
    '"port_bindings": {50001: 50001}',
    '"publish_all_ports": True',
    '"binds": ["/var/run/docker.sock:/run/docker.sock"]',
    '"devices": ["/dev/kmsg"]',
    '"privileged": True',
    '"cap_add": ["SYS_ADMIN"]',
    '"pid_mode": "host"',
)

#: by file, and by function or constant: each line's loss, several changes in its place, or why it keeps nothing out
WALL: dict[str, dict[str, dict[str, Found | tuple[Found, ...] | str]]] = {
    "sessions/backends/docker/profile.py": {
        "_OWNER": {"uid={UID}": _OWN, "gid={UID}": _OWN},
        "_PRIVATE_OPTIONS": {
            "nosuid": _profile(_MEMORY, "suid"),
            "nodev": _profile(_MEMORY, "dev"),
            "size=16m": _profile(_SIZES.format("/home/kernel-16-loosened1")),
            "mode=0700": Found(_OWN.by, "mode=0777"),
        },
        "_TEMPORARY_OPTIONS": {
            "nosuid": _profile(_MEMORY, "suid"),
            "nodev": _profile(_MEMORY, "dev"),
            "mode={_TEMPORARY_MODE}": DEFAULT,
        },
        "_DISK_OPTIONS": {
            "nosuid": _DISK,
            "nodev": _DISK,
            "noatime": _DISK,
            "barrier=0": _DISK,
        },
        "host_config": {
            "runtime": _profile("test_the_runtime_is_gvisor"),
            "network_mode": _contract("test_a_kernel_answers_and_keeps_its_variables[docker]"),
            "cap_drop": _profile("test_no_capability_can_be_gained[runsc]"),
            "security_opt": _profile("test_no_program_gives_more_privileges"),
            "read_only": _profile("test_the_image_is_read_only"),
            "tmpfs": _profile(_SIZES.format("/home/kernel-16-loosened1")),
            "TEMPORARY": _profile(_SIZES.format("/tmp-64-loosened0")),
            "rw": DEFAULT,
            "exec": GIVES,
            "size={settings.temporary}": _profile(_SIZES.format("/tmp-64-loosened0")),
            "PRIVATE": _OWN,
            "rw (2)": DEFAULT,
            "mounts": _OWN,
            "shm_size": _profile(_SIZES.format("/dev/shm-64-loosened3")),
            "mem_limit": _profile("test_memory_is_limited[runsc]"),
            "memswap_limit": _profile("test_swap_is_no_further_memory"),
            "cpu_period": _docker("TestProfile::test_a_kernel_that_has_used_its_share_waits_ten_milliseconds_at_most"),
            "cpu_quota": _profile("test_processors_are_limited"),
            "log_config": _profile("test_the_engine_keeps_no_output"),
            "dns": _profile("test_no_resolver_of_the_host_is_known"),
            "ipc_mode": _profile("test_the_hosts_shared_memory_is_not_there", '"ipc_mode": "host"'),
            "restart_policy": _profile(
                "test_an_ended_container_is_not_started_again", '"restart_policy": {"Name": "always"}'
            ),
            "init": tuple(_profile("test_a_container_has_no_opening", f'"init": False, {more}') for more in ADDED),
        },
        "_process_limits": {
            "Ulimit(name='nofile', soft=1024, hard=1024)": _profile("test_descriptors_are_limited"),
            "Ulimit(name='fsize', soft=limits.disk, hard=limits.disk)": _profile("test_one_file_has_a_limited_size"),
            "Ulimit(name='core', soft=0, hard=0)": _profile(
                "test_the_host_dumps_no_memory_of_a_crashed_process", 'Ulimit(name="core", soft=-1, hard=-1)'
            ),
            "if not gvisor": _profile("test_processes_are_limited[runc-control1]"),
            "pids_limit": _profile("test_processes_are_limited[runc-control1]"),
            "ulimits": _profile("test_one_file_has_a_limited_size[runc]"),
            "pids_limit (2)": _profile("test_the_host_counts_gvisors_own_processes"),
            "ulimits (2)": _docker("TestProfile::test_the_sandbox_counts_processes_and_the_host_is_a_backstop"),
            "Ulimit(name='nproc', soft=limits.processes, hard=limits.processes)": _profile(
                "test_processes_are_limited[runsc-control0]"
            ),
        },
        "disks_of": {
            "Disk(files, WORKSPACE, limits.disk, '0700')": _DISKS,
            "Disk(temporary, TEMPORARY, settings.temporary, _TEMPORARY_MODE)": _DISKS,
        },
        "workspace_mounts": {"if devices is None": _DISK},
        "_memory_options": {
            "nosuid": _profile(_MEMORY, "suid"),
            "nodev": _profile(_MEMORY, "dev"),
            "size={disk.size}": _profile(_SIZES.format("/home/user-24-loosened2")),
            "mode={disk.mode}": Found(_OWN.by, "mode=0777"),
        },
        "wheels_mounts": {
            "if not settings.wheels": "there is nothing to mount without the setting",
            "target=": PLACE,
            "source=": PLACE,
            "type=": DEFAULT,
            "read_only=": _docker("TestProfile::test_wheels_can_be_read_and_not_written", "read_only=False"),
        },
        "_volume": {
            "target=": PLACE,
            "source=": PLACE,
            "type=": DEFAULT,
            "no_copy=": _SHARED,
            "labels=": _docker("TestProfile::test_volumes_of_a_shared_workspace_have_the_labels_of_the_installation"),
            "driver_config=": _profile(_MEMORY),
            "type": _profile(_MEMORY),
            "device": _profile(_MEMORY),
            "o": _OWN,
        },
    },
    "sessions/backends/docker/container/containers.py": {
        "create": {
            "gvisor=": PLACE,
            "shared=": PLACE,
            "devices=": _by(
                "sessions/backends/docker/test_disks.py",
                "test_a_full_workspace_is_refused_more_and_others_have_their_own_room",
            ),
            "if files is not None": PLACE,
            "{IMAGE_DIR}/launcher.py": PLACE,
            "name=": PLACE,
            "user=": Found(_MADE.by, 'user="0:0"'),  # without it, the image names the same user
            "hostname=": _MADE,
            "working_dir=": PLACE,
            "environment=": GIVES,
            "online=": "says to programs whether there is a network, and keeps nothing out",
            "stdin_open=": GIVES,
            "labels=": _profile("test_a_container_is_known_as_the_gateways"),
            "use_config_proxy=": _MADE,
            "host_config=": _contract("test_a_kernel_answers_and_keeps_its_variables[docker]"),
            "cgroup_parent=": _by(
                "sessions/backends/docker/test_engine.py",
                "test_a_new_driver_of_control_groups_is_proven_before_kernels_start_with_it",
            ),
        },
    },
    "sessions/backends/docker/disks/helper.py": {
        "helper_config": {
            "runtime": _HELPER,
            "network_mode": _HELPER,
            "cap_drop": _HELPER,
            "security_opt": _HELPER,
            "read_only": _HELPER,
            "device_cgroup_rules": _HELPER,
            "mounts": _HELPER,
            "Mount(target=_DEVICES, source='/dev', type='bind', read_only=True)": _HELPER,
            "Mount(target=_IMAGES, source=volume, type='volume', labels={DISKS_LABEL: settings.instance})": _HELPER,
            "DISKS_LABEL": PLACE,
            "mem_limit": _HELPER,
            "memswap_limit": _HELPER,
            "pids_limit": _HELPER,
            "log_config": _HELPER,
            "auto_remove": _HELPER,
        },
    },
    "sessions/backends/docker/isolation/network.py": {
        "ensure_network": {
            "if (problem := _problem(found, network))": _network(
                "test_a_network_that_lets_something_through_is_refused"
            ),
        },
        "create": {
            "driver=": DEFAULT,
            "ipam=": PLACE,
            "internal=": _network(_NETWORK),
            "enable_ipv6=": _network(_NETWORK, "enable_ipv6=True"),
            "check_duplicate=": "keeps the gateway's own network unique; kernels name it by its name",
            "options=": _network(_NETWORK),
            f"{_OPTION}.name": _network(_NETWORK),
            f"{_OPTION}.enable_icc": _network(_NETWORK),
            f"{_OPTION}.enable_ip_masquerade": _network(_NETWORK),
        },
        "_problem": {
            f"if found.get('Driver') != 'bridge' or options.get(f'{_OPTION}.name') != bridge_name(network)": _network(
                "test_a_network_that_lets_something_through_is_refused[not made by the gateway-changes0]"
            ),
            "if not found.get('Internal')": _network(
                "test_a_network_that_lets_something_through_is_refused[not internal-changes1]"
            ),
            f"if options.get(f'{_OPTION}.enable_icc') != 'false'": _network(
                "test_a_network_that_lets_something_through_is_refused[reach one another-changes2]"
            ),
            "if found.get('EnableIPv6')": _network(
                "test_a_network_that_lets_something_through_is_refused[IPv6 is on-changes3]"
            ),
        },
    },
    "sessions/backends/docker/isolation/firewall.py": {
        "chain_rules": {
            "-A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT": _firewall(
                "test_the_host_still_reaches_the_guest"
            ),
            "-A {chain} -j DROP": _firewall("test_each_rule_keeps_a_guest_out[host, IPv4, the chain's end]"),
        },
        "rules": {
            "('iptables', ['INPUT', '-i', bridge, '-j', chain_name(bridge)])": _firewall(
                "test_each_rule_keeps_a_guest_out[host, IPv4]"
            ),
            "chain_name(bridge)": _firewall("test_each_rule_keeps_a_guest_out[host, IPv4]"),
            "('iptables', ['DOCKER-USER', '-i', bridge, '-j', beyond])": _firewall(
                "test_each_rule_keeps_a_guest_out[world, IPv4]"
            ),
            "('ip6tables', ['INPUT', *drop])": _firewall("test_each_rule_keeps_a_guest_out[host, IPv6]"),
            "('ip6tables', ['FORWARD', *drop])": _firewall("test_each_rule_keeps_a_guest_out[world, IPv6]"),
        },
        "ensure_rules": {
            "if os.geteuid() != 0": "a user who may not read the rules proves instead that they are in effect",
            "if BRIDGE_NF.exists() and BRIDGE_NF.read_text().strip() != '1'": _firewall(
                "test_a_host_that_does_not_filter_bridged_packets_is_refused"
            ),
            "if way_out is not None": _firewall("test_a_guest_with_the_right_reaches_the_proxys_port_only"),
            "if _run(program, '-C', chain, *rule).returncode != 0": _firewall(
                "test_each_rule_keeps_a_guest_out[host, IPv4]"
            ),
        },
    },
    "sessions/backends/docker/isolation/egress/networks.py": {
        "to_the_proxy": {
            "-d {proxy}/32 -p tcp -m tcp --dport {PORT} -j ACCEPT": _firewall(
                "test_a_guest_with_the_right_reaches_the_proxys_port_only"
            ),
            "-s {proxy}/32 -p tcp -m tcp --sport {PORT} -m conntrack --ctstate ESTABLISHED -j ACCEPT": _by(
                "attacks/test_attack_egress.py", "test_a_listed_host_is_reached_by_http_and_https"
            ),
        },
    },
    "sessions/backends/docker/isolation/proof.py": {
        "prove": {
            "if list(target) in reached": _docker(
                "TestProof::test_without_the_rules_a_kernel_reaches_the_host_and_the_proof_says_so"
            ),
            "if list(peer) in reached": _docker(
                "TestProof::test_on_an_open_bridge_kernels_reach_one_another_and_the_proof_says_so"
            ),
            "if proxy is not None and (list(proxy) in reached) is not proxied": _docker(
                "TestProof::test_the_proof_notices_who_reaches_the_proxy"
            ),
            "if not gvisor and settings.runtime != 'runc'": _docker(
                "TestProof::test_a_runtime_that_is_no_gvisor_is_refused_under_another_name"
            ),
        },
    },
    "sessions/backends/handshake.py": {
        "new_connection_info": {
            **{f"{channel}_port=": PLACE for channel in ("shell", "iopub", "stdin", "control", "hb")},
            "key=": _contract("test_two_kernels_have_nothing_in_common[process]", 'key=b"0" * 64'),
            "signature=": PLACE,
            "curve_publickey=": _contract("test_a_kernel_sends_nothing_to_an_unencrypted_client[process]"),
            "curve_secretkey=": _contract("test_a_kernel_sends_nothing_to_an_unencrypted_client[process]"),
        },
    },
    "sessions/kernels/sockets.py": {
        "make": {
            "socket.linger": PLACE,
            "socket.maxmsgsize": _by(
                "sessions/kernels/test_connection.py",
                "test_an_oversized_message_breaks_the_channel_which_is_renewed",
            ),
            "socket.rcvhwm": _by(
                "sessions/kernels/test_sockets.py", "test_few_messages_are_held_for_a_gateway_that_does_not_read"
            ),
            "socket.connect_timeout": PLACE,
            "if channel == 'iopub'": PLACE,
            "socket.identity": PLACE,
            "if self._info.curve_publickey and self._keys": _by(
                "sessions/kernels/test_connection.py", "test_an_encrypted_kernel_is_reached_with_its_public_key_only"
            ),
            "socket.curve_serverkey": _by(
                "sessions/kernels/test_connection.py", "test_an_encrypted_kernel_is_reached_with_its_public_key_only"
            ),
        },
    },
    "sessions/kernels/messages.py": {
        "parse": {
            condition: Found("tests/sessions/kernels/test_messages.py")
            for condition in (
                "if len(frames) < start + _PARTS",
                "if not hmac.compare_digest(self._session.sign(parts), signature)",
                "if channel != 'iopub'",
                "if channel != 'iopub' (2)",
                "if not _is_name(header.get('msg_type')) or not _is_name(header.get('msg_id'))",
                "if isinstance(parent.get('msg_id'), str) and (not _is_name(parent['msg_id']))",
            )
        },
    },
}

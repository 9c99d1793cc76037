#!/usr/bin/env bash
# Runs a program on a fresh Debian machine: a minimal installation with its own processes, mounts and network, and
# without anything that this project needs. All of it is removed at the end.
#
#   fresh.sh CHECKOUT PROGRAM              run a shell program in a copy of a checkout there; end with its exit status
#   fresh.sh --systemd CHECKOUT PROGRAM    the same on a machine with systemd (on a host with control groups version 1)
#
# Needs Debian 12, root, mmdebstrap and iptables, as tests/engine/setup.sh installs them, and some 6 GB of disk.
set -euo pipefail

systemd=false
if [[ $1 == --systemd ]]; then systemd=true && shift; fi
readonly CHECKOUT=$1 PROGRAM=$2
readonly NAME=kgw-fresh-$$
readonly HOST_SIDE=kgwf$$
# A network for this run only: runs at the same time have others.
readonly SUBNET=10.201.$(($$ % 256))
readonly PACKAGES=make,python3,python3-venv,ca-certificates,iproute2
readonly GROUPS_ROOT=/sys/fs/cgroup
root=$(mktemp -d -p "${TMPDIR:-/var/tmp}")

forward() { iptables "$1" FORWARD -i "$HOST_SIDE" -j ACCEPT && iptables "$1" FORWARD -o "$HOST_SIDE" -j ACCEPT; }
translate() { iptables -t nat "$1" POSTROUTING -s "$SUBNET.0/24" ! -o "$HOST_SIDE" -j MASQUERADE; }

# The machine's processes and mounts end with its first process.
remove() {
  forward -D || true
  translate -D || true
  ip netns del "$NAME" || true
  find "$GROUPS_ROOT"/*/"$NAME" -depth -type d -exec rmdir {} + 2>/dev/null || true
  rm -rf --one-file-system "$root"
}

# How the installation gets packages is this machine's affair: its sources, proxies and certificates.
install() {
  local sources=/etc/apt/sources.list.d/debian.sources file
  [[ -f $sources ]] || sources=/etc/apt/sources.list
  apt-config dump Acquire >"$root.apt"
  mmdebstrap --quiet --variant=minbase --include="$PACKAGES$($systemd && echo ,systemd-sysv,openssl,curl)" --aptopt="$root.apt" bookworm "$root" "$sources"
  rm -f "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
  for file in "$sources" /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    if [[ -f $file ]]; then install_file "$file"; fi
  done
  mv "$root.apt" "$root/etc/apt/apt.conf"
  mkdir -p "$root/srv/gateway"
  git -C "$CHECKOUT" ls-files -z --cached --others --exclude-standard |
    tar -C "$CHECKOUT" --null --files-from=- --create | tar -C "$root/srv/gateway" --extract
}

install_file() { mkdir -p "$root${1%/*}" && cp --dereference "$1" "$root$1"; }

connect() {
  ip netns add "$NAME"
  ip link add "$HOST_SIDE" type veth peer name eth0 netns "$NAME"
  ip addr add "$SUBNET.1/24" dev "$HOST_SIDE"
  ip link set "$HOST_SIDE" up
  ip -n "$NAME" addr add "$SUBNET.2/24" dev eth0
  ip -n "$NAME" link set eth0 up
  ip -n "$NAME" link set lo up
  ip -n "$NAME" route add default via "$SUBNET.1"
  forward -I
  translate -A
}

# A root that is a mount of its own, not a chroot: an engine must be able to give its containers another one.
# shellcheck disable=SC2016  # the variables are for the shell inside
readonly ENTER='set -e
mount --make-rprivate /
mount --bind "$1" "$1" && cd "$1"
mount -t proc proc proc && mount --rbind /sys sys && mount --rbind /dev dev
mount -t tmpfs tmpfs run && mount -t tmpfs tmpfs tmp
if [ "$2" = systemd ]; then
  umount -l sys/fs/cgroup && mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
  cut -d: -f2 /proc/self/cgroup | while read -r group; do
    case $group in
      "") mkdir sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 sys/fs/cgroup/unified ;;
      name=*) mkdir "sys/fs/cgroup/${group#name=}" && mount -t cgroup -o "none,$group" cgroup "sys/fs/cgroup/${group#name=}" ;;
      *) mkdir "sys/fs/cgroup/$group" && mount -t cgroup -o "$group" cgroup "sys/fs/cgroup/$group" ;;
    esac
  done
fi
mkdir -p old && pivot_root . old && cd / && umount -l old
hostname fresh && cd /srv/gateway
shift 2
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb container=fresh \
  ${PIP_CERT:+PIP_CERT=/etc/ssl/certs/ca-certificates.crt} "$@"'

# unshare takes no notice of a polite end.
enter() {
  timeout --signal=KILL 1000 nsenter --net="/run/netns/$NAME" \
    unshare --mount --pid --fork --uts --ipc --cgroup --kill-child sh -c "$ENTER" sh "$root" "$@"
}

# systemd needs control groups of its own, of which it believes that there are no others.
boot() {
  local group
  printf '%s\n' "$PROGRAM" >"$root/program"
  cat >"$root/etc/systemd/system/program.service" <<END
[Unit]
After=basic.target
[Service]
Type=oneshot
WorkingDirectory=/srv/gateway
Environment=HOME=/root ${PIP_CERT:+PIP_CERT=/etc/ssl/certs/ca-certificates.crt}
StandardOutput=file:/said
StandardError=inherit
ExecStart=/bin/sh /program
ExecStopPost=/bin/sh -c 'systemctl exit \$EXIT_STATUS'
TimeoutStartSec=900
[Install]
WantedBy=multi-user.target
END
  systemctl --quiet --root="$root" enable program
  systemctl --quiet --root="$root" set-default multi-user.target
  for group in "$GROUPS_ROOT"/*/; do
    mkdir -p "$group$NAME"
    # A new group of this one has no processors and no memory yet.
    if [[ -f ${group}cpuset.cpus ]]; then
      cat "${group}cpuset.cpus" >"$group$NAME/cpuset.cpus"
      cat "${group}cpuset.mems" >"$group$NAME/cpuset.mems"
    fi
  done
  local status=0
  (
    for group in "$GROUPS_ROOT"/*/; do echo "$BASHPID" >"$group$NAME/cgroup.procs"; done
    enter systemd /lib/systemd/systemd --show-status=false
  ) || status=$?
  cat "$root/said"
  return "$status"
}

trap remove EXIT
install
connect
if $systemd; then boot; else enter plain sh -c "$PROGRAM"; fi

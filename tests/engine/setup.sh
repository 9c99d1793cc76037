#!/usr/bin/env bash
# Gives a Debian 12 machine a Docker engine with a working gVisor runtime, and the local base image.
#
#   setup.sh            install and start what is missing, then prove that it works; safe to run again
#   setup.sh --compose  the same, and docker-compose
#   setup.sh --check    report what is installed, change nothing; exit status 0 when nothing is missing
#
# README.md beside this file gives the reason for each unusual step, and how to undo it.
set -euo pipefail

readonly BASE_IMAGE=kernel-gateway/base:bookworm
readonly BASE_PACKAGES=python3,python3-venv,ca-certificates,fonts-wqy-microhei,iptables,tzdata
readonly PACKAGES_LABEL=kernel-gateway.packages
readonly WRAPPER=/usr/local/lib/kernel-gateway/runsc
WRAPPER_SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/sessions/backends/docker/checkpoint/runsc.sh
readonly WRAPPER_SOURCE
readonly DAEMON_JSON=/etc/docker/daemon.json
readonly ENGINE_LOG=/var/log/kernel-gateway-dockerd.log
readonly ENGINE_DEADLINE=60
readonly PIN=/etc/apt/preferences.d/kernel-gateway-runsc
readonly SECOND_SOURCE=/etc/apt/sources.list.d/kernel-gateway-trixie
readonly BRIDGE_SWITCH=/proc/sys/net/bridge/bridge-nf-call-iptables
readonly LOCK=/run/lock/kernel-gateway-engine.lock

# Older builds lack systrap, the platform that is fast without nested virtualisation.
readonly OLDEST_RUNSC=0.0~20240729

# Without directfs the sentry runs as nobody, with no capability at all; the gofer opens files for it.
# Without overlay2 a container's writes to its root go where Docker can see and measure them.
readonly RUNSC_FLAGS=(
  --platform=systrap
  --network=sandbox
  --net-raw=false
  --host-uds=none
  --host-fifo=none
  --directfs=false
  --overlay2=none
  --cpu-num-from-quota
)

lists_are_fresh=false

# shellcheck source=tests/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"

# --- checks --------------------------------------------------------------------------------------

engine_answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

engine_has_runsc() {
  [[ $(timeout 10 docker info --format '{{json .Runtimes}}' 2>/dev/null) == *'"runsc":'* ]]
}

bridge_is_filtered() { [[ -r $BRIDGE_SWITCH && $(<"$BRIDGE_SWITCH") == 1 ]]; }

# The image must have the present list of packages, and not that of an earlier version of this script.
image_is_present() {
  [[ $(docker image inspect --format "{{index .Config.Labels \"$PACKAGES_LABEL\"}}" "$BASE_IMAGE" 2>/dev/null) == "$BASE_PACKAGES" ]]
}

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

runsc_is_recent() {
  is_installed runsc && dpkg --compare-versions "$(dpkg-query -W -f '${Version}' runsc)" ge "$OLDEST_RUNSC"
}

report() {
  local missing=0
  look 'Docker engine that answers' engine_answers
  look 'runtime runsc' engine_has_runsc
  look 'bridged traffic passes iptables' bridge_is_filtered
  look "image $BASE_IMAGE" image_is_present
  return "$missing"
}

# --- packages ------------------------------------------------------------------------------------

require_debian_root() {
  local found
  # shellcheck source=/dev/null
  found=$(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-unknown system}${VERSION_CODENAME:+ $VERSION_CODENAME}") || true
  [[ $found == Debian*\ bookworm ]] ||
    die "needs Debian 12, this is ${found:-no Debian}: install Docker and a runtime named runsc by hand, then run --check"
  [[ $EUID == 0 ]] || die 'needs root: run it again as root or with sudo'
}

# Installed packages need neither a download nor an `apt-get update`, and one update is enough.
apt_install() {
  local package missing=()
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  step "installing ${missing[*]}"
  refresh_package_lists
  apt_fetch "${missing[@]}"
}

refresh_package_lists() {
  $lists_are_fresh || quietly apt-get -qq update
  lists_are_fresh=true
}

apt_fetch() {
  DEBIAN_FRONTEND=noninteractive quietly \
    apt-get -qq -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends "$@" 9>&-
}

# The machine's own mirror, with the next release's name, so that this script contains no host name.
write_second_source() {
  local own=/etc/apt/sources.list.d/debian.sources
  if [[ -f $own ]]; then
    awk -v RS= -v ORS='\n\n' '/\nSuites:[^\n]*[ \t]bookworm([ \t\n]|$)/ {
      sub(/\nSuites:[^\n]*/, "\nSuites: trixie"); print }' "$own" >"$SECOND_SOURCE.sources"
  else
    sed -nE 's/^(deb .*)[ \t]bookworm[ \t]/\1 trixie /p' /etc/apt/sources.list >"$SECOND_SOURCE.list"
  fi
}

# All other packages of that release are forbidden, so this machine stays a Debian 12.
write_pin() {
  cat >"$PIN" <<'END'
Package: *
Pin: release n=trixie*
Pin-Priority: -10

Package: runsc
Pin: release n=trixie
Pin-Priority: 900
END
}

offer_newer_runsc() {
  runsc_is_recent && return
  write_pin
  write_second_source
}

install_runsc() {
  runsc_is_recent && return
  step 'installing runsc, the one package that comes from trixie'
  refresh_package_lists
  apt_fetch runsc
  runsc_is_recent || die "apt found no runsc >= $OLDEST_RUNSC: look at 'apt-cache policy runsc'"
}

# --- the engine ----------------------------------------------------------------------------------

# The wrapper has its own reasons in it. It is renamed into place, so that containers may start meanwhile.
write_wrapper() {
  mkdir -p "${WRAPPER%/*}"
  install -m 755 "$WRAPPER_SOURCE" "$WRAPPER.new"
  mv "$WRAPPER.new" "$WRAPPER"
}

# A wrapper of an earlier version would not restore checkpoints.
update_wrapper() {
  if [[ ! -e $WRAPPER ]] || cmp -s "$WRAPPER_SOURCE" "$WRAPPER"; then return; fi
  step "updating $WRAPPER"
  write_wrapper
}

register_runtime() {
  mkdir -p "${DAEMON_JSON%/*}"
  python3 - "$DAEMON_JSON" "$WRAPPER" "${RUNSC_FLAGS[@]}" <<'END'
import json, pathlib, sys

file, wrapper, flags = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
settings = json.loads(file.read_text()) if file.exists() else {}
settings.setdefault("runtimes", {})["runsc"] = {"path": wrapper, "runtimeArgs": flags}
file.write_text(json.dumps(settings, indent=2) + "\n")
END
}

# After a crash or a reboot the pid file may name another process, and dockerd would then not start.
forget_stale_pid() {
  local file=$1 name=$2 pid
  [[ -f $file ]] || return 0
  pid=$(<"$file")
  [[ -r /proc/$pid/comm && $(<"/proc/$pid/comm") == "$name" ]] || rm -f "$file"
}

# A separate session, no terminal and no inherited lock: the engine outlives this script and its shell.
launch_engine() {
  forget_stale_pid /run/docker.pid dockerd
  forget_stale_pid /run/docker/containerd/containerd.pid containerd
  setsid nohup dockerd >"$ENGINE_LOG" 2>&1 </dev/null 9>&- &
}

# containerd first clears away each container that ran when an engine was killed (about 0.05 s for each), and dockerd
# waits only 15 s for that. The next start continues where this one has ended.
start_engine() {
  local deadline=$((SECONDS + ENGINE_DEADLINE))
  step "starting dockerd, log in $ENGINE_LOG"
  launch_engine
  until engine_answers; do
    if ! kill -0 "$!" 2>/dev/null && tail -n 1 "$ENGINE_LOG" | grep -q 'timeout waiting for containerd'; then
      step 'containerd was still clearing away old containers: starting dockerd again'
      launch_engine
    elif ! kill -0 "$!" 2>/dev/null || ((SECONDS > deadline)); then
      tail -n 25 "$ENGINE_LOG" >&2
      die "dockerd did not come up; above is the end of $ENGINE_LOG"
    fi
    sleep 0.2
  done
}

# A running engine re-reads its runtimes on SIGHUP; its containers are not disturbed.
reload_engine() {
  step 'the engine that runs learns about runsc'
  [[ -f /run/docker.pid ]] || die "restart the Docker engine yourself, it must re-read $DAEMON_JSON"
  kill -HUP "$(</run/docker.pid)"
  sleep 1
}

provide_engine() {
  [[ -z ${DOCKER_HOST:-} ]] || die "DOCKER_HOST is set and no runtime runsc is there: unset it to set up this machine"
  offer_newer_runsc
  apt_install docker.io iptables iproute2 python3 mmdebstrap
  install_runsc
  write_wrapper
  register_runtime
  if engine_answers; then reload_engine; else start_engine; fi
  engine_has_runsc || die "the engine answers but does not list the runtime runsc: look at $DAEMON_JSON"
}

# enable_icc=false is an iptables rule: unless bridged frames pass iptables, containers still reach each other.
require_bridge_filtering() {
  bridge_is_filtered && return
  step 'letting bridged traffic pass iptables'
  modprobe br_netfilter 2>/dev/null || true
  echo 1 2>/dev/null >"$BRIDGE_SWITCH" || true
  bridge_is_filtered || die 'net.bridge.bridge-nf-call-iptables is not 1: load the kernel module br_netfilter on the host'
}

# --- the base image ------------------------------------------------------------------------------

# apt inside the new root does not see this machine's settings (a proxy, say), so pass on those for downloads.
# The settings and the package sources stay out of the image, because they concern only this machine.
bootstrap() {
  local work=$1 sources=/etc/apt/sources.list.d/debian.sources
  [[ -f $sources ]] || sources=/etc/apt/sources.list
  apt-config dump Acquire >"$work/apt.conf"
  # shellcheck disable=SC2016  # $1 is for the hook's shell: the new root
  mmdebstrap --quiet --variant=minbase --include="$BASE_PACKAGES" --aptopt="$work/apt.conf" \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --customize-hook='rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* \
      "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/var/log/*' \
    bookworm "$work/root.tar" "$sources"
}

make_base_image() {
  local work
  apt_install mmdebstrap
  step "making $BASE_IMAGE from Debian's packages (about half a minute)"
  work=$(mktemp -d -p /var/tmp)
  # shellcheck disable=SC2064  # the directory is known now, not when the script ends
  trap "rm -rf '$work'" EXIT
  quietly bootstrap "$work"
  quietly docker import --change 'ENV LANG=C.UTF-8' --change 'CMD ["python3"]' \
    --change "LABEL $PACKAGES_LABEL=$BASE_PACKAGES" "$work/root.tar" "$BASE_IMAGE"
}

# --- the proof -----------------------------------------------------------------------------------

# A registered runtime proves nothing; the kernel's own boot messages do. The container uses the default bridge,
# because old builds of runsc fail on this network.
prove_runtime() {
  local boot
  boot=$(timeout 60 docker run --rm --pull=never --runtime=runsc "$BASE_IMAGE" dmesg 2>&1) ||
    die "a container with the runtime runsc does not start: $boot"
  [[ $boot == *'Starting gVisor'* ]] || die "the runtime runsc is not gVisor, its kernel says: ${boot:0:300}"
  step "gVisor answers from $BASE_IMAGE"
}

main() {
  local compose=false
  case ${1:-} in
    '') ;;
    --compose) compose=true ;;
    --check) report; exit ;;
    *) die 'usage: setup.sh [--compose | --check]' ;;
  esac
  require_debian_root
  one_at_a_time
  if engine_has_runsc; then step 'an engine with runsc answers: nothing to install'; else provide_engine; fi
  update_wrapper
  if $compose; then apt_install docker-compose; fi
  require_bridge_filtering
  image_is_present || make_base_image
  prove_runtime
}

main "$@"

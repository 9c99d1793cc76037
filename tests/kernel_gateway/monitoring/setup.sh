#!/usr/bin/env bash
# Gives a Debian machine `promtool`, which checks the alert rules and runs their unit tests.
#
#   setup.sh          fetch promtool if it is missing, then prove that it answers; safe to run again
#   setup.sh --check  report whether it is installed, change nothing; exit status 0 when it is
#
# Only this program is taken from Debian's package: the installed package would add a user, web fonts and a Prometheus
# server that starts on its own. To undo it: rm /usr/local/lib/kernel-gateway/promtool
set -euo pipefail

readonly PROMTOOL=/usr/local/lib/kernel-gateway/promtool
# Packages that contain promtool: a separate one since trixie, the server's package in bookworm.
readonly PACKAGES=(promtool prometheus)
readonly LOCK=/run/lock/kernel-gateway-promtool.lock

# shellcheck source=tests/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup.sh"

answers() { "$PROMTOOL" --version >/dev/null 2>&1; }

report() {
  if answers; then printf 'ok       %s\n' "$PROMTOOL"; else printf 'missing  %s\n' "$PROMTOOL" && return 1; fi
}

require_debian_root() {
  [[ -r /etc/debian_version ]] || die "needs Debian's apt: put promtool at $PROMTOOL by hand, then run --check"
  [[ $EUID == 0 ]] || die 'needs root: run it again as root or with sudo'
}

# True if apt would install the package: a package that a pin forbids has no candidate.
has_candidate() { [[ $(apt-cache policy "$1") =~ Candidate:\ [0-9] ]]; }

package() {
  local name
  for name in "${PACKAGES[@]}"; do
    if has_candidate "$name"; then
      echo "$name"
      return
    fi
  done
  die "apt knows neither of ${PACKAGES[*]}"
}

# Renamed into place, so that an interrupted download leaves no broken program.
fetch() {
  local work name
  work=$(mktemp -d -p /var/tmp)
  # shellcheck disable=SC2064  # the directory is known now, not when the script ends
  trap "rm -rf '$work'" EXIT
  apt-get -qq -o DPkg::Lock::Timeout=120 update
  name=$(package)
  step "fetching promtool from Debian's package $name (about 20 MB)"
  (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$name")
  dpkg-deb --fsys-tarfile "$work"/*.deb | tar -x -C "$work" ./usr/bin/promtool
  mkdir -p "${PROMTOOL%/*}"
  install -m 755 "$work/usr/bin/promtool" "$PROMTOOL.new"
  mv "$PROMTOOL.new" "$PROMTOOL"
}

main() {
  case ${1:-} in
    '') ;;
    --check) report; exit ;;
    *) die 'usage: setup.sh [--check]' ;;
  esac
  if ! answers; then
    require_debian_root
    one_at_a_time
    answers || fetch
  fi
  answers || die "$PROMTOOL does not start"
  step "$("$PROMTOOL" --version 2>&1 | head -n 1) is there"
}

main "$@"

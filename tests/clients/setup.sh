#!/usr/bin/env bash
# Gives a Debian machine the browser that the front ends' tests drive: Chromium with a font for text, in a separate
# network (browser.sh gives the reason).
#
#   setup.sh          install what is missing, then prove that a page is drawn; safe to run again
#   setup.sh --check  report what is installed, change nothing; exit status 0 when nothing is missing
#
# The browser is Debian's own, because Playwright's download needs more than a package mirror.
# To undo it: apt-get purge chromium socat && apt-get autoremove
set -euo pipefail

readonly BROWSER=/usr/bin/chromium
readonly TOOLS=(ip socat unshare)
readonly FONT_FILE=/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf
readonly PACKAGES=(chromium fonts-dejavu-core iproute2 socat)
IN_ITS_NETWORK=$(cd "$(dirname "$0")" && pwd)/browser.sh
readonly IN_ITS_NETWORK
readonly LOCK=/run/lock/kernel-gateway-browser.lock
readonly PAGE='data:text/html,<script>document.write(6*7)</script>'
# The browser contacts no server except the requested page.
readonly FLAGS=(
  --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run
  --disable-background-networking --disable-component-update --disable-sync
)

# shellcheck source=tests/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"

browser_is_there() { [[ -x $BROWSER ]]; }

tools_are_there() {
  local tool
  for tool in "${TOOLS[@]}"; do command -v "$tool" >/dev/null || return; done
}

network_can_be_had() { unshare --net --pid --fork --mount-proc true 2>/dev/null; }

font_is_there() { [[ -r $FONT_FILE ]]; }

report() {
  local missing=0
  look "browser $BROWSER" browser_is_there
  look "font $FONT_FILE" font_is_there
  look "tools ${TOOLS[*]}" tools_are_there
  look 'right to give it a network of its own (root)' network_can_be_had
  return "$missing"
}

require_debian_root() {
  [[ -r /etc/debian_version ]] || die "needs Debian's apt: install $BROWSER and a font by hand, then run --check"
  [[ $EUID == 0 ]] || die 'needs root: run it again as root or with sudo'
}

# The update is needed because old package lists name packages that the mirror no longer has.
install() {
  step "installing ${PACKAGES[*]} (about half a minute)"
  quietly apt-get -qq -o DPkg::Lock::Timeout=120 update
  DEBIAN_FRONTEND=noninteractive quietly \
    apt-get -qq -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends "${PACKAGES[@]}" 9>&-
}

# An installed browser proves nothing; a page whose script has run proves that it works.
prove() {
  local home shown
  home=$(mktemp -d)
  # shellcheck disable=SC2064  # the directory is known now, not when the script ends
  trap "rm -rf '$home'" EXIT
  shown=$(HOME=$home timeout 60 "$IN_ITS_NETWORK" "${FLAGS[@]}" --user-data-dir="$home/profile" --dump-dom "$PAGE" 2>"$home/log") || {
    tail -n 25 "$home/log" >&2
    die "$BROWSER does not start"
  }
  [[ $shown == *'42'* ]] || die "$BROWSER draws no page, only: ${shown:0:300}"
  step "$("$BROWSER" --version 2>/dev/null) draws a page"
}

main() {
  case ${1:-} in
    '') ;;
    --check) report; exit ;;
    *) die 'usage: setup.sh [--check]' ;;
  esac
  if report >/dev/null; then
    step 'the browser and what it needs are there: nothing to install'
  else
    require_debian_root
    one_at_a_time
    report >/dev/null || install
  fi
  prove
}

main "$@"

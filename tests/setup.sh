# shellcheck shell=bash
# What the scripts share that set up a machine for tests: they source this file, and have LOCK.

step() { printf '==> [%3ds] %s\n' "$SECONDS" "$*"; }

die() {
  printf 'setup.sh: %s\n' "$*" >&2
  exit 1
}

# Runs a command silently, and shows its output only when it fails.
quietly() {
  local said
  said=$("$@" 2>&1) || {
    printf '%s\n' "$said" | tail -n 25 >&2
    die "failed: $*"
  }
}

# Reports whether a part is there, by a check; if not, sets `missing` of the caller.
look() {
  # shellcheck disable=SC2034  # a variable of the caller
  if "${@:2}"; then printf 'ok       %s\n' "$1"; else printf 'missing  %s\n' "$1" && missing=1; fi
}

# Two runs at once would fight over dpkg, and start two engines; the second waits for the first.
one_at_a_time() {
  mkdir -p "${LOCK%/*}"
  exec 9>"$LOCK"
  flock --nonblock 9 && return
  step 'another setup is running, waiting for it'
  flock 9
}

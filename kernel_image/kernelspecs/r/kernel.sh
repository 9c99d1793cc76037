#!/bin/bash
# Starts R with its descriptors 1 and 2 in two files, which kernel.R reads. They are in memory, up to the size of /dev/shm.
set -euo pipefail
output=$(mktemp -p /dev/shm) errors=$(mktemp -p /dev/shm)
# No .Rprofile and no .Renviron: files of the session must not decide whether its kernel starts.
# shellcheck disable=SC2094 # R reads what it has written to these files; this is the purpose.
exec R --no-echo --no-save --no-restore --no-init-file --no-environ --file="${0%/*}/kernel.R" \
  --args "$1" "$output" "$errors" >>"$output" 2>>"$errors"

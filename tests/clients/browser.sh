#!/bin/sh
# Chromium in a separate network. Called like the browser itself, with its arguments.
#
#   FRONT_SOCKET  a server's Unix socket, which the browser reaches as localhost:8888; it reaches no other server
#
# In the machine's own network each container that starts or ends brings an interface up or down. Chromium then fails
# waiting requests with ERR_NETWORK_CHANGED. The process namespace ends all processes with the browser.
set -eu
# shellcheck disable=SC2016  # for the inner shell
exec unshare --net --pid --fork --kill-child --mount-proc sh -c '
  ip link set lo up
  if [ -n "${FRONT_SOCKET:-}" ]; then
    socat TCP-LISTEN:8888,bind=127.0.0.1,reuseaddr,fork,backlog=64 "UNIX-CONNECT:$FRONT_SOCKET" 3<&- 4>&- &
  fi
  /usr/bin/chromium "$@"
' sh "$@"

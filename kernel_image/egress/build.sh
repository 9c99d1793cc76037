#!/bin/sh
# Builds the image of the egress proxy with the engine that the docker command reaches.
#
#   kernel_image/egress/build.sh [NAME]      NAME defaults to kernel-gateway/egress:latest
#
# BASE_IMAGE chooses the base image, as for kernel_image/build.sh.
set -eu

name=${1:-kernel-gateway/egress:latest}
here=$(cd "$(dirname "$0")" && pwd)
local_base=kernel-gateway/base:bookworm
say() { printf '==> %s\n' "$*"; }

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp "$here/Dockerfile" "$here/credentials.py" "$here/start.py" "$context/"
if [ -z "${BASE_IMAGE:-}" ]; then
  BASE_IMAGE=python:3.12-slim
  if docker image inspect "$local_base" >/dev/null 2>&1; then BASE_IMAGE=$local_base; fi
fi
base_id=$(docker image inspect -f '{{.Id}}' "$BASE_IMAGE" 2>/dev/null || echo "$BASE_IMAGE")
digest=$( (cd "$context" && cat Dockerfile credentials.py start.py; echo "$base_id") | sha256sum | cut -d' ' -f1)
built=$(docker image inspect -f '{{index .Config.Labels "kernel-gateway.sources"}}' "$name" 2>/dev/null || true)
if [ "$built" = "$digest" ]; then
  say "$name is up to date"
  exit 0
fi

# The local base has no package sources: it gets this machine's, and its settings for downloads.
if [ "$BASE_IMAGE" = "$local_base" ]; then
  "$here/../package_sources.sh" >"$context/debian.sources"
  apt-config dump Acquire >"$context/apt.conf"
fi

say "building $name on $BASE_IMAGE (about half a minute)"
# Every engine has the classic builder, but not every one has BuildKit.
DOCKER_BUILDKIT=0 docker build --network=host --build-arg "BASE_IMAGE=$BASE_IMAGE" \
  --label "kernel-gateway.sources=$digest" -t "$name" "$context"
say "$name is built"

#!/bin/sh
# Builds the kernels' image with the engine that the docker command reaches, and shows its progress.
#
#   kernel_image/build.sh [NAME]      NAME defaults to kernel-gateway/python:latest
#
# BASE_IMAGE chooses the base image. Without it, the base that tests/engine/setup.sh makes from Debian's packages is
# used if it exists, else the official Python image.
set -eu

name=${1:-kernel-gateway/python:latest}
here=$(cd "$(dirname "$0")" && pwd)
local_base=kernel-gateway/base:bookworm
say() { printf '==> %s\n' "$*"; }

if [ -z "${BASE_IMAGE:-}" ]; then
  BASE_IMAGE=python:3.12-slim
  if docker image inspect "$local_base" >/dev/null 2>&1; then BASE_IMAGE=$local_base; fi
fi

# The image's sources, and no other files of this folder. Their digest shows whether the image is up to date.
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp -R "$here/Dockerfile" "$here/requirements.txt" "$here"/*.py "$here/python_kernel" "$here/kernelspecs" "$context/"
find "$context" -name __pycache__ -prune -exec rm -rf {} +
base_id=$(docker image inspect -f '{{.Id}}' "$BASE_IMAGE" 2>/dev/null || echo "$BASE_IMAGE")
digest=$( (cd "$context" && find . -type f | sort | xargs sha256sum; echo "$base_id") | sha256sum | cut -d' ' -f1)
built=$(docker image inspect -f '{{index .Config.Labels "kernel-gateway.sources"}}' "$name" 2>/dev/null || true)
if [ "$built" = "$digest" ]; then
  say "$name is up to date"
  exit 0
fi

# If the package index is reached through a proxy with its own certificate authority, the build needs its certificate.
if [ -n "${PIP_CERT:-}" ]; then install -m 644 "$PIP_CERT" "$context/ca.pem"; fi

say "building $name on $BASE_IMAGE (a few minutes the first time)"
# Every engine has the classic builder, but not every one has BuildKit.
if ! DOCKER_BUILDKIT=0 docker build --network=host --build-arg "BASE_IMAGE=$BASE_IMAGE" \
  --label "kernel-gateway.sources=$digest" -t "$name" "$context"; then
  say "the image was not built. No registry? 'make engine' makes a base image from Debian's packages (as root)."
  exit 1
fi
say "$name is built"

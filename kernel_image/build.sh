#!/bin/sh
# Builds the kernels' image with the engine that the docker command reaches, and shows its progress.
#
#   kernel_image/build.sh [--slim] [--LANGUAGE]... [NAME]
#
# NAME defaults to kernel-gateway/python:latest. --slim leaves out the packages besides those of the kernels, and the
# programs in tools.txt. --LANGUAGE adds a language that the usual image lacks: each folder kernelspecs/LANGUAGE with a
# file debian.txt, which lists Debian's packages for it. The default NAME then ends with these words, for example
# kernel-gateway/python:slim or kernel-gateway/python:r.
#
# BASE_IMAGE chooses the base image. Without it, the base that tests/engine/setup.sh makes from Debian's packages is
# used if it exists, else the official Python image.
#
# EXTRA names further packages for pip, separated by blanks. Without it, those of the present image are kept, so that
# `make serve` does not take them away; EXTRA= takes them away.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
requirements=requirements.txt tools=tools.txt tag='' debian=''
while :; do
  option=${1:-}
  case "$option" in
    --slim) requirements=requirements-slim.txt tools=/dev/null ;;
    --*)
      packages="$here/kernelspecs/${option#--}/debian.txt"
      if [ ! -f "$packages" ]; then echo "no such language: $packages does not exist" >&2; exit 2; fi
      debian="${debian:+$debian }$(sed 's/#.*//' "$packages" | xargs)" ;;
    *) break ;;
  esac
  tag=${tag:+$tag-}${option#--}
  shift
done
name=${1:-kernel-gateway/python:${tag:-latest}}
local_base=kernel-gateway/base:bookworm
say() { printf '==> %s\n' "$*"; }
label() { docker image inspect -f "{{index .Config.Labels \"kernel-gateway.$1\"}}" "$name" 2>/dev/null || true; }

if [ -z "${BASE_IMAGE:-}" ]; then
  BASE_IMAGE=python:3.12-slim
  if docker image inspect "$local_base" >/dev/null 2>&1; then BASE_IMAGE=$local_base; fi
fi
extra=${EXTRA-$(label extra)}

# The image's sources, and no other files of this folder. Their digest shows whether the image is up to date.
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp -R "$here/Dockerfile" "$here/debian.sh" "$here"/*.txt "$here"/*.py "$here/python_kernel" "$here/kernelspecs" "$context/"
find "$context" -name __pycache__ -prune -exec rm -rf {} +
rm -f "$context"/kernelspecs/*/contract.toml # for tests, and for nothing in the image
base_id=$(docker image inspect -f '{{.Id}}' "$BASE_IMAGE" 2>/dev/null || echo "$BASE_IMAGE")
digest=$( (cd "$context" && find . -type f | sort | xargs sha256sum; echo "$base_id $requirements $extra$debian") |
  sha256sum | cut -d' ' -f1)
if [ "$(label sources)" = "$digest" ]; then
  say "$name is up to date"
  exit 0
fi

# If the package index is reached through a proxy with its own certificate authority, the build needs its certificate.
if [ -n "${PIP_CERT:-}" ]; then install -m 644 "$PIP_CERT" "$context/ca.pem"; fi

# The local base has no package sources: it gets this machine's, and its settings for downloads.
if [ "$BASE_IMAGE" = "$local_base" ]; then
  "$here/package_sources.sh" >"$context/debian.sources"
  apt-config dump Acquire >"$context/apt.conf"
fi

say "building $name on $BASE_IMAGE${extra:+ with $extra} (a few minutes the first time)"
# Every engine has the classic builder, but not every one has BuildKit.
if ! DOCKER_BUILDKIT=0 docker build --network=host --build-arg "BASE_IMAGE=$BASE_IMAGE" \
  --build-arg "REQUIREMENTS=$requirements" --build-arg "TOOLS=$tools" \
  --build-arg "EXTRA=$extra" --build-arg "DEBIAN=$debian" \
  --label "kernel-gateway.sources=$digest" --label "kernel-gateway.extra=$extra" -t "$name" "$context"; then
  say "the image was not built. No registry? 'make engine' makes a base image from Debian's packages (as root)."
  exit 1
fi
say "$name is built"
